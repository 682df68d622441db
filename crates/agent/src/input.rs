//! Bytes on their way into one attempt.
//!
//! A write that fits goes straight to the child. What doesn't fit waits in a *spool*: a memory
//! file whose description the keeper holds too. `sendfile` moves bytes from it to the child and
//! advances the file's own position in the same system call, so a supervisor that is killed
//! anywhere leaves a spool whose position tells its successor exactly what the child got: no
//! accepted byte is lost and none is written twice.
//!
//! ```text
//!   push ──(nothing waits)──► child                       EOF waits its turn like a byte
//!     └────(else)──► spool ──sendfile──► child ──(empty)──► EOF
//! ```

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use outlive_core::limits::{INPUT_QUEUE_BYTES_MAX, INPUT_QUEUE_WRITES_MAX};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SeekFrom},
    io::Errno,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::sys;

/// A terminal's kernel buffer may drain without telling writers: look again after this long, as
/// long as bytes wait for it.
const TERMINAL_RETRY: Duration = Duration::from_millis(10);

/// Spooled bytes that were written before their memory is given back.
const SPOOL_TRIM_BYTES: u64 = 1024 * 1024;

/// What reads the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The write end of a pipe: EOF is closing it.
    Pipe,
    /// The master of a terminal: EOF is a character.
    Terminal,
}

/// Whether EOF waits at the end of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eof {
    /// None.
    No,
    /// After the bytes.
    Queued,
    /// After the bytes, and for a terminal by hanging it up.
    Hangup,
}

/// What the driver has to do after bytes moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Bytes wait: call [`InputQueue::ready`] and then [`InputQueue::advance`].
    Blocked,
    /// Nothing waits.
    Idle,
    /// All bytes are written and EOF is due now.
    EofDue(Eof),
    /// The child closed its end; what waited is of no use to anybody.
    Broken,
}

/// A terminal's usual EOF character.
const END_OF_TRANSMISSION: u8 = 4;

/// The input of one attempt.
#[derive(Debug)]
pub(crate) struct InputQueue {
    child: AsyncFd<Arc<OwnedFd>>,
    kind: Kind,
    spool: Option<Spool>,
    eof: Eof,
    broken: bool,
    /// The last byte for a terminal was neither a newline nor EOF: EOF takes two characters.
    mid_line: bool,
    /// Bytes of the line that has begun, as far as this supervisor saw it.
    line_bytes: usize,
}

#[derive(Debug)]
struct Spool {
    file: OwnedFd,
    written: u64,
    len: u64,
    trimmed: u64,
    /// Where each waiting write ends.
    ends: VecDeque<u64>,
}

impl InputQueue {
    /// Takes the child's end, which must be non-blocking, and what a predecessor left.
    pub(crate) fn new(
        child: OwnedFd,
        kind: Kind,
        spool: Option<OwnedFd>,
        eof: Eof,
    ) -> io::Result<Self> {
        let spool = spool.map(Spool::adopt).transpose()?;
        let child = sys::watch(Arc::new(child), Interest::WRITABLE)?;
        let last = match &spool {
            Some(spool) => spool.last_byte()?,
            None => None,
        };
        Ok(Self {
            child,
            kind,
            spool,
            eof,
            broken: false,
            mid_line: last.is_some_and(|last| !matches!(last, b'\n' | b'\r' | END_OF_TRANSMISSION)),
            line_bytes: 0,
        })
    }

    /// Bytes of the line that has begun and waits for its end.
    pub(crate) fn line_bytes(&self) -> usize {
        self.line_bytes
    }

