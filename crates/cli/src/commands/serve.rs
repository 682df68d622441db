//! `outlive serve`: the server in this process.

use std::io::IsTerminal;

use outlive_server::{Config, RuntimeChoice, ServeError, TenantLimits};
use tracing_subscriber::EnvFilter;

use crate::{
    args::serve::{RuntimeKind, Serve},
    config::default_data_dir,
    error::{Failure, Result},
    rootless,
};

/// Runs the server until SIGTERM or SIGINT.
pub async fn serve(args: Serve) -> Result<()> {
    let data = args.data.clone().or_else(default_data_dir);
    let data = data.ok_or_else(|| {
        Failure::usage("there is no home directory to keep data in: give --data DIR")
    })?;
    // Inside, another user's default would hold.
    let kept = [("OUTLIVE_DATA", data.clone().into_os_string())];
    rootless::enter(args.agent.as_deref(), args.runtime, &kept).await?;
    let filter = EnvFilter::try_new(&args.log)
        .map_err(|error| Failure::usage(format!("--log {}: {error}", args.log)))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let mut config = Config::new(data);
    config.listen = args.listen;
    config.agent = args.agent;
    config.pool = args.sandbox_addresses;
    config.tenant = TenantLimits {
        sandboxes_max: args.sandboxes_per_owner_max,
        snapshots_max: args.snapshots_per_owner_max,
        requests_per_second_max: args.requests_per_owner_second_max,
    };
    config.templates = args.template_file;
    config.runtime = match args.runtime {
        None => RuntimeChoice::Auto,
        Some(RuntimeKind::Namespace) => RuntimeChoice::Namespace,
        Some(RuntimeKind::TwoUid) => RuntimeChoice::TwoUid,
        Some(RuntimeKind::Process) => RuntimeChoice::Process,
    };
    outlive_server::serve(config)
        .await
        .map_err(|error| explain(&error))
}

fn explain(error: &ServeError) -> Failure {
    let next = match error {
        ServeError::Data(error) if error.is_full() => {
            "make room on the disk of that folder, then start it again"
        }
        ServeError::Data(_) => "use another folder with --data, or end the server that has it",
        ServeError::Agent(_) => {
            "build it with `cargo build --release`, or name it with --agent or OUTLIVE_AGENT"
        }
        ServeError::Templates(_) => "mend the file, or name another with --template-file",
        ServeError::Listen { .. } => "use another address with --listen; port 0 picks a free one",
        ServeError::Store(_)
        | ServeError::Images(_)
        | ServeError::Process(_)
        | ServeError::Key(_) => "the log above says more; --log debug says most",
    };
    Failure::new("serve", error.to_string()).with_next(next)
}
