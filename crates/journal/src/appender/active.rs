//! The segment that is written to, and how one begins.

use std::{io, sync::Arc};

use crate::{
    config::Config,
    error::is_full,
    frame::{self, Header, KIND_CHECKPOINT, State},
    limits::{INDEX_SPACING_BYTES, RESUME_SPACING_BYTES},
    record::{Gap, KIND_GAP},
    segment::{HeadSlot, SegmentHeader, SegmentName},
    storage::{DataFile, Storage},
};

/// The segment that is written to.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) name: SegmentName,
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn DataFile>,
    /// Where the last frame ends, without padding; also the length of the file.
    pub(crate) end: u64,
    /// Time of its first record, when it has one.
    pub(crate) first_at: Option<i64>,
    pub(crate) index_next: u16,
    pub(crate) index_at: u64,
    /// From which length on another place to begin reading is due.
    pub(crate) resume_at: u64,
    /// The record before the newest such place; 0 when there is none.
    pub(crate) resume_seq: u64,
}

/// What a new journal or segment begins with.
pub(crate) struct Beginning<'a> {
    pub(crate) name: SegmentName,
    pub(crate) now: i64,
    pub(crate) lease: u64,
    pub(crate) cum: u64,
    pub(crate) head: HeadSlot,
    pub(crate) checkpoint_seq: u64,
    pub(crate) checkpoint: &'a [u8],
    pub(crate) gap: Option<Gap>,
}

/// Makes a segment file, complete with its checkpoint, in one write.
pub(crate) fn begin_segment(
    storage: &dyn Storage,
    config: &Config,
    beginning: &Beginning<'_>,
) -> io::Result<Active> {
    let header = SegmentHeader {
        ordinal: beginning.name.ordinal,
        first_seq: beginning.name.first_seq,
        generation: config.generation,
        created_at: beginning.now,
        boot_id: config.boot_id,
        lease: beginning.lease,
        cum: beginning.cum,
        head: beginning.head,
        salt: storage.secret()?,
        index_slots: SegmentHeader::index_slots_for(config.retention.segment_bytes_target()),
    };
    let mut bytes = header.encode();
    let payload = beginning.checkpoint;
    let checkpoint = plain_header(
        KIND_CHECKPOINT,
        beginning.checkpoint_seq,
        beginning.now,
        payload.len(),
    );
    for _ in 0..2 {
        frame::push(&mut bytes, &checkpoint, header.salt, payload);
    }
    if let Some(gap) = beginning.gap {
        let payload = gap.to_payload();
        let record = plain_header(KIND_GAP, gap.to, beginning.now, payload.len());
        frame::push(&mut bytes, &record, header.salt, &payload);
    }
    let file_name = beginning.name.file_name();
    let file = storage.create(&file_name)?;
    if let Err(error) = file.write_all_at(&bytes, &[], 0) {
        // Half a segment counts as none, so failing to remove it harms nobody.
        return match storage.remove(&file_name) {
            Ok(()) => Err(error),
            Err(_) if is_full(&error) => Err(error),
            Err(worse) => Err(worse),
        };
    }
    Ok(Active {
        name: beginning.name,
        header,
        file,
        end: bytes.len() as u64,
        first_at: beginning.gap.map(|_| beginning.now),
        index_next: 0,
        index_at: header.data_at() + INDEX_SPACING_BYTES,
        resume_at: bytes.len() as u64 + RESUME_SPACING_BYTES,
        resume_seq: 0,
    })
}

pub(crate) fn plain_header(kind: u8, seq: u64, at_nanos: i64, len: usize) -> Header {
    Header {
        state: State::Committed,
        kind,
        stream: 0,
        len: u32::try_from(len).unwrap_or(u32::MAX),
        seq,
        at_nanos,
        attempt: 0,
        crc: 0,
    }
}
