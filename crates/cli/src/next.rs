//! The next step after a server's error: one table from code to advice.

use crate::error::Failure;

/// What to do after `failure` of a call to `path`.
pub fn after(failure: &Failure, path: &str) -> Option<String> {
    let ids = Ids::from_path(path);
    let sandbox = ids.sandbox.unwrap_or("SANDBOX");
    let session = ids.session.unwrap_or("SESSION");
    let text = match failure.code.as_str() {
        "unauthorized" => "set OUTLIVE_TOKEN to a key of this server (a local server's is in \
                           DIR/admin.token)"
            .to_owned(),
        "forbidden" => "use a key with a larger role; `outlive key create` makes one".to_owned(),
        "not_found" if path.contains("/holds/") => {
            format!("`outlive sandbox holds {sandbox}` shows those that did not end")
        }
        "not_found" if path.starts_with("/v1/keys") => {
            "`outlive key list` shows what is there".to_owned()
        }
        "not_found" if failure.message == "template not found" => {
            "the server's templates.yaml names them; without it there is `default`".to_owned()
        }
        "not_found" | "sandbox_not_found"
            if ids.sandbox.is_some() || path.starts_with("/v1/upgrade") =>
        {
            "`outlive sandbox list` shows what is there".to_owned()
        }
        "create_failed" => {
            "is the program in the sandbox, and the folder of --cwd? the message says which"
                .to_owned()
        }
        "snapshot_not_found" => "`outlive sandbox snapshot list` shows what is there".to_owned(),
        "session_not_found" => format!("`outlive session list {sandbox}` shows what is there"),
        "context_not_found" => {
            format!("`outlive sandbox contexts {sandbox}` shows those that are kept")
        }
        "process_finished" => {
            "its process has ended; make a new context, or restart this one".to_owned()
        }
        "session_conflict" if failure.reason() == Some("raw_terminal") => {
            "its program reads keys: type what it leaves at, or end its terminal with --hangup"
                .to_owned()
        }
        "session_conflict" => {
            format!("`outlive session get {sandbox} {session}` shows its state now")
        }
        "event_cursor_expired" => expired(failure, sandbox, session),
        "input_buffer_full" => {
            "the command does not read; repeat with the same --input-id in a second".to_owned()
        }
        "quota_exceeded" => "delete what is no longer needed, or ask for a larger quota".to_owned(),
        "unavailable" if ids.sandbox.is_some() => {
            format!("repeat in a moment; if it is paused: `outlive sandbox resume {sandbox}`")
        }
        "unavailable" => "repeat in a moment".to_owned(),
        // The message says what stands in the way.
        "conflict" if failure.reason().is_some() => return None,
        "conflict" if ids.sandbox.is_some() => {
            "it is reserved or being changed; repeat when that is over".to_owned()
        }
        "sandbox_suspended" => format!("`outlive sandbox wake {sandbox}`, then repeat"),
        // A creation: of a sandbox that did not start nothing is left.
        "sandbox_resume_failed" if ids.sandbox.is_none() => {
            "no sandbox was made: mend what the message says, and repeat".to_owned()
        }
        "sandbox_resume_failed" | "sandbox_failed" => {
            format!("`outlive sandbox status {sandbox}`, then `outlive sandbox resume {sandbox}`")
        }
        "not_implemented" => {
            "this server does not have it yet; README.md lists what works".to_owned()
        }
        "invalid_request" | "bad_request" => {
            "check the values; --help of the command explains them".to_owned()
        }
        _ => return None,
    };
    Some(text)
}

/// What to do after a command that could not be started; nothing where the message says it all.
pub fn after_start(message: &str) -> Option<&'static str> {
    if message.contains("no such file") {
        Some("is the program in the sandbox, and the working directory?")
    } else if message.contains("permission denied") {
        Some("may its user execute the program, and enter the working directory?")
    } else {
        None
    }
}

fn expired(failure: &Failure, sandbox: &str, session: &str) -> String {
    let earliest = failure
        .details
        .as_ref()
        .and_then(|details| details["earliest"].as_u64());
    match earliest {
        Some(earliest) => format!(
            "older events are gone; go on from the earliest with `outlive session events \
             {sandbox} {session} --after {}`",
            earliest.saturating_sub(1)
        ),
        None => "older events are gone; leave --after out to start from the earliest".to_owned(),
    }
}

struct Ids<'a> {
    sandbox: Option<&'a str>,
    session: Option<&'a str>,
}

impl<'a> Ids<'a> {
    fn from_path(path: &'a str) -> Self {
        let after = |word: &str| {
            let mut parts = path.split('/').skip_while(move |part| *part != word);
            parts.nth(1).filter(|id| !id.is_empty())
        };
        Self {
            sandbox: after("sandboxes").or_else(|| after("sandbox")),
            session: after("sessions"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{after, after_start};
    use crate::error::Failure;

    // It was sent to a sandbox without a name, which was not there.
    #[test]
    fn whoever_makes_a_sandbox_that_does_not_start_is_sent_to_none() {
        let failure = Failure::new("sandbox_resume_failed", "its /dev is no directory");
        let made = after(&failure, "/api/v1/sandboxes").unwrap();
        assert!(made.starts_with("no sandbox was made"), "{made}");
        let there = after(&failure, "/api/v1/sandboxes/sbx-1/resume").unwrap();
        assert!(there.contains("outlive sandbox status sbx-1"), "{there}");
    }

    // It was asked for the program, whatever the message was about.
    #[test]
    fn a_message_that_says_it_all_stands_alone() {
        assert!(after_start("no such file or directory: prog").is_some());
        let all = "commands run as the server's own user here; leave user out";
        assert_eq!(after_start(all), None);
    }
}
