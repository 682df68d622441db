//! What the keeper keeps: descriptors by name, and exit records. Both have a limit.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::wire::{ExitRecord, Label};
use crate::limits::{EXITS_MAX, KEEPER_BATCH_MAX, KEPT_FDS_MAX, KEPT_NAME_BYTES_MAX};

/// Descriptors by name, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Store {
    entries: Vec<(Label, OwnedFd)>,
}

impl Store {
    /// Keeps all or none.
    pub(super) fn put(&mut self, labels: Vec<Label>, fds: Vec<OwnedFd>) -> Result<(), String> {
        if labels.len() != fds.len() {
            return Err(format!(
                "{} names for {} descriptors",
                labels.len(),
                fds.len()
            ));
        }
        if self.entries.len() + labels.len() > KEPT_FDS_MAX {
            return Err(format!("more than {KEPT_FDS_MAX} descriptors"));
        }
        if labels
            .iter()
            .any(|l| l.name.is_empty() || l.name.len() > KEPT_NAME_BYTES_MAX)
        {
            return Err(format!("names have 1 to {KEPT_NAME_BYTES_MAX} bytes"));
        }
        for (label, fd) in labels.into_iter().zip(fds) {
            match self.entries.iter_mut().find(|(l, _)| l.name == label.name) {
                Some(entry) => *entry = (label, fd),
                None => self.entries.push((label, fd)),
            }
        }
        Ok(())
    }

    /// One page of the store, and where the next begins.
    pub(super) fn page(&self, from: u32) -> (Vec<Label>, Vec<BorrowedFd<'_>>, Option<u32>) {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let rest = self.entries.get(from..).unwrap_or_default();
        let page = rest.get(..KEEPER_BATCH_MAX).unwrap_or(rest);
        let next = (page.len() < rest.len()).then(|| u32::try_from(from + page.len()).ok());
        (
            page.iter().map(|(label, _)| label.clone()).collect(),
            page.iter().map(|(_, fd)| fd.as_fd()).collect(),
            next.flatten(),
        )
    }

    /// Closes these.
    pub(super) fn del(&mut self, names: &[String]) {
        self.entries
            .retain(|(label, _)| !names.contains(&label.name));
    }

    /// The kept pidfds of a process with this id; an id may have been used before.
    pub(super) fn processes(&self, pid: u32) -> impl Iterator<Item = (&Label, BorrowedFd<'_>)> {
        self.entries
            .iter()
            .filter(move |(label, _)| label.pid == pid && pid != 0)
            .map(|(label, fd)| (label, fd.as_fd()))
    }

    pub(super) fn find(&self, name: &str) -> Option<(&Label, BorrowedFd<'_>)> {
        self.entries
            .iter()
            .find(|(label, _)| label.name == name)
            .map(|(label, fd)| (label, fd.as_fd()))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Label, BorrowedFd<'_>)> {
        self.entries.iter().map(|(label, fd)| (label, fd.as_fd()))
    }
}

/// Exit records in memory and in the state directory's `exits`, in step.
///
/// On disk a record has [`RECORD_BYTES`] bytes, little-endian, and is written by one `write`
/// before the process is reaped:
///
/// ```text
///   0  magic "OXR1"        4  pid u32        8  start ticks u64    16  seen at, unix ns i64
///  24  user µs u64        32  system µs u64 40  max RSS KiB u64
///  48  kind (0 code, 1 signal, 2 unknown)  49  value  50  core 0/1  51  name length
///  52  name, padded with zeros            184  FNV-1a of the 184 bytes before, u64
/// ```
#[derive(Debug)]
pub(super) struct Exits {
    records: Vec<ExitRecord>,
    file: OwnedFd,
}

/// Length of one record on disk.
const RECORD_BYTES: usize = 192;
const NAME_AT: usize = 52;
const SUM_AT: usize = 184;

impl Exits {
    pub(super) fn new(records: Vec<ExitRecord>, file: OwnedFd) -> Self {
        Self { records, file }
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn records(&self) -> &[ExitRecord] {
        &self.records
    }

    /// Remembers a record, and writes it down. It is remembered whatever becomes of the file,
    /// and the file has whole records only.
    pub(super) fn push(&mut self, record: ExitRecord) -> io::Result<()> {
        let bytes = encode(&record);
        if self.records.len() >= EXITS_MAX {
            self.records.remove(0);
        }
        self.records.push(record);
        let before = rustix::fs::fstat(&self.file)?.st_size;
        let written = rustix::io::write(&self.file, &bytes)?;
        if written != bytes.len() {
            rustix::fs::ftruncate(&self.file, u64::try_from(before).map_err(io::Error::other)?)?;
            return Err(io::Error::other("exit record was written in part"));
        }
        Ok(())
    }

    /// Forgets records; the file is emptied with the last one.
    pub(super) fn del(&mut self, names: &[String]) -> io::Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        self.records.retain(|r| !names.contains(&r.name));
        if self.records.is_empty() {
            rustix::fs::ftruncate(&self.file, 0)?;
        }
        Ok(())
    }
}

