//! Walks the frames of one file, and finds its way again after damage.
//!
//! What the walk takes from the file it keeps as one shared buffer, and payloads are slices of
//! it. Nothing that is read is believed before its check value holds; where it doesn't hold, the
//! bytes are read a second time (a writer in another process may be at work), and only then the
//! walk looks for the next frame that does, at every multiple of 32.

use std::{io, sync::Arc};

use bytes::Bytes;

use crate::{
    frame::{HEADER_BYTES, HEADER_STEP, Header, State, align},
    storage::DataFile,
};

/// What stands at the walk's position.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A complete frame. The walk is behind it.
    Frame(Frame),
    /// A frame that is being filled. The walk stays.
    Open { offset: u64, header: Header },
    /// A good header whose payload goes beyond the end of the file. The walk stays.
    Incomplete { offset: u64 },
    /// Bytes that are no frame, and no frame after them. The walk stays.
    Bad,
    /// Nothing more. The walk stays.
    End,
}

/// A complete frame.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) offset: u64,
    /// Empty in a walk over headers.
    pub(crate) payload: Bytes,
}

impl Frame {
    /// Where the frame ends, without padding.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.header.frame_len()
    }
}

/// How closely a walk looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Payloads are read and checked.
    Whole,
    /// Headers only.
    Headers,
}

/// A walk.
#[derive(Debug)]
pub(crate) struct Scan {
    file: Arc<dyn DataFile>,
    salt: u32,
    look: Look,
    chunk_bytes: usize,
    position: u64,
    window: Bytes,
    window_at: u64,
    /// Bytes that had to be skipped so far.
    skipped: u64,
}

impl Scan {
    pub(crate) fn new(
        file: Arc<dyn DataFile>,
        salt: u32,
        look: Look,
        position: u64,
        chunk_bytes: usize,
    ) -> Self {
        Self {
            file,
            salt,
            look,
            chunk_bytes,
            position,
            window: Bytes::new(),
            window_at: 0,
            skipped: 0,
        }
    }

    /// Bytes that were skipped because they were no frame.
    pub(crate) const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Goes to `offset`.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.position = offset;
    }

    /// Forgets what was read ahead, so that it doesn't stay in memory.
    pub(crate) fn release(&mut self) {
        self.window = Bytes::new();
    }

    /// The next step.
    pub(crate) fn step(&mut self) -> io::Result<Step> {
        let offset = align(self.position);
        match self.step_at(offset)? {
            Step::Bad | Step::Incomplete { .. } | Step::Open { .. } => {
                // What was read ahead may be older than what is there now.
                self.release();
                match self.step_at(offset)? {
                    Step::Bad => self.resynchronise(offset),
                    Step::Incomplete { .. } => match self.resynchronise(offset)? {
                        Step::Bad => Ok(Step::Incomplete { offset }),
                        found => Ok(found),
                    },
                    step => Ok(step),
                }
            }
            step => Ok(step),
        }
    }

    fn step_at(&mut self, offset: u64) -> io::Result<Step> {
        let bytes = self.peek(offset, HEADER_BYTES)?;
        if bytes.is_empty() {
            return Ok(Step::End);
        }
        let Some(header) = Header::decode(&bytes, self.salt) else {
            return Ok(Step::Bad);
        };
        if header.state == State::Open {
            return Ok(if header.holds(self.salt, &[]) {
                Step::Open { offset, header }
            } else {
                Step::Bad
            });
        }
        let payload = match self.look {
            Look::Headers => Bytes::new(),
            Look::Whole => {
                let len = usize::try_from(header.len).unwrap_or(usize::MAX);
                let payload = self.peek(offset + HEADER_STEP, len)?;
                if payload.len() < len {
                    return Ok(Step::Incomplete { offset });
                }
                if !header.holds(self.salt, &payload) {
                    return Ok(Step::Bad);
                }
                payload
            }
        };
        self.position = offset + header.frame_len();
        Ok(Step::Frame(Frame {
            header,
            offset,
            payload,
        }))
    }

    /// Looks for the next frame that holds, behind `bad`.
    fn resynchronise(&mut self, bad: u64) -> io::Result<Step> {
        let look = std::mem::replace(&mut self.look, Look::Whole);
        let found = self.resynchronise_whole(bad);
        self.look = look;
        let step = found?;
        match &step {
            Step::Frame(Frame { offset, .. }) | Step::Open { offset, .. } => {
                self.skipped += offset - bad;
            }
            Step::Incomplete { .. } | Step::Bad | Step::End => self.position = bad,
        }
        Ok(step)
    }

    fn resynchronise_whole(&mut self, bad: u64) -> io::Result<Step> {
        // The length is checked by itself: behind a bad payload the next frame is likely there.
        let bytes = self.peek(bad, HEADER_BYTES)?;
        if let Some(header) = Header::decode(&bytes, self.salt)
            && let step @ (Step::Frame(_) | Step::Open { .. }) =
                self.step_at(align(bad + header.frame_len()))?
        {
            return Ok(step);
        }
        let mut offset = bad + HEADER_STEP;
        loop {
            match self.step_at(offset)? {
                step @ (Step::Frame(_) | Step::Open { .. }) => return Ok(step),
                Step::End => return Ok(Step::Bad),
                Step::Bad | Step::Incomplete { .. } => offset += HEADER_STEP,
            }
        }
    }

    /// Up to `count` bytes at `offset`; fewer at the end of the file.
    fn peek(&mut self, offset: u64, count: usize) -> io::Result<Bytes> {
        if let Some(bytes) = self.in_window(offset, count) {
            return Ok(bytes);
        }
        let left = self.file.byte_len()?.saturating_sub(offset);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let mut buffer = vec![0; count.max(self.chunk_bytes).min(left)];
        let read = self.file.read_at(&mut buffer, offset)?;
        buffer.truncate(read);
        self.window = Bytes::from(buffer);
        self.window_at = offset;
        Ok(self.window.slice(..count.min(read)))
    }

    fn in_window(&self, offset: u64, count: usize) -> Option<Bytes> {
        let start = usize::try_from(offset.checked_sub(self.window_at)?).ok()?;
        let end = start.checked_add(count)?;
        (end <= self.window.len()).then(|| self.window.slice(start..end))
    }
}
