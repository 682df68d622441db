//! Opening a journal to append to it.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    appender::{Active, Appender, Beginning, Checkpoint, Freshness, RollDue, begin_segment},
    config::Config,
    damage::{Damage, DamageReport},
    frame::{HEADER_STEP, Header, State, align},
    limits::{INDEX_SPACING_BYTES, RESUME_SPACING_BYTES, SEQ_LEASE, SEQ_MAX},
    output::{Filling, complete},
    record::{Gap, Record},
    recover::{Ending, Found, OpenError, Segment, Tail, find},
    resume::Unread,
    segment::{HeadSlot, IndexSlot, SegmentName},
    storage::{Access, Storage},
    sync::Dirt,
    trim::Head,
};

/// A journal that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its writer. Give it the state by [`Appender::put_checkpoint`] once `records` are applied.
    pub appender: Appender,
    /// State of the session as of `checkpoint_seq`; empty when it is lost (see `damage`).
    pub checkpoint: Vec<u8>,
    /// The last record that the checkpoint contains.
    pub checkpoint_seq: u64,
    /// The records after the checkpoint, those of one segment at most, in order. Output between
    /// the checkpoint and the segment's beginning is not among them.
    pub records: Vec<Record>,
    /// What was found wrong.
    pub damage: DamageReport,
    /// What was not looked at.
    pub unread: Option<Unread>,
}

/// Was the machine restarted since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Boot {
    Same,
    Another,
}

impl Appender {
    /// Opens a journal, whatever state it is in. On the same boot nothing is published before
    /// the first sync, since what the last writer synced is unknown.
    pub fn open(storage: Arc<dyn Storage>, config: Config, now: i64) -> Result<Opened, OpenError> {
        let mut found = find(
            &*storage,
            Access::Write,
            config.logical_len,
            Some(config.boot_id),
        )?;
        for name in &found.unborn {
            storage.remove(&name.file_name())?;
        }
        let Some(mut base) = found.base.take() else {
            return open_unreadable(storage, config, now, found);
        };
        let boot = if base.header.boot_id == config.boot_id {
            Boot::Same
        } else {
            Boot::Another
        };
        repair_tail(&mut found, &mut base, boot)?;
        let sealed = match base.ending {
            Ending::Sealed(last) => Some(last),
            Ending::Silent | Ending::Rolled => None,
        };
        let jump = jump_over(&found, &base, boot, sealed);
        if let Some(gap) = jump {
            found.damage.add(Damage::Lost(gap));
            found.lease = found.lease.max(gap.to);
        }
        let roll_due = if jump.is_some()
            || boot == Boot::Another
            || base.header.generation != config.generation
        {
            RollDue::Always
        } else {
            RollDue::BySize
        };
        let opening = Opening {
            found,
            base,
            boot,
            sealed,
            jump,
            roll_due,
        };
        Ok(opening.assemble(storage, config)?)
    }
}

/// Completes or takes away what a kill or a power cut left at the end.
fn repair_tail(found: &mut Found, base: &mut Segment, boot: Boot) -> Result<(), OpenError> {
    let byte_len = base.file.byte_len()?;
    match base.tail {
        Tail::Clean => base.end = byte_len.min(align(base.end)),
        Tail::Bad => base.end = byte_len,
        Tail::Torn { offset } => {
            base.file.truncate(offset)?;
            base.end = offset;
            found.damage.add(Damage::Torn {
                file: base.name.file_name(),
                bytes: byte_len.saturating_sub(offset),
            });
        }
        Tail::Open { offset, .. } => {
            let completed = match boot {
                Boot::Same => complete_open(found, base)?,
                Boot::Another => None,
            };
            if completed.is_none() {
                base.file.truncate(offset)?;
                base.end = offset;
                let bytes = byte_len.saturating_sub(offset + HEADER_STEP);
                if bytes > 0 {
                    found.damage.add(Damage::Dropped { bytes });
                }
            }
        }
    }
    Ok(())
}

fn complete_open(found: &mut Found, base: &mut Segment) -> Result<Option<()>, OpenError> {
    let Tail::Open {
        offset,
        kind,
        stream,
        attempt,
        at_nanos,
    } = base.tail
    else {
        return Ok(None);
    };
    let filling = Filling {
        offset,
        header: Header {
            state: State::Open,
            kind,
            stream,
            len: 0,
            seq: found.last_seq + 1,
            at_nanos,
            attempt,
            crc: 0,
        },
    };
    let Some(header) = complete(&*base.file, base.header.salt, &filling, u64::MAX)? else {
        return Ok(None);
    };
    let mut payload = vec![0; usize::try_from(header.len).unwrap_or(0)];
    let count = base.file.read_at(&mut payload, offset + HEADER_STEP)?;
    payload.truncate(count);
    found.damage.add(Damage::Completed {
        seq: header.seq,
        bytes: u64::from(header.len),
    });
    found.records.push(Record {
        seq: header.seq,
        at_nanos,
        kind,
        stream,
        attempt,
        generation: base.header.generation,
        payload: payload.into(),
    });
    found.last_seq = header.seq;
    found.last_at = found.last_at.max(at_nanos);
    base.first_at.get_or_insert(at_nanos);
    base.end = offset + header.frame_len();
    base.ending = Ending::Silent;
    base.completed = Some(header.len);
    Ok(Some(()))
}

/// The numbers that must not be used because somebody may have seen them.
fn jump_over(found: &Found, base: &Segment, boot: Boot, sealed: Option<u64>) -> Option<Gap> {
    let to = if found.newer_lost || base.tail == Tail::Bad {
        found.lease
    } else {
        match (boot, sealed) {
            (_, Some(last)) => last,
            (Boot::Same, None) => found.last_seq,
            (Boot::Another, None) => found.lease,
        }
    };
    let to = to.min(SEQ_MAX);
    (to > found.last_seq).then(|| Gap {
        from: found.last_seq + 1,
        to,
    })
}

