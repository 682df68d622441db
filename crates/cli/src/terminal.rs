//! The local terminal: raw while a program has it, its size, and the keys that detach.

use std::{
    io::{self, IsTerminal, Read},
    str::FromStr,
};

use bytes::Bytes;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use crate::{
    error::{Failure, Result},
    limits::{STDIN_CHUNK_BYTES, STDIN_CHUNKS_MAX},
};

/// Lines and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// The size of the terminal we are on, if we are on one.
pub fn size() -> Option<Size> {
    let size = tcgetwinsize(io::stdout())
        .or_else(|_| tcgetwinsize(io::stdin()))
        .ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(Size {
        rows: size.ws_row,
        cols: size.ws_col,
    })
}

/// Whether the standard input is a terminal.
pub fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// The local terminal in raw mode, until dropped.
pub struct RawMode(Termios);

impl std::fmt::Debug for RawMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RawMode")
    }
}

impl RawMode {
    /// Every key goes to the program from now on.
    pub fn enter() -> Result<Self> {
        let fail =
            |error: rustix::io::Errno| Failure::new("terminal", format!("raw mode: {error}"));
        let before = tcgetattr(io::stdin()).map_err(fail)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw).map_err(fail)?;
        Ok(Self(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        match tcsetattr(io::stdin(), OptionalActions::Drain, &self.0) {
            Ok(()) | Err(rustix::io::Errno::IO) => {} // Else it is gone.
            Err(error) => crate::output::note(&format!(
                "the terminal could not be restored ({error}); type `reset`"
            )),
        }
    }
}

/// Reads the standard input on a thread of its own: a read that never returns must not keep the
/// command from ending.
pub fn read_stdin() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(STDIN_CHUNKS_MAX);
    std::thread::spawn(move || {
        let mut buffer = vec![0; STDIN_CHUNK_BYTES];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    let chunk = buffer.get(..length).unwrap_or_default();
                    if sender.blocking_send(Bytes::copy_from_slice(chunk)).is_err() {
                        return; // The command is over; nobody reads on.
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal that is gone has no more to say.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) =>
                {
                    return;
                }
                Err(error) => {
                    crate::output::note(&format!("read standard input: {error}"));
                    return;
                }
            }
        }
    });
    receiver
}

/// The keys that leave a session running and detach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

impl FromStr for DetachKeys {
    type Err = String;

    /// `ctrl-p,ctrl-q`, single characters, or `none`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        text.split(',')
            .map(key)
            .collect::<std::result::Result<_, _>>()
            .map(Self)
    }
}

fn key(text: &str) -> std::result::Result<u8, String> {
    let bad = || format!("`{text}` is no key; write keys as ctrl-p,ctrl-q or none");
    if let Some(name) = text.strip_prefix("ctrl-") {
        return match name.as_bytes() {
            [byte @ (b'a'..=b'z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')] => {
                Ok(byte.to_ascii_uppercase() & 0x1f)
            }
            _ => Err(bad()),
        };
    }
    match text.as_bytes() {
        [byte] if byte.is_ascii_graphic() => Ok(*byte),
        _ => Err(bad()),
    }
}

/// Looks for the detach keys in what is typed.
#[derive(Debug)]
pub struct Typed {
    keys: Vec<u8>,
    matched: usize,
}

/// Whether the detach keys were typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detach {
    /// Not yet.
    No,
    /// All of them.
    Yes,
}

impl Typed {
    /// Nothing was typed yet.
    pub fn new(keys: &DetachKeys) -> Self {
        Self {
            keys: keys.0.clone(),
            matched: 0,
        }
    }

    /// What of `typed` goes to the program; a part of the keys is held until it is decided.
    pub fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, Detach) {
        let mut out = Vec::with_capacity(typed.len());
        for byte in typed {
            if self.keys.get(self.matched) == Some(byte) {
                self.matched += 1;
                if self.matched == self.keys.len() {
                    self.matched = 0;
                    return (out, Detach::Yes);
                }
                continue;
            }
            out.extend(self.keys.iter().take(self.matched));
            self.matched = usize::from(self.keys.first() == Some(byte));
            if self.matched == 0 {
                out.push(*byte);
            }
        }
        (out, Detach::No)
    }
}

#[cfg(test)]
mod tests {
    use super::{Detach, DetachKeys, Typed};

    #[test]
    fn the_detach_keys_are_found_across_reads_and_nothing_else_is_lost() {
        let keys: DetachKeys = "ctrl-p,ctrl-q".parse().unwrap();
        let mut typed = Typed::new(&keys);
        assert_eq!(typed.pass(b"ls\r"), (b"ls\r".to_vec(), Detach::No));
        assert_eq!(typed.pass(b"\x10"), (vec![], Detach::No));
        assert_eq!(typed.pass(b"x\x10"), (b"\x10x".to_vec(), Detach::No));
        assert_eq!(typed.pass(b"\x10"), (b"\x10".to_vec(), Detach::No));
        assert_eq!(typed.pass(b"\x11rest"), (vec![], Detach::Yes));
    }

    #[test]
    fn keys_are_written_by_name() {
        assert_eq!("ctrl-p,ctrl-q".parse(), Ok(DetachKeys(vec![0x10, 0x11])));
        assert_eq!("ctrl-],q".parse(), Ok(DetachKeys(vec![0x1d, b'q'])));
        assert_eq!("none".parse(), Ok(DetachKeys(vec![])));
        for bad in ["", "ctrl-", "ctrl-é", "ab", "ctrl-pp"] {
            assert!(bad.parse::<DetachKeys>().is_err(), "{bad}");
        }
        let mut none = Typed::new(&DetachKeys(vec![]));
        assert_eq!(none.pass(b"\x10\x11"), (b"\x10\x11".to_vec(), Detach::No));
    }
}
