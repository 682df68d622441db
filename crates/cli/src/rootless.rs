//! How an ordinary user's server becomes root of a user namespace, where that user may have one.
//!
//! The program is started anew by the agent (`outlive-agent enter`): the same process, now root of
//! a namespace that ends at the ids the user was granted. Everything below needs to know nothing
//! of it.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    args::serve::RuntimeKind,
    commands::doctor,
    error::{Failure, Result},
};

/// Starts this program anew where that gives its sandboxes namespaces, and then doesn't return.
/// Returns where there is nothing to gain: to root, to whom wants another runtime, and where
/// the machine forbids it, which the server will tell.
pub(crate) async fn enter(
    agent: Option<&Path>,
    runtime: Option<RuntimeKind>,
    variables: &[(&str, OsString)],
) -> Result<()> {
    let wanted = matches!(runtime, None | Some(RuntimeKind::Namespace));
    if rustix::process::geteuid().is_root() || !wanted {
        return Ok(());
    }
    let Ok(agent) = doctor::agent(agent) else {
        return Ok(()); // Without it nothing runs, as the server says with the next step.
    };
    let found = doctor::probe(&agent, None).await?;
    let may_enter = found
        .iter()
        .any(|(key, value)| key == "userns" && value.starts_with("enter:"));
    if !may_enter {
        return Ok(());
    }
    Err(start_anew(&agent, variables))
}

/// Returns only on failure.
#[expect(
    clippy::disallowed_methods,
    reason = "becomes another program; nothing is started beside this one"
)]
fn start_anew(agent: &Path, variables: &[(&str, OsString)]) -> Failure {
    let this: PathBuf = match std::env::current_exe() {
        Ok(this) => this,
        Err(error) => return Failure::new("serve", format!("find this program: {error}")),
    };
    let error = Command::new(agent)
        .args(["enter", "--"])
        .arg(this)
        .args(std::env::args_os().skip(1))
        // What was found out just now is no longer a guess: nothing less is taken.
        .env("OUTLIVE_RUNTIME", RuntimeKind::Namespace.as_str())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .exec();
    Failure::file("run", agent, &error)
}
