//! What people see while something takes its time: words and a clock, on a terminal only.

use std::{
    future::Future,
    io::{IsTerminal as _, Write as _},
    pin::pin,
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    args::Format,
    clock::Stopwatch,
    limits::{SPINNER_DELAY, SPINNER_TICK},
};

const FRAMES: [char; 4] = ['|', '/', '-', '\\'];

/// Does the work, and says so when it takes longer than a moment. Programs that read us see
/// nothing of it.
pub async fn waiting<T>(format: Format, words: &str, work: impl Future<Output = T>) -> T {
    if format != Format::Table || !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = pin!(work);
    let started = Stopwatch::start();
    let mut ticks = interval(SPINNER_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut line = Line::Clear;
    for frame in FRAMES.into_iter().cycle() {
        tokio::select! {
            done = &mut work => {
                drop(line);
                return done;
            }
            _ = ticks.tick() => {
                let elapsed = started.elapsed();
                if elapsed >= SPINNER_DELAY {
                    line = Line::Written;
                    draw(&format!("\r{}\x1b[K", text(frame, words, elapsed)));
                }
            }
        }
    }
    work.await // The frames never end.
}

fn text(frame: char, words: &str, elapsed: Duration) -> String {
    format!("{frame} {words}, {} s", elapsed.as_secs())
}

/// The line of the terminal that is ours while we wait.
enum Line {
    Clear,
    Written,
}

impl Drop for Line {
    /// Whatever ends the wait leaves the line as it was.
    fn drop(&mut self) {
        if matches!(self, Self::Written) {
            draw("\r\x1b[K");
        }
    }
}

/// Writes to the terminal's own line.
pub(crate) fn draw(text: &str) {
    let mut out = std::io::stderr().lock();
    // Words that nobody sees are no reason to stop.
    if out
        .write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        drop(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_takes_how_long() {
        let line = text('/', "pausing sbx-1", Duration::from_millis(2900));
        assert_eq!(line, "/ pausing sbx-1, 2 s");
    }
}
