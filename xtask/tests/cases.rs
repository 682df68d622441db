//! The list of cases is true: each file that it names for a row does name that row.

use std::collections::BTreeSet;
use std::path::Path;

const LIST: &str = "docs/internals/cases.md";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the repository")
}

/// The rows of the tables: the row's name and its last cell.
fn rows(list: &str) -> Vec<(&str, &str)> {
    list.lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
            let [row, _, tested] = cells[..] else {
                return None;
            };
            let is_row = row.starts_with(|c: char| c.is_ascii_uppercase())
                && row[1..].chars().all(|c| c.is_ascii_digit());
            is_row.then(|| (row, tested.trim_end_matches(" |")))
        })
        .collect()
}

/// Whether some comment of the text says `case ROW`, alone or in a list of rows.
fn names(text: &str, row: &str) -> bool {
    text.lines().any(|line| {
        line.split_once("case").is_some_and(|(_, after)| {
            after
                .split(|c: char| !c.is_ascii_alphanumeric())
                .any(|word| word == row)
        })
    })
}

#[test]
fn every_listed_test_names_its_row() {
    let list = std::fs::read_to_string(repository().join(LIST)).expect("the list of cases exists");
    let rows = rows(&list);
    assert!(
        rows.len() > 140,
        "the tables were not understood: {} rows",
        rows.len()
    );
    let mut seen = BTreeSet::new();
    for (row, tested) in rows {
        assert!(seen.insert(row), "{row} is listed twice");
        let files: Vec<&str> = tested.split('`').skip(1).step_by(2).collect();
        let waits = tested.starts_with("waits: ");
        assert!(
            waits || !files.is_empty(),
            "{row} has neither a test nor a reason"
        );
        for file in files.iter().filter(|_| !waits) {
            let text = std::fs::read_to_string(repository().join(file))
                .unwrap_or_else(|error| panic!("{row}: {file}: {error}"));
            assert!(names(&text, row), "{file} does not name {row}");
        }
    }
}
