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
