//! Locks of one byte of a file, which go with the descriptor, however its owner ends. They know
//! nothing of `flock`, nor it of them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use super::check;

/// Locks a byte together with whoever else does. No byte has to be there; the file has to be open
/// for reading.
pub fn share_byte(file: BorrowedFd<'_>, byte: u64) -> io::Result<()> {
    ask(file, libc::F_OFD_SETLK, byte, libc::F_RDLCK).map(drop)
}

/// Whether anybody else has a byte locked.
pub fn is_byte_shared(file: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    let in_the_way = ask(file, libc::F_OFD_GETLK, byte, libc::F_WRLCK)?;
    Ok(in_the_way != libc::F_UNLCK)
}

fn ask(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    byte: u64,
    kind: libc::c_int,
) -> io::Result<libc::c_int> {
    let mut lock = libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(io::Error::other)?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(io::Error::other)?,
        l_start: libc::off_t::try_from(byte).map_err(io::Error::other)?,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the command reads and writes one such struct, which is ours.
    check(libc::c_long::from(unsafe {
        libc::fcntl(file.as_raw_fd(), command, &raw mut lock)
    }))?;
    Ok(lock.l_type.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_byte_is_shared_until_the_last_descriptor_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [first, second, asking] = [(); 3].map(|()| file.reopen().unwrap());
        let is_shared = |byte| is_byte_shared(asking.as_fd(), byte).unwrap();
        assert!(!is_shared(4_026_531_840));
        share_byte(first.as_fd(), 4_026_531_840).unwrap();
        share_byte(second.as_fd(), 4_026_531_840).unwrap();
        assert!(is_shared(4_026_531_840));
        assert!(!is_shared(4_026_531_841));
        drop(first);
        assert!(is_shared(4_026_531_840));
        drop(second);
        assert!(!is_shared(4_026_531_840));
    }
}
