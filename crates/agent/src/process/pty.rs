//! Pseudo terminals: made in the sandbox's own `/dev/pts`, so that `tty` inside names them.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, openat},
    pipe::{PipeFlags, pipe_with},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{
        InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Winsize, tcgetattr, tcsetattr,
        tcsetwinsize,
    },
};

use super::pipes::{self, Owner};
use crate::limits::CANONICAL_LINE_BYTES_MAX;

/// A new terminal.
#[derive(Debug)]
pub struct Pty {
    /// Our side, non-blocking.
    pub master: OwnedFd,
    /// The child's side, owned by the child's user.
    pub slave: OwnedFd,
    /// Read end of the spill pipe.
    pub spill_read: OwnedFd,
    /// Write end of the spill pipe.
    pub spill_write: OwnedFd,
}

/// Makes a terminal of this size, in the sandbox whose root directory is `root`, or in ours.
pub fn open(root: Option<BorrowedFd<'_>>, rows: u16, cols: u16, owner: Owner) -> io::Result<Pty> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = match root {
        Some(root) => openat(
            root,
            "dev/pts/ptmx",
            OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        )?,
        None => openpt(flags)?,
    };
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    pipes::own(&slave, owner)?;
    let mut modes = tcgetattr(&slave)?;
    // Erasing a character in line mode takes all its bytes.
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&slave, OptionalActions::Now, &modes)?;
    resize(&master, rows, cols)?;
    pipes::set_nonblocking(&master)?;
    let (spill_read, spill_write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok(Pty {
        master,
        slave,
        spill_read,
        spill_write,
    })
}

/// Sets the size; the kernel tells the foreground group (`SIGWINCH`) when it changed.
pub fn resize(master: impl AsFd, rows: u16, cols: u16) -> io::Result<()> {
    tcsetwinsize(
        master,
        Winsize {
            ws_row: rows,
            ws_col: cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )?;
    Ok(())
}

/// What end of file means to the terminal right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EofCharacter {
    /// Line mode: this byte ends the input when it comes at the start of a line. Sent in the
    /// middle of one it only passes the line on, so send it twice there.
    Byte(u8),
    /// Raw mode: no character means anything.
    None,
}

/// Asks the terminal's line discipline for its end-of-file character.
pub fn eof_character(master: impl AsFd) -> io::Result<EofCharacter> {
    let modes = tcgetattr(master)?;
    let byte = modes.special_codes[SpecialCodeIndex::VEOF];
    if modes.local_modes.contains(LocalModes::ICANON) && byte != 0 {
        Ok(EofCharacter::Byte(byte))
    } else {
        Ok(EofCharacter::None)
    }
}

/// The characters that end a line in canonical mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineEnds(Vec<u8>);

impl LineEnds {
    /// Whether the line that `begun` bytes of are there already, or one of those in `data`, is
    /// longer than the terminal takes. Characters that edit the line are counted like others.
    pub fn overflow(&self, begun: usize, data: &[u8]) -> bool {
        let mut length = begun;
        for piece in data.split_inclusive(|byte| self.0.contains(byte)) {
            let is_whole = piece.last().is_some_and(|byte| self.0.contains(byte));
            if length + piece.len() - usize::from(is_whole) > CANONICAL_LINE_BYTES_MAX {
                return true;
            }
            length = if is_whole { 0 } else { length + piece.len() };
        }
        false
    }
}

/// Asks the line discipline how lines end; `None` when it does not work line by line.
pub fn line_ends(master: impl AsFd) -> io::Result<Option<LineEnds>> {
    let modes = tcgetattr(master)?;
    if !modes.local_modes.contains(LocalModes::ICANON) {
        return Ok(None);
    }
    let mut ends = vec![b'\n'];
    if modes.input_modes.contains(InputModes::ICRNL) {
        ends.push(b'\r');
    }
    for code in [
        SpecialCodeIndex::VEOF,
        SpecialCodeIndex::VEOL,
        SpecialCodeIndex::VEOL2,
    ] {
        ends.extend(Some(modes.special_codes[code]).filter(|byte| *byte != 0));
    }
    Ok(Some(LineEnds(ends)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_overflows_with_its_4096th_byte() {
        let ends = LineEnds(vec![b'\n', 4]);
        let line = |bytes: usize, end: &str| [vec![b'l'; bytes], end.into()].concat();
        assert!(!ends.overflow(0, &line(4095, "\n")));
        assert!(ends.overflow(0, &line(4096, "\n")));
        assert!(ends.overflow(0, &line(4096, "")));
        assert!(ends.overflow(4000, &line(96, "\x04")));
        assert!(!ends.overflow(4000, &line(95, "\x04")));
        assert!(!ends.overflow(4000, &[line(0, "\n"), line(4000, "\n")].concat()));
    }
}