/// What was decided about a journal that is being opened.
struct Opening {
    found: Found,
    base: Segment,
    boot: Boot,
    sealed: Option<u64>,
    jump: Option<Gap>,
    roll_due: RollDue,
}

impl Opening {
    /// Where retention stands, and the logical bytes of everything.
    fn head(&self, config: &Config, last_seq: u64) -> std::io::Result<(HeadSlot, u64)> {
        let head = HeadSlot::read(&*self.base.file, &self.base.header)?;
        let oldest = self.found.segments.first().map_or(1, |name| name.first_seq);
        let completed = self.base.completed.map_or(0, |len| {
            let kind = self.found.records.last().map_or(0, |record| record.kind);
            (config.logical_len)(kind, len)
        });
        let cum = self.base.cum + completed;
        let slot = HeadSlot {
            seq: head.seq.max(oldest).min(last_seq + 1),
            cum: head.cum.min(cum),
        };
        Ok((slot, cum))
    }

    fn assemble(self, storage: Arc<dyn Storage>, config: Config) -> std::io::Result<Opened> {
        let last_seq = self.jump.map_or(self.found.last_seq, |gap| gap.to);
        let (slot, cum) = self.head(&config, last_seq)?;
        let Self {
            found,
            base,
            boot,
            sealed,
            jump,
            roll_due,
        } = self;
        let unread = Unread::of(&base);
        let slots = IndexSlot::read_all(&*base.file, &base.header)?;
        let unsynced = boot == Boot::Same;
        let appender = Appender {
            active: Active {
                name: base.name,
                header: base.header,
                file: base.file,
                end: base.end,
                first_at: base.first_at,
                index_next: u16::try_from(slots.len()).unwrap_or(u16::MAX),
                resume_at: base.end + RESUME_SPACING_BYTES,
                resume_seq: base.unread.map_or(0, |slot| slot.seq),
                index_at: base.end + INDEX_SPACING_BYTES,
            },
            segments: VecDeque::from(found.segments),
            next_seq: last_seq + 1,
            last_at: found.last_at,
            cum,
            lease: found.lease.max(last_seq),
            lease_durable: match (boot, sealed) {
                (Boot::Same, _) => 0,
                (Boot::Another, Some(last)) => last,
                (Boot::Another, None) => found.lease,
            },
            awaiting: unsynced.then_some(slot.seq).into_iter().collect(),
            ordinal_durable: if unsynced { 0 } else { base.name.ordinal },
            dirt: Dirt {
                writes: u64::from(unsynced),
                names: u64::from(unsynced),
                ..Dirt::default()
            },
            checkpoint: Checkpoint {
                seq: found.checkpoint_seq,
                bytes: found.checkpoint.clone(),
                freshness: freshness(&found.records),
            },
            roll_due,
            gap_due: jump,
            sealed_at: sealed.filter(|_| base.completed.is_none()),
            head: Head::new(slot),
            pinned_after: u64::MAX,
            filling: None,
            broken: None,
            scratch: Vec::new(),
            storage,
            config,
        };
        Ok(Opened {
            appender,
            checkpoint: found.checkpoint,
            checkpoint_seq: found.checkpoint_seq,
            records: found.records,
            damage: found.damage,
            unread,
        })
    }
}

fn freshness(records: &[Record]) -> Freshness {
    if records.is_empty() {
        Freshness::Fresh
    } else {
        Freshness::Stale
    }
}

/// No segment can be read: begins a new one behind every number that may have been used.
fn open_unreadable(
    storage: Arc<dyn Storage>,
    config: Config,
    now: i64,
    found: Found,
) -> Result<Opened, OpenError> {
    let oldest = found.segments.first().map_or(1, |name| name.first_seq);
    let ordinal = found.segments.last().map_or(0, |name| name.ordinal);
    let to = found.lease.max(oldest).min(SEQ_MAX - SEQ_LEASE);
    let gap = Gap {
        from: oldest.min(to),
        to,
    };
    let mut damage = found.damage;
    damage.add(Damage::Lost(gap));
    let head = HeadSlot {
        seq: gap.from,
        cum: 0,
    };
    let name = SegmentName {
        ordinal: ordinal + 1,
        first_seq: gap.from,
    };
    let beginning = Beginning {
        name,
        now,
        lease: to + SEQ_LEASE,
        cum: 0,
        head,
        checkpoint_seq: to,
        checkpoint: &[],
        gap: Some(gap),
    };
    let active = begin_segment(&*storage, &config, &beginning)?;
    let mut segments = VecDeque::from(found.segments);
    segments.push_back(name);
    let appender = Appender {
        active,
        segments,
        next_seq: to + 1,
        last_at: now,
        cum: (config.logical_len)(crate::record::KIND_GAP, 16),
        lease: to + SEQ_LEASE,
        lease_durable: 0,
        awaiting: VecDeque::new(),
        ordinal_durable: 0,
        dirt: Dirt {
            writes: 1,
            names: 1,
            ..Dirt::default()
        },
        checkpoint: Checkpoint {
            seq: to,
            bytes: Vec::new(),
            freshness: Freshness::Fresh,
        },
        roll_due: RollDue::BySize,
        gap_due: None,
        sealed_at: None,
        head: Head::new(head),
        pinned_after: u64::MAX,
        filling: None,
        broken: None,
        scratch: Vec::new(),
        storage,
        config,
    };
    Ok(Opened {
        appender,
        checkpoint: Vec::new(),
        checkpoint_seq: to,
        records: Vec::new(),
        damage,
        unread: None,
    })
}
