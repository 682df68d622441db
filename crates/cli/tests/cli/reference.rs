//! The command line explains itself, and its reference says the same.

use std::{env, fs, path::Path};

use crate::support::Outlive;

use clap::{Command, CommandFactory};
use outlive_cli::{args::Cli, reference};

#[test]
fn the_reference_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let text = reference::markdown();
    if env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/reference/cli.md is stale: UPDATE=1 cargo test -p outlive-cli reference"
    );
}

#[test]
fn the_definitions_are_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_help_with_an_example() {
    fn walk(command: &Command, path: &str, count: &mut usize) {
        let path = format!("{path} {}", command.get_name());
        let help = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(
            help.starts_with("Example:\n  "),
            "`{path}` shows no example"
        );
        assert!(
            help.contains("outlive"),
            "`{path}` shows an example of something else"
        );
        assert!(
            command.get_about().is_some(),
            "`{path}` says nothing about itself"
        );
        for arg in command.get_arguments() {
            assert!(
                arg.get_help().is_some(),
                "`{path}` does not explain {}",
                arg.get_id()
            );
        }
        *count += 1;
        for sub in command.get_subcommands() {
            walk(sub, &path, count);
        }
    }
    let mut count = 0;
    walk(&Cli::command(), "", &mut count);
    assert!(count >= 30, "only {count} commands were found");
}

#[test]
fn every_example_can_be_parsed() {
    fn walk(command: &Command, root: &Command) {
        let help = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        for line in help.lines().skip(1) {
            let Some(start) = line.find("outlive") else {
                continue;
            };
            let example = line.split_at(start).1;
            let words: Vec<String> = example
                .split(" > ")
                .next()
                .unwrap_or(example)
                .trim_end_matches(" &")
                .split_whitespace()
                .map(|word| word.replace('\'', ""))
                .collect();
            if let Err(error) = root.clone().try_get_matches_from(&words) {
                panic!("the example `{line}` is wrong: {error}");
            }
        }
        for sub in command.get_subcommands() {
            walk(sub, root);
        }
    }
    let root = Cli::command();
    walk(&root, &root);
}

// `outlive cp` proposed `completions`, and a command without `--` got no proposal at all.
#[tokio::test]
async fn what_other_programs_take_is_answered_with_the_way_here() {
    let outlive = Outlive::without_server();
    for (line, way) in [
        ("exec sbx-1 -- ls", "outlive sandbox exec"),
        ("cp a sbx-1:/b", "outlive sandbox cp"),
        ("ssh sbx-1", "outlive sandbox exec -it SANDBOX -- bash"),
        ("attach sbx-1 ses-1", "outlive session attach"),
        ("rm sbx-1", "outlive sandbox delete"),
        ("images", "outlive image list"),
        ("run echo hi", "-- echo …"),
        ("run --rm echo -n hi", "-- echo …"),
        ("sandbox exec sbx-1 ls", "-- ls …"),
    ] {
        let done = outlive.run(line).await.expect(2);
        assert!(done.stderr.contains(way), "{line}: {}", done.stderr);
        assert!(!done.stderr.contains("completions"), "{}", done.stderr);
    }
    // What is no word of anybody, and an unknown flag, are told as before.
    for line in ["frobnicate", "run --frobnicate -- ls", "image list x"] {
        let done = outlive.run(line).await.expect(2);
        assert!(!done.stderr.contains("there is"), "{}", done.stderr);
        assert!(!done.stderr.contains("…"), "{}", done.stderr);
    }
}
