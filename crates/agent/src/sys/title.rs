//! What a process is called, for a program that goes on as something else.

use std::{io, ptr};

/// Where `/proc/PID/stat` says that the arguments begin, counted after the name: of four numbers, where
/// they and the environment begin and end.
const ARGUMENTS_AT: usize = 45;

/// Writes the arguments of this process anew, as `/proc/PID/cmdline` shows them, and its environment
/// empty. What is longer than the arguments that the program was started with is cut.
///
/// Only for a program with one thread.
pub fn set_title(arguments: &[&str]) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let malformed = || io::Error::other("malformed /proc/self/stat");
    let (_, after_name) = stat.rsplit_once(')').ok_or_else(malformed)?;
    let mut numbers = after_name
        .split_whitespace()
        .skip(ARGUMENTS_AT)
        .map(|number| number.parse::<usize>().map_err(|_| malformed()));
    let mut number = || numbers.next().ok_or_else(malformed)?;
    let (begin, end) = (number()?, number()?);
    let (environment, environment_end) = (number()?, number()?);
    let mut text: Vec<u8> = arguments
        .iter()
        .flat_map(|argument| argument.bytes().chain([0]))
        .collect();
    // The last byte stays zero: else the kernel takes the environment for a part of it.
    text.truncate((end - begin).saturating_sub(1));
    text.resize(end - begin, 0);
    // SAFETY: the kernel put the arguments there when it started this program; they are ours to write.
    // No reference to them lives: the library makes copies, by pointers to strings that stay where
    // they were and end where they did at the latest, and no other thread makes one now.
    unsafe {
        ptr::copy_nonoverlapping(
            text.as_ptr(),
            ptr::with_exposed_provenance_mut(begin),
            text.len(),
        );
    }
    // SAFETY: as above, for the environment, which is behind them.
    unsafe {
        ptr::write_bytes::<u8>(
            ptr::with_exposed_provenance_mut(environment),
            0,
            environment_end - environment,
        );
    }
    Ok(())
}
