//! The program that runs inside a session while it is measured, and bare for the floors.
//!
//! `write SIZE TOTAL` writes TOTAL bytes in writes of SIZE; `stamps COUNT GAP_US` writes lines
//! that carry the boot-independent monotonic clock, so that a reader on the same machine can tell
//! how long a line was under way; `lines COUNT LENGTH` writes numbered lines in one write each.
#![expect(clippy::print_stderr, reason = "a program for a terminal")]

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize| {
        words
            .get(at)
            .and_then(|word| word.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let done = match words.first().map(String::as_str) {
        Some("write") => write(number(1), number(2)),
        Some("stamps") => stamps(number(1), Duration::from_micros(number(2))),
        Some("lines") => lines(number(1), number(2)),
        _ => Err(io::Error::other(
            "usage: write SIZE TOTAL | stamps COUNT GAP_US | lines COUNT LENGTH",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-child: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(size: u64, total: u64) -> io::Result<()> {
    let size = usize::try_from(size.max(1)).unwrap_or(1);
    let block = vec![b'x'; size];
    let mut left = usize::try_from(total).unwrap_or(usize::MAX);
    let stdout = io::stdout().lock();
    while left > 0 {
        let part = block.get(..left.min(size)).unwrap_or(&block);
        let count = rustix::io::write(&stdout, part)?;
        left -= count;
    }
    Ok(())
}

fn stamps(count: u64, gap: Duration) -> io::Result<()> {
    let stdout = io::stdout().lock();
    for _ in 0..count {
        thread::sleep(gap);
        let now = clock_gettime(ClockId::Monotonic);
        let line = format!("@{:020}\n", now.tv_sec * 1_000_000_000 + now.tv_nsec);
        rustix::io::write(&stdout, line.as_bytes())?;
    }
    Ok(())
}

fn lines(count: u64, length: u64) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let width = usize::try_from(length).unwrap_or(20).max(2) - 1;
    for number in 0..count {
        stdout.write_all(format!("{number:0width$}\n").as_bytes())?;
    }
    stdout.flush()
}