    /// Whether a write of `bytes` may be accepted now.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let (waiting, writes) = self.waiting();
        writes < INPUT_QUEUE_WRITES_MAX
            && waiting.saturating_add(bytes as u64) <= INPUT_QUEUE_BYTES_MAX as u64
    }

    /// Whether the child closed its end.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Bytes and writes that wait.
    pub(crate) fn waiting(&self) -> (u64, usize) {
        self.spool.as_ref().map_or((0, 0), |spool| {
            (spool.len - spool.written, spool.ends.len())
        })
    }

    /// Accepts bytes: writes what fits now, spools the rest.
    ///
    /// The first spool of an attempt is returned once, for the keeper.
    pub(crate) fn push(&mut self, mut data: &[u8]) -> io::Result<Option<BorrowedFd<'_>>> {
        if self.broken {
            return Ok(None);
        }
        if let Some(last) = data.last() {
            self.mid_line = !matches!(last, b'\n' | b'\r');
            let end = data.iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
            self.line_bytes = match end {
                Some(end) => data.len() - end - 1,
                None => self.line_bytes.saturating_add(data.len()),
            };
        }
        if self.waiting().0 == 0 {
            while !data.is_empty() {
                match rustix::io::write(self.child.get_ref(), data) {
                    Ok(0) | Err(Errno::AGAIN) => break,
                    Ok(count) => data = data.get(count..).unwrap_or_default(),
                    Err(Errno::INTR) => {}
                    Err(error) => {
                        self.fail(error)?;
                        return Ok(None);
                    }
                }
            }
        }
        if data.is_empty() {
            return Ok(None);
        }
        if let Some(spool) = &mut self.spool {
            spool.append(data)?;
            return Ok(None);
        }
        let mut spool = Spool::create()?;
        spool.append(data)?;
        let spool = self.spool.insert(spool);
        Ok(Some(spool.file.as_fd()))
    }

    /// Puts EOF behind the bytes.
    pub(crate) fn push_eof(&mut self, eof: Eof) {
        self.eof = eof;
    }

    /// What reads the input.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Waits until the child may take more. Never returns while nothing is blocked.
    pub(crate) async fn ready(&self) {
        if self.waiting().0 == 0 || self.broken {
            return std::future::pending().await;
        }
        let writable = async {
            match self.child.writable().await {
                // Advancing finds out by itself and clears the flag when it must wait again.
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => std::future::pending().await, // The runtime ends, and we with it.
            }
        };
        match self.kind {
            Kind::Pipe => writable.await,
            Kind::Terminal => {
                tokio::select! {
                    () = writable => {}
                    () = tokio::time::sleep(TERMINAL_RETRY) => {}
                }
            }
        }
    }

    /// Moves what the child takes.
    pub(crate) fn advance(&mut self) -> io::Result<Progress> {
        while !self.broken
            && let Some(spool) = &mut self.spool
            && spool.written < spool.len
        {
            let wanted = usize::try_from(spool.len - spool.written).unwrap_or(usize::MAX);
            match rustix::fs::sendfile(self.child.get_ref(), &spool.file, None, wanted) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(Progress::Blocked),
                Ok(count) => spool.advance(count as u64)?,
                Err(Errno::INTR) => {}
                Err(error) => self.fail(error)?,
            }
        }
        Ok(match (self.broken, self.eof) {
            (true, _) => Progress::Broken,
            (false, Eof::No) => Progress::Idle,
            (false, eof) => Progress::EofDue(eof),
        })
    }

    /// Sends the EOF character of a terminal; twice when a line has begun.
    ///
    /// Like [`InputQueue::push`] it may spool, and returns the first spool.
    pub(crate) fn push_eof_characters(
        &mut self,
        character: u8,
    ) -> io::Result<Option<BorrowedFd<'_>>> {
        let characters = [character; 2];
        let count = if self.mid_line { 2 } else { 1 };
        let is_first = self.spool.is_none();
        self.push(&characters[..count])?;
        // The line is empty after it: one that had begun was handed to the reader.
        self.mid_line = false;
        self.line_bytes = 0;
        let spool = self.spool.as_ref().filter(|_| is_first);
        Ok(spool.map(|spool| spool.file.as_fd()))
    }

    /// A child that closed its input is its own business; anything else is ours.
    fn fail(&mut self, error: Errno) -> io::Result<()> {
        match error {
            Errno::PIPE | Errno::IO => {
                self.broken = true;
                Ok(())
            }
            other => Err(other.into()),
        }
    }
}

