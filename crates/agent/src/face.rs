//! Which of its faces the program shows, by its arguments.

use std::process::ExitCode;

use outlive_api::launch::LAUNCHER_TITLE;

use crate::{copy, init, keeper, launch, probe, rootless};

/// A face: runs until it is over.
pub type Face = fn() -> anyhow::Result<()>;

/// Runs the face that the arguments name, or says how to call the program.
pub fn main(supervisor: Face) -> ExitCode {
    if let Some((title, face)) = find(supervisor) {
        finish(&title, face())
    } else {
        complain(
            "usage: outlive-agent \
             launch|sweep|settle|hold|tidy-groups|egress|limit|copy|drop|probe|enter|version\n",
        );
        ExitCode::from(2)
    }
}

/// The face that the arguments name, with its title.
pub fn find(supervisor: Face) -> Option<(String, Face)> {
    let mut arguments = std::env::args();
    let title = arguments.next().unwrap_or_default();
    let face: Face = match title.as_str() {
        keeper::KEEPER_TITLE => keeper::main,
        keeper::SUPERVISOR_TITLE => supervisor,
        init::INIT_TITLE => init::main,
        LAUNCHER_TITLE => launch::main_that_waits,
        _ => {
            let command = arguments.next()?;
            let face: Face = match command.as_str() {
                "launch" => launch::main,
                "sweep" => launch::sweep,
                "settle" => launch::settle,
                "hold" => launch::hold,
                "tidy-groups" => launch::tidy_groups,
                "copy" => copy::main,
                "egress" => launch::egress,
                "limit" => launch::limit,
                "drop" => launch::drop_disks,
                "probe" => probe::main,
                "enter" => rootless::main,
                "version" => version,
                _ => return None,
            };
            return Some((command, face));
        }
    };
    Some((title, face))
}

/// The exit code of a face, and its error on standard error.
pub fn finish(title: &str, outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(&format!("{title}: {e:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn version() -> anyhow::Result<()> {
    let line = format!("outlive-agent {}\n", env!("CARGO_PKG_VERSION"));
    rustix::io::write(rustix::stdio::stdout(), line.as_bytes())?;
    Ok(())
}

fn complain(text: &str) {
    match rustix::io::write(rustix::stdio::stderr(), text.as_bytes()) {
        Ok(_) | Err(_) => {} // There is no other place to say it.
    }
}
