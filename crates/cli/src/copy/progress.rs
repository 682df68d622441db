//! How far a copy is, on a terminal.

use std::io::IsTerminal as _;

use crate::{clock::Stopwatch, limits::PROGRESS_INTERVAL, waiting::draw};

/// Columns of the bar.
const BAR_COLUMNS: u64 = 30;

/// See the module.
#[derive(Debug)]
pub(super) struct Progress {
    total: Option<u64>,
    /// When it was drawn last; none when nothing is drawn at all.
    drawn: Option<Stopwatch>,
    shown: bool,
}

impl Progress {
    /// Draws only for people.
    pub(super) fn new(total: Option<u64>, quiet: bool) -> Self {
        let seen = !quiet && std::io::stderr().is_terminal();
        Self {
            total: total.filter(|total| *total > 0),
            drawn: seen.then(Stopwatch::start),
            shown: false,
        }
    }

    /// So many bytes are copied.
    pub(super) fn at(&mut self, bytes: u64) {
        let Some(drawn) = &mut self.drawn else { return };
        if drawn.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        *drawn = Stopwatch::start();
        self.shown = true;
        draw(&format!("\r{}\x1b[K", line(bytes, self.total)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            draw("\r\x1b[K");
        }
    }
}

fn line(bytes: u64, total: Option<u64>) -> String {
    let Some(total) = total else {
        return size(bytes);
    };
    let done = bytes.min(total);
    let full = done * BAR_COLUMNS / total;
    let bar: String = (0..BAR_COLUMNS)
        .map(|column| if column < full { '#' } else { '.' })
        .collect();
    let percent = done * 100 / total;
    format!("[{bar}] {percent:3}%  {} of {}", size(bytes), size(total))
}

fn size(bytes: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", bytes / unit, bytes % unit * 10 / unit);
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", tenths(1 << 10)),
        1_048_576..1_073_741_824 => format!("{} MiB", tenths(1 << 20)),
        _ => format!("{} GiB", tenths(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_far_it_is() {
        let half = line(5 << 20, Some(10 << 20));
        assert_eq!(
            half,
            format!(
                "[{}{}]  50%  5.0 MiB of 10.0 MiB",
                "#".repeat(15),
                ".".repeat(15)
            )
        );
        assert_eq!(line(1536, None), "1.5 KiB");
    }
}