impl Spool {
    fn create() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("outlive-input", MemfdFlags::CLOEXEC)?;
        Ok(Self {
            file,
            written: 0,
            len: 0,
            trimmed: 0,
            ends: VecDeque::new(),
        })
    }

    fn adopt(file: OwnedFd) -> io::Result<Self> {
        let len = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        let written = rustix::fs::seek(&file, SeekFrom::Current(0))?;
        let ends = if written < len {
            VecDeque::from([len])
        } else {
            VecDeque::new()
        };
        Ok(Self {
            file,
            written,
            len,
            trimmed: 0,
            ends,
        })
    }

    fn append(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let count = rustix::io::pwrite(&self.file, data, self.len)?;
            self.len += count as u64;
            data = &data[count..];
        }
        self.ends.push_back(self.len);
        Ok(())
    }

    fn advance(&mut self, count: u64) -> io::Result<()> {
        self.written += count;
        while self.ends.front().is_some_and(|end| *end <= self.written) {
            self.ends.pop_front();
        }
        // Whole pages only: a page that the pipe still refers to keeps its bytes.
        let whole = self.written.saturating_sub(1) / SPOOL_TRIM_BYTES * SPOOL_TRIM_BYTES;
        if whole > self.trimmed {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, flags, self.trimmed, whole - self.trimmed)?;
            self.trimmed = whole;
        }
        Ok(())
    }

    /// The last byte that still waits.
    fn last_byte(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        match self.len.checked_sub(1).filter(|at| *at >= self.written) {
            Some(at) if rustix::io::pread(&self.file, &mut byte, at)? == 1 => Ok(Some(byte[0])),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        for end in [&read, &write] {
            let flags = rustix::fs::fcntl_getfl(end).unwrap();
            rustix::fs::fcntl_setfl(end, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        }
        (read, write)
    }

    fn numbered(bytes: usize) -> Vec<u8> {
        (0_u32..).flat_map(u32::to_le_bytes).take(bytes).collect()
    }

    fn read_all(read: &OwnedFd, into: &mut Vec<u8>) {
        let mut chunk = vec![0; 65536];
        while let Ok(count @ 1..) = rustix::io::read(read, &mut chunk) {
            into.extend_from_slice(&chunk[..count]);
        }
    }

    #[tokio::test]
    async fn a_successor_goes_on_exactly_where_the_spool_stands() {
        let (read, write) = pipe();
        let data = numbered(3_000_000);
        let mut queue = InputQueue::new(write, Kind::Pipe, None, Eof::No).unwrap();
        let spool = queue
            .push(&data)
            .unwrap()
            .map(|fd| fd.try_clone_to_owned().unwrap());
        let child = queue.child.get_ref().try_clone().unwrap();
        let mut got = Vec::new();
        for _ in 0..5 {
            read_all(&read, &mut got);
            assert_eq!(queue.advance().unwrap(), Progress::Blocked);
        }
        drop(queue); // What a kill leaves: the descriptions that the keeper holds.
        let mut queue = InputQueue::new(child, Kind::Pipe, spool, Eof::Queued).unwrap();
        assert_eq!(queue.waiting().1, 1);
        while queue.advance().unwrap() == Progress::Blocked {
            read_all(&read, &mut got);
        }
        read_all(&read, &mut got);
        assert_eq!(queue.advance().unwrap(), Progress::EofDue(Eof::Queued));
        assert!(
            got == data,
            "the child got {} bytes of {}",
            got.len(),
            data.len()
        );
    }

    #[tokio::test]
    async fn bytes_and_writes_are_bounded() {
        let (_read, write) = pipe();
        let mut queue = InputQueue::new(write, Kind::Pipe, None, Eof::No).unwrap();
        queue.push(&numbered(65536)).unwrap();
        for _ in 0..INPUT_QUEUE_WRITES_MAX {
            assert!(queue.has_room(64));
            queue.push(&numbered(64)).unwrap();
        }
        assert!(!queue.has_room(1));
    }

    #[tokio::test]
    async fn a_terminals_eof_stands_where_it_was_asked_for() {
        let (read, write) = pipe();
        let mut queue = InputQueue::new(write, Kind::Terminal, None, Eof::No).unwrap();
        let flood = numbered(65536);
        queue.push(&flood).unwrap();
        for text in ["line\n", "begun"] {
            queue.push(text.as_bytes()).unwrap();
            queue.push_eof_characters(4).unwrap();
        }
        queue.push_eof_characters(4).unwrap();
        queue.push(b"after").unwrap();
        let mut got = Vec::new();
        read_all(&read, &mut got);
        assert_eq!(queue.advance().unwrap(), Progress::Idle);
        read_all(&read, &mut got);
        assert_eq!(
            got.split_off(flood.len()),
            b"line\n\x04begun\x04\x04\x04after"
        );
    }

    #[tokio::test]
    async fn a_child_that_closed_its_input_is_no_error_of_ours() {
        let (read, write) = pipe();
        let mut queue = InputQueue::new(write, Kind::Pipe, None, Eof::No).unwrap();
        drop(read);
        assert!(queue.push(b"x").unwrap().is_none());
        assert_eq!(queue.advance().unwrap(), Progress::Broken);
    }
}
