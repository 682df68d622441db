//! Wrong usage, told to programs. To people it is told by clap itself.

use std::ffi::OsString;

use clap::error::ErrorKind;

use crate::error::Failure;

/// Whether the command line asks for JSON. It can't be parsed, so its words are looked at, up to
/// those that are somebody else's.
pub(crate) fn wants_json(words: impl Iterator<Item = OsString>) -> bool {
    let mut before = OsString::new();
    for word in words.take_while(|word| word != "--") {
        let asks = ["--json", "--output=json", "-ojson", "-o=json"];
        let is_value = word == "json" && (before == "--output" || before == "-o");
        if is_value || asks.iter().any(|ask| word == *ask) {
            return true;
        }
        before = word;
    }
    false
}

/// What clap says, as a failure like all others: without the usage, and with its tips as what to do
/// next.
pub(crate) fn failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing");
    }
    let said = error.render().to_string();
    let (about, _usage) = said.split_once("\n\nUsage:").unwrap_or((&said, ""));
    let (about, _help) = about
        .split_once("\n\nFor more information")
        .unwrap_or((about, ""));
    let lines = about.lines().map(str::trim).filter(|line| !line.is_empty());
    let (tips, lines): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("tip: "));
    let message = lines.join(" ");
    let failure = Failure::usage(message.strip_prefix("error: ").unwrap_or(&message));
    if tips.is_empty() {
        return failure;
    }
    let tips: Vec<_> = tips
        .iter()
        .filter_map(|tip| tip.strip_prefix("tip: "))
        .collect();
    failure.with_next(tips.join("; "))
}
