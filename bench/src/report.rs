//! Rows, ratios and the page that shows them.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Result;

/// Which way is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    /// The ratio should be at least the bar.
    Higher,
    /// The ratio should be at most the bar.
    Lower,
}

/// One measured row: medians of ours and of the floor, taken in turns.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) name: String,
    /// Our median.
    pub(crate) ours: f64,
    /// The floor's median.
    pub(crate) floor: f64,
    /// Unit of both.
    pub(crate) unit: &'static str,
    /// What the floor is.
    pub(crate) against: &'static str,
    /// Where the ratio should be.
    pub(crate) bar: f64,
    /// Which way is good.
    pub(crate) better: Better,
}

impl Row {
    /// Ours over the floor's.
    pub(crate) fn ratio(&self) -> f64 {
        if self.floor == 0.0 {
            f64::INFINITY
        } else {
            self.ours / self.floor
        }
    }

    /// How far the ratio is from its bar: 1 and below is on the good side.
    pub(crate) fn distance(&self) -> f64 {
        match self.better {
            Better::Higher => self.bar / self.ratio(),
            Better::Lower => self.ratio() / self.bar,
        }
    }

    fn line(&self) -> String {
        let sign = match self.better {
            Better::Higher => "≥",
            Better::Lower => "≤",
        };
        let verdict = match self.distance() {
            far if far <= 1.0 => "met".to_owned(),
            far => format!("{far:.1}× from it"),
        };
        format!(
            "| {} | {} {} | {} {} | {} | {:.2}× | {sign} {}× | {verdict} |",
            self.name,
            figure(self.ours),
            self.unit,
            figure(self.floor),
            self.unit,
            self.against,
            self.ratio(),
            self.bar,
        )
    }
}

fn figure(value: f64) -> String {
    match value.abs() {
        big if big >= 100.0 => format!("{value:.0}"),
        mid if mid >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// The middle of the values; they are measured an odd number of times.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value below which `share` of the values lie.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let at = ((values.len() as f64 - 1.0) * share).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// Tells the person at the terminal.
#[expect(clippy::print_stdout, reason = "the program's answer")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// Head of the table.
pub(crate) const TABLE: &str =
    "| measure | ours | floor | what the floor is | ratio | bar | |\n|---|---|---|---|---|---|---|";

/// Prints one row.
pub(crate) fn show(row: &Row) {
    say(&row.line());
}

/// Writes the page.
pub(crate) fn write(
    path: &Path,
    rows: &[Row],
    rounds: usize,
    shrink: u64,
    notes: &str,
) -> Result<()> {
    let mut page = String::from(
        "# Performance\n\nEvery row is a ratio between outlive and a floor or a peer, measured in the same run, in turns;\nthe figures beside it are medians. Repeat it with\n\n```sh\ncargo build --release && cargo xtask agent && target/release/outlive-bench --write docs/performance.md\n```\n\n",
    );
    writeln!(
        page,
        "{} Taken with `--rounds {rounds} --shrink {shrink}`.\n\n{TABLE}",
        machine()
    )?;
    for row in rows {
        writeln!(page, "{}", row.line())?;
    }
    let met = rows.iter().filter(|row| row.distance() <= 1.0).count();
    writeln!(
        page,
        "\n{met} of {} rows meet their bar.\n\n{notes}",
        rows.len()
    )?;
    fs::write(path, page.trim_end().to_owned() + "\n")?;
    Ok(())
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown");
    let cores = cpu
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "Machine: {cores} cores ({}), kernel {}. Journals are synced by commit class as in production; output by group sync.",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim().split('-').next().unwrap_or("")
    )
}
