//! What people and programs see: tables, JSON, YAML, and streams of bytes.
//!
//! Everything goes through here so that a closed pipe (`outlive … | head`) ends a command
//! quietly instead of with a panic.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    sync::OnceLock,
};

use serde_json::{Value, json};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::{
    args::Format,
    error::{Failure, Result},
};

/// Exit code when the reader of our output is gone: that of a death by SIGPIPE.
const EXIT_PIPE_CLOSED: u8 = 141;

/// The code of a failure that needs no words: the reader of our output is gone.
pub const OUTPUT_CLOSED: &str = "output_closed";

/// The code of a failure to write our output.
const OUTPUT_FAILED: &str = "output";

/// Whether it was our own output that failed, and nothing else.
pub fn is_about_output(failure: &Failure) -> bool {
    matches!(failure.code.as_str(), OUTPUT_CLOSED | OUTPUT_FAILED)
}

/// Prints an answer in the format asked for; `table` makes the form for people.
pub fn print(format: Format, value: &Value, table: impl FnOnce(&Value) -> String) -> Result<()> {
    let text = match format {
        Format::Table => table(value),
        Format::Json => pretty(value),
        Format::Yaml => yaml(value)?,
    };
    stdout_line(text.trim_end_matches('\n'))
}

/// JSON over several lines.
pub fn pretty(value: &Value) -> String {
    format!("{value:#}")
}

/// YAML.
pub fn yaml(value: &Value) -> Result<String> {
    serde_saphyr::to_string(value)
        .map_err(|error| Failure::new("output", format!("this can't be written as YAML: {error}")))
}

/// Writes a line to the standard output.
pub fn stdout_line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| closed(&error))
}

/// How this process tells things beside its output, once the flags and the profile are known.
static TOLD_AS: OnceLock<Format> = OnceLock::new();

/// Sets how notes and failures are told. The first one holds: flags come before a profile.
pub fn tell_as(format: Format) {
    TOLD_AS.get_or_init(|| format);
}

fn told_as() -> Format {
    TOLD_AS.get().copied().unwrap_or(Format::Table)
}

/// Tells a failure on the standard error.
pub fn report(failure: &Failure) {
    if failure.code == OUTPUT_CLOSED {
        return;
    }
    let text = match told_as() {
        Format::Json => failure.to_json().to_string(),
        Format::Table | Format::Yaml => failure.to_string(),
    };
    stderr_line(&text);
}

/// Says something beside the output, on the standard error: for people with our name before it, on
/// a line of its own after an empty one if it begins with that; for programs as one object.
pub fn note(text: &str) {
    let (gap, words) = match text.strip_prefix('\n') {
        Some(rest) => ("\n", rest),
        None => ("", text),
    };
    let line = match told_as() {
        Format::Json => json!({"note": words.replace('\r', "")}).to_string(),
        Format::Table | Format::Yaml => format!("{gap}outlive: {words}"),
    };
    stderr_line(&line);
}

/// Writes a line to the standard error.
pub fn stderr_line(text: &str) {
    // Nobody is left to tell when the standard error itself can't be written.
    if let Err(error) = writeln!(io::stderr().lock(), "{text}") {
        drop(error);
    }
}

/// Writes bytes of a program as they are, at once.
pub async fn pass_on(out: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<()> {
    out.write_all(bytes).await.map_err(|error| closed(&error))?;
    out.flush().await.map_err(|error| closed(&error))
}

fn closed(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::new(OUTPUT_CLOSED, "nobody reads the output any more").with_exit(EXIT_PIPE_CLOSED)
    } else {
        Failure::new(
            OUTPUT_FAILED,
            format!("the output can't be written: {error}"),
        )
        .with_next("is there room where it goes, and may it be written?")
    }
}

/// Columns with a heading, aligned by spaces.
pub fn columns<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(|text| text.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let mut line = |cells: [&str; N]| {
        let start = out.len();
        for (cell, width) in cells.iter().zip(widths) {
            push(&mut out, format_args!("{cell:<width$}  "));
        }
        let end = out.get(start..).map_or(0, |line| line.trim_end().len());
        out.truncate(start + end);
        out.push('\n');
    };
    line(heading);
    for row in rows {
        line(row.each_ref().map(String::as_str));
    }
    out
}

/// Names and values, one a line; empty values are left out.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        push(
            &mut out,
            format_args!("{name:<width$}  {}\n", value.trim_end()),
        );
    }
    out
}

fn push(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String has no way to fail.
    if out.write_fmt(arguments).is_err() {
        out.push('?');
    }
}

/// The text of a field for a table: strings as they are, nothing for what is missing.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => crate::event::escaped(text).into_owned(),
        other => other.to_string(),
    }
}

/// A time for people: `2026-01-31 12:34:56`, UTC. Times that say "not set" are left out.
pub fn time(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    if text.starts_with("0001-01-01") {
        return String::new();
    }
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => crate::event::escaped(text).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{columns, fields, json, time};

    #[test]
    fn tables_align_and_end_without_spaces() {
        let rows = [["ses-1".into(), "café".into(), String::new()]];
        assert_eq!(
            columns(["ID", "NAME", "PID"], &rows),
            "ID     NAME  PID\nses-1  café\n"
        );
        assert_eq!(
            fields(&[("a", "1".into()), ("bcd", String::new())]),
            "a    1\n"
        );
    }

    #[test]
    fn times_are_short_and_unset_times_are_empty() {
        assert_eq!(
            time(&json!("2026-01-31T12:34:56.789123456Z")),
            "2026-01-31 12:34:56"
        );
        assert_eq!(time(&json!("0001-01-01T00:00:00Z")), "");
        assert_eq!(time(&json!(null)), "");
    }
}
