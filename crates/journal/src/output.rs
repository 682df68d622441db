//! Output: bytes that the kernel moves into the segment itself.
//!
//! ```text
//! begin_output   header OPEN is written             nobody else knows the next offset
//!   splice       bytes follow it, by the caller     a kill leaves them in the file
//! commit         checksum over the page cache, header COMMITTED
//! ```
//!
//! Whatever interrupts this, the size of the file says how many bytes came: a frame that was
//! neither committed nor cancelled is completed from it by the next call, or by the next open.

use std::{io, os::fd::BorrowedFd, sync::Arc};

use crate::{
    appender::{Appender, check_record, plain_header},
    error::{AppendError, is_full},
    frame::{self, HEADER_STEP, Header, State},
    limits::PAYLOAD_BYTES_MAX,
    storage::DataFile,
};

const CHECK_CHUNK_BYTES: usize = 64 * 1024;

/// The frame that is being filled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filling {
    pub(crate) offset: u64,
    pub(crate) header: Header,
}

/// A frame to splice into. Dropped without [`commit`](Self::commit) or
/// [`cancel`](Self::cancel), it is completed by the appender's next call.
#[derive(Debug)]
#[must_use = "a frame is committed or cancelled"]
pub struct OpenFrame<'a> {
    appender: &'a mut Appender,
    payload_at: u64,
}

/// Output that is in the journal.
#[derive(Debug, Clone)]
pub struct Committed {
    /// Its number.
    pub seq: u64,
    /// When it was begun.
    pub at_nanos: i64,
    /// How many bytes.
    pub len: u32,
    file: Arc<dyn DataFile>,
    payload_at: u64,
}

impl Committed {
    /// Reads from its bytes, beginning with byte `from`; fewer than asked for at its end.
    pub fn read_at(&self, buffer: &mut [u8], from: u32) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(from)).unwrap_or(0);
        let count = left.min(buffer.len());
        let buffer = buffer.get_mut(..count).unwrap_or_default();
        self.file.read_at(buffer, self.payload_at + u64::from(from))
    }
}

impl OpenFrame<'_> {
    /// Where to splice to; `None` on a storage without descriptors.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.appender.active.file.fd()
    }

    /// The file, to write to without a descriptor.
    pub fn file(&self) -> &dyn DataFile {
        &*self.appender.active.file
    }

    /// Offset of the first byte.
    pub fn offset(&self) -> u64 {
        self.payload_at
    }

    /// Ends the frame after `len` bytes, 1 or more. When the disk is full even for that, the
    /// next call tries again; the bytes stay.
    pub fn commit(self, len: u32) -> Result<Committed, AppendError> {
        match self.appender.finish(u64::from(len))? {
            Some(committed) => Ok(committed),
            None => Err(AppendError::BatchSize(0)),
        }
    }

    /// Takes the frame away, with whatever came.
    pub fn cancel(self) -> Result<(), AppendError> {
        self.appender.finish(0).map(|_| ())
    }
}

