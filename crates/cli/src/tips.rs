//! Tips for command lines that other programs of the kind would take.

use clap::{
    Command, Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Words that are no commands here at any place, and what does it.
const ELSEWHERE: [(&str, &str); 8] = [
    ("ssh", "sandbox exec -it SANDBOX -- bash"),
    ("shell", "sandbox exec -it SANDBOX -- bash"),
    ("logs", "session attach SANDBOX SESSION --after 0"),
    ("ps", "session list SANDBOX"),
    ("kill", "session signal SANDBOX SESSION KILL"),
    ("images", "image list"),
    ("commit", "sandbox snapshot create SANDBOX"),
    ("build", "image import"),
];

/// Adds what may have been meant to what clap says of `words`, the command line.
pub(crate) fn add(error: &mut Error, command: &Command, words: impl Iterator<Item = String>) {
    let tips = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            word(error, ContextKind::InvalidSubcommand).map(|word| found(command, &word))
        }
        ErrorKind::UnknownArgument => word(error, ContextKind::InvalidArg)
            .filter(|word| !word.starts_with('-'))
            .and_then(|word| dashes(command, words, &word))
            .map(|tip| vec![tip]),
        _ => None,
    };
    let Some(tips) = tips.filter(|tips| !tips.is_empty()) else {
        return;
    };
    // What only looks alike is further away than the same word.
    if error.kind() == ErrorKind::InvalidSubcommand {
        error.remove(ContextKind::SuggestedSubcommand);
    }
    let tips = tips.into_iter().map(StyledStr::from).collect();
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
}

fn word(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        _ => None,
    }
}

/// Where this word is a command.
fn found(command: &Command, word: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let elsewhere = ELSEWHERE.iter().filter(|(name, _)| *name == word);
    paths.extend(elsewhere.map(|(_, path)| (*path).to_owned()));
    below(command, word, "", &mut paths);
    let tips = paths
        .iter()
        .map(|path| format!("there is `outlive {path}`"));
    tips.collect()
}

fn below(command: &Command, word: &str, prefix: &str, paths: &mut Vec<String>) {
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        let path = format!("{prefix}{}", inner.get_name());
        let is_it = inner.get_name() == word || inner.get_all_aliases().any(|name| name == word);
        if is_it && inner.get_name() != "help" {
            paths.push(path.clone());
        }
        below(inner, word, &format!("{path} "), paths);
    }
}

/// Where a command that is to be run begins without the dashes before it.
fn dashes(
    command: &Command,
    words: impl Iterator<Item = String>,
    unexpected: &str,
) -> Option<String> {
    let mut meant = command;
    for word in words.take_while(|word| word != unexpected) {
        meant = meant.find_subcommand(&word).unwrap_or(meant);
    }
    let takes_command = meant.get_positionals().any(clap::Arg::is_last_set);
    takes_command.then(|| format!("a command to run comes after `--`: `-- {unexpected} …`"))
}
