//! Measures outlive beside its floors and peers, in the same run.
//!
//! A floor is the least that the same work costs on this machine without us: `cat` into a file,
//! bytes through a plain TCP connection, a bare `posix_spawn`. Each row takes both in turns and
//! shows the ratio, since ratios stand still where figures of a shared machine do not.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

mod floor;
mod host;
mod report;
mod rows;

/// Measures outlive beside its floors and peers.
///
/// Example: `outlive-bench --rows ingest,create --quick`
#[derive(Debug, Parser)]
struct Options {
    /// Only these groups of rows, separated by commas.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// How often each side is measured; the median of an odd number is shown.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Divides the amounts of work.
    #[arg(long, default_value_t = 1)]
    shrink: u64,
    /// One round of an eighth of the work: a look, not a measurement.
    #[arg(long, conflicts_with_all = ["rounds", "shrink"])]
    quick: bool,
    /// Write the page here.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Where journals and floors put their files; default is the directory of temporary files.
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Append this file to the page: what the figures mean.
    #[arg(long, default_value = "bench/notes.md")]
    notes: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::say(&format!("outlive-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let parent = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = tempfile::tempdir_in(&parent)?;
    let bench = rows::Bench {
        host: std::cell::OnceCell::new(),
        scratch: scratch.path(),
        rounds: if options.quick { 1 } else { options.rounds },
        shrink: if options.quick { 8 } else { options.shrink },
    };
    report::say(report::TABLE);
    let mut all = Vec::new();
    for (name, measure) in rows::GROUPS {
        if !options.rows.is_empty() && !options.rows.iter().any(|wanted| wanted == name) {
            continue;
        }
        let measured = measure(&bench).with_context(|| format!("group {name}"))?;
        measured.iter().for_each(report::show);
        all.extend(measured);
    }
    if let Some(page) = &options.write {
        let notes = std::fs::read_to_string(&options.notes).unwrap_or_default();
        report::write(page, &all, bench.rounds, bench.shrink, &notes)?;
    }
    Ok(())
}