impl Appender {
    /// Begins a frame of output for the caller to splice into, at most 16 MiB.
    pub fn begin_output(
        &mut self,
        now: i64,
        kind: u8,
        stream: u8,
        attempt: u32,
    ) -> Result<OpenFrame<'_>, AppendError> {
        self.settle()?;
        check_record(kind, 0)?;
        self.make_room(now, HEADER_STEP, 1)?;
        let at = now.max(self.last_at);
        let base = self.begin_scratch();
        let renewed = self.push_lease(at, 1);
        let mut scratch = std::mem::take(&mut self.scratch);
        let offset = base + scratch.len() as u64;
        let header = Header {
            state: State::Open,
            stream,
            attempt,
            ..plain_header(kind, self.next_seq, at, 0)
        };
        frame::push(&mut scratch, &header, self.active.header.salt, &[]);
        let before = self.active.end;
        let written = self.write_frames(base, &scratch, &[]);
        self.keep_scratch(scratch);
        written?;
        // Until it is committed, the segment ends before the open frame.
        self.active.end = if renewed.is_some() { offset } else { before };
        self.lease = renewed.unwrap_or(self.lease);
        self.filling = Some(Filling { offset, header });
        Ok(OpenFrame {
            appender: self,
            payload_at: offset + HEADER_STEP,
        })
    }

    /// Appends output from memory, where the kernel can't move it.
    pub fn append_output(
        &mut self,
        now: i64,
        kind: u8,
        stream: u8,
        attempt: u32,
        bytes: &[u8],
    ) -> Result<Committed, AppendError> {
        self.settle()?;
        check_record(kind, bytes.len())?;
        self.make_room(now, HEADER_STEP + bytes.len() as u64, 1)?;
        let (seq, at) = (self.next_seq, now.max(self.last_at));
        let base = self.begin_scratch();
        let renewed = self.push_lease(at, 1);
        let mut scratch = std::mem::take(&mut self.scratch);
        let header = Header {
            stream,
            attempt,
            ..plain_header(kind, seq, at, bytes.len())
        };
        let payload_at = base + scratch.len() as u64 + HEADER_STEP;
        scratch.extend_from_slice(&header.encode(self.active.header.salt, bytes));
        let written = self.write_frames(base, &scratch, bytes);
        self.keep_scratch(scratch);
        written?;
        self.lease = renewed.unwrap_or(self.lease);
        let cum = self.cum + (self.config.logical_len)(kind, header.len);
        let file = Arc::clone(&self.active.file);
        self.appended(base, at, seq, cum);
        self.trim(now);
        Ok(Committed {
            seq,
            at_nanos: at,
            len: header.len,
            file,
            payload_at,
        })
    }

    /// Completes a frame that was left open, from the size of the file.
    pub(crate) fn settle(&mut self) -> Result<(), AppendError> {
        self.check_broken()?;
        if self.filling.is_some() {
            self.finish(u64::MAX)?;
        }
        Ok(())
    }

    fn finish(&mut self, len_wanted: u64) -> Result<Option<Committed>, AppendError> {
        self.check_broken()?;
        let Some(filling) = self.filling else {
            return Ok(None);
        };
        let payload_at = filling.offset + HEADER_STEP;
        let file = Arc::clone(&self.active.file);
        let finished = complete(&*file, self.active.header.salt, &filling, len_wanted);
        let header = match finished {
            Ok(Some(header)) => header,
            Ok(None) => {
                // Nothing came, or nothing is wanted.
                let cut = file.truncate(self.active.end);
                self.filling = None;
                return match cut {
                    Ok(()) => Ok(None),
                    Err(error) => Err(self.latch(error)),
                };
            }
            Err(error) if is_full(&error) => return Err(AppendError::Full),
            Err(error) => return Err(self.latch(error)),
        };
        self.filling = None;
        self.active.end = payload_at + u64::from(header.len);
        self.dirt.writes += 1;
        let cum = self.cum + (self.config.logical_len)(header.kind, header.len);
        self.appended(filling.offset, header.at_nanos, header.seq, cum);
        self.trim(header.at_nanos);
        Ok(Some(Committed {
            seq: header.seq,
            at_nanos: header.at_nanos,
            len: header.len,
            file,
            payload_at,
        }))
    }
}

/// Turns an open frame into a committed one of at most `len_max` bytes; `None`, and nothing is
/// changed, when that leaves none.
pub(crate) fn complete(
    file: &dyn DataFile,
    salt: u32,
    filling: &Filling,
    len_max: u64,
) -> io::Result<Option<Header>> {
    let payload_at = filling.offset + HEADER_STEP;
    let came = file.byte_len()?.saturating_sub(payload_at);
    let len = came.min(len_max);
    if len == 0 {
        return Ok(None);
    }
    if len > PAYLOAD_BYTES_MAX as u64 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "more was spliced than a frame holds",
        ));
    }
    if came > len {
        file.truncate(payload_at + len)?;
    }
    let header = Header {
        state: State::Committed,
        len: u32::try_from(len).unwrap_or(u32::MAX),
        ..filling.header
    };
    let mut crc = header.crc_begin(salt);
    let mut buffer = vec![0; CHECK_CHUNK_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX))];
    let mut done = 0;
    while done < len {
        let want = buffer
            .len()
            .min(usize::try_from(len - done).unwrap_or(usize::MAX));
        let chunk = buffer.get_mut(..want).unwrap_or_default();
        let count = file.read_at(chunk, payload_at + done)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        crc.add(chunk.get(..count).unwrap_or_default());
        done += count as u64;
    }
    let bytes = header.encode_with(salt, crc.value());
    file.write_all_at(&bytes, &[], filling.offset)?;
    Ok(Some(header))
}
