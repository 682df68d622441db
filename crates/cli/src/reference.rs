//! The reference of the command line, written from the command line itself.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;

/// `docs/reference/cli.md`.
pub fn markdown() -> String {
    let mut root = Cli::command();
    root.build();
    let mut out = String::from(
        "# Command line\n\n<!-- Written from the program by `UPDATE=1 cargo test -p outlive-cli \
         reference`; a test keeps it fresh. -->\n\nExit codes: 0, 1 for a failure, 2 for \
         wrong usage. `run` and `session attach` pass the program's code on and use 125 for \
         failures of their own. Failures are told on standard error with a code, a message and \
         the next step; with `--json`, as one JSON object.\n",
    );
    let globals: Vec<&Arg> = root
        .get_arguments()
        .filter(|arg| arg.is_global_set() && !arg.is_hide_set())
        .collect();
    write(&mut out, "\n## Global options\n\n");
    for arg in globals {
        option(&mut out, arg);
    }
    for command in root.get_subcommands() {
        describe(&mut out, command, "outlive", 2);
    }
    out
}

fn describe(out: &mut String, command: &Command, parent: &str, level: usize) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{parent} {}", command.get_name());
    write(out, &format!("\n{} {name}\n\n", "#".repeat(level)));
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        write(out, &format!("{about}\n\n"));
    }
    if command.has_subcommands() {
        for sub in command.get_subcommands() {
            describe(out, sub, &name, level + 1);
        }
        return;
    }
    let usage = command.clone().render_usage().to_string();
    write(
        out,
        &format!("```text\n{}\n```\n", usage.trim_start_matches("Usage: ")),
    );
    let shown = |arg: &&Arg| !arg.is_global_set() && !arg.is_hide_set();
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(shown)
        .filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"))
        .collect();
    if !arguments.is_empty() {
        write(out, "\n");
    }
    for arg in arguments {
        option(out, arg);
    }
    if let Some(example) = command.get_after_help() {
        let example = example.to_string();
        let lines: Vec<&str> = example
            .lines()
            .skip(1)
            .map(|line| line.strip_prefix("  ").unwrap_or(line))
            .collect();
        write(out, &format!("\n```sh\n{}\n```\n", lines.join("\n")));
    }
}

fn option(out: &mut String, arg: &Arg) {
    let mut forms = Vec::new();
    forms.extend(arg.get_short().map(|short| format!("-{short}")));
    forms.extend(arg.get_long().map(|long| format!("--{long}")));
    let mut name = forms.join(", ");
    if arg.get_action().takes_values() {
        let values: Vec<String> = arg
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(|value| {
                if arg.is_positional() {
                    value.to_string()
                } else {
                    format!("<{value}>")
                }
            })
            .collect();
        if !name.is_empty() {
            name.push(' ');
        }
        name.push_str(&values.join(" "));
    }
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !matches!(value.get_name(), "true" | "false"))
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !choices.is_empty() {
        write(&mut text, &format!(" One of {}.", choices.join(", ")));
    }
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        write(&mut text, &format!(" Default: `{}`.", defaults.join(" ")));
    }
    if let Some(variable) = arg.get_env() {
        write(
            &mut text,
            &format!(" Variable: `{}`.", variable.to_string_lossy()),
        );
    }
    write(out, &format!("- `{name}`: {text}\n"));
}

fn write(out: &mut String, text: &str) {
    // Writing to a String has no way to fail.
    if out.write_str(text).is_err() {
        out.push('?');
    }
}
