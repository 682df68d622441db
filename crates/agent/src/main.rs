//! One program with several faces; see the library's first page.

use std::{env, process::ExitCode};

use outlive_agent::{init, keeper, supervisor};

fn main() -> ExitCode {
    let mut arguments = env::args();
    let title = arguments.next().unwrap_or_default();
    let outcome = match title.as_str() {
        keeper::KEEPER_TITLE => keeper::main(),
        keeper::SUPERVISOR_TITLE => supervisor::main(),
        init::INIT_TITLE => init::main(),
        _ => return command(arguments.next().as_deref()),
    };
    finish(&title, outcome)
}

fn command(name: Option<&str>) -> ExitCode {
    match name {
        Some("version") => {
            say(&format!("outlive-agent {}\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        _ => {
            complain("usage: outlive-agent launch|sweep|probe|version\n");
            ExitCode::from(2)
        }
    }
}

fn finish(title: &str, outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(&format!("{title}: {e:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) {
    match rustix::io::write(rustix::stdio::stdout(), text.as_bytes()) {
        Ok(_) | Err(_) => {} // Nobody reads: there is nobody to tell.
    }
}

fn complain(text: &str) {
    match rustix::io::write(rustix::stdio::stderr(), text.as_bytes()) {
        Ok(_) | Err(_) => {} // There is no other place to say it.
    }
}