fn encode(record: &ExitRecord) -> [u8; RECORD_BYTES] {
    use outlive_core::event::ExitStatus;

    let (kind, value, core) = match record.status {
        ExitStatus::Code(code) => (0, code, 0),
        ExitStatus::Signal { signal, core } => (1, signal, u8::from(core)),
        ExitStatus::Unknown => (2, 0, 0),
    };
    let name = record.name.as_bytes();
    let mut bytes = Vec::with_capacity(RECORD_BYTES);
    bytes.extend_from_slice(b"OXR1");
    bytes.extend_from_slice(&record.pid.to_le_bytes());
    bytes.extend_from_slice(&record.start_ticks.to_le_bytes());
    bytes.extend_from_slice(&record.at_ns.to_le_bytes());
    bytes.extend_from_slice(&record.rusage.user_us.to_le_bytes());
    bytes.extend_from_slice(&record.rusage.system_us.to_le_bytes());
    bytes.extend_from_slice(&record.rusage.rss_kib_max.to_le_bytes());
    bytes.extend_from_slice(&[kind, value, core, u8::try_from(name.len()).unwrap_or(0)]);
    bytes.extend_from_slice(name);
    bytes.resize(SUM_AT, 0);
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let mut fixed = [0; RECORD_BYTES];
    fixed.copy_from_slice(&bytes);
    fixed
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads the records of an `exits` file: what a keeper saw that died before it could tell a
/// supervisor. Of too many the oldest go first; one that was cut or damaged is left out.
pub(crate) fn decode_exits(bytes: &[u8]) -> Vec<ExitRecord> {
    let excess = (bytes.len() / RECORD_BYTES).saturating_sub(EXITS_MAX);
    bytes
        .chunks_exact(RECORD_BYTES)
        .skip(excess)
        .filter_map(decode)
        .collect()
}

fn decode(bytes: &[u8]) -> Option<ExitRecord> {
    use outlive_core::event::{ExitStatus, Rusage};

    let at = |from: usize| -> Option<[u8; 8]> { bytes.get(from..from + 8)?.try_into().ok() };
    let sum = u64::from_le_bytes(at(SUM_AT)?);
    if bytes.get(..4)? != b"OXR1" || checksum(bytes.get(..SUM_AT)?) != sum {
        return None;
    }
    let [kind, value, core, name_length] = bytes.get(48..NAME_AT)?.try_into().ok()?;
    let name = bytes.get(NAME_AT..NAME_AT + usize::from(name_length))?;
    Some(ExitRecord {
        name: String::from_utf8(name.to_vec()).ok()?,
        pid: u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?),
        start_ticks: u64::from_le_bytes(at(8)?),
        at_ns: i64::from_le_bytes(at(16)?),
        rusage: Rusage {
            user_us: u64::from_le_bytes(at(24)?),
            system_us: u64::from_le_bytes(at(32)?),
            rss_kib_max: u64::from_le_bytes(at(40)?),
        },
        status: match kind {
            0 => ExitStatus::Code(value),
            1 => ExitStatus::Signal {
                signal: value,
                core: core != 0,
            },
            _ => ExitStatus::Unknown,
        },
    })
}

#[cfg(test)]
mod tests {
    use outlive_core::event::{ExitStatus, Rusage};

    use super::*;

    fn record(status: ExitStatus) -> ExitRecord {
        ExitRecord {
            name: "ses-0123abcd-456/7/pid".to_owned(),
            pid: 4711,
            start_ticks: 99,
            status,
            rusage: Rusage {
                user_us: 1,
                system_us: 2,
                rss_kib_max: 3,
            },
            at_ns: 5,
        }
    }

    #[test]
    fn an_exit_record_reads_back_as_it_was_written() {
        for status in [
            ExitStatus::Code(200),
            ExitStatus::Signal {
                signal: 9,
                core: false,
            },
            ExitStatus::Unknown,
        ] {
            let bytes = encode(&record(status));
            assert_eq!(decode_exits(&bytes), vec![record(status)]);
        }
    }

    #[test]
    fn an_exit_is_remembered_though_its_file_takes_nothing() {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut exits = Exits::new(Vec::new(), full.unwrap().into());
        assert!(exits.push(record(ExitStatus::Code(3))).is_err());
        assert_eq!(exits.records(), [record(ExitStatus::Code(3))]);
    }

    #[test]
    fn a_damaged_exit_record_is_left_out_and_its_neighbours_stay() {
        let mut bytes = encode(&record(ExitStatus::Code(1))).to_vec();
        bytes.extend_from_slice(&encode(&record(ExitStatus::Code(2))));
        bytes[49] ^= 1;
        bytes.extend_from_slice(b"OXR1 torn");
        assert_eq!(decode_exits(&bytes), vec![record(ExitStatus::Code(2))]);
    }
}
