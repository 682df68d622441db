//! A journal beside a disk that doesn't answer.

use std::{
    fmt,
    os::fd::BorrowedFd,
    path::Path,
    sync::{Condvar, mpsc},
    thread,
    time::Duration,
};

use outlive_core::{event::Created, id::SessionId, spec::RawSpec};
use outlive_journal::{
    FileStorage,
    storage::{Access, DataFile, NameSync, Storage},
};

use super::*;

/// A disk whose syncs wait until they are let through.
#[derive(Debug)]
struct SlowDisk {
    inner: Arc<dyn Storage>,
    gate: Arc<Gate>,
}

struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    /// Told of every sync that begins to wait.
    waits: mpsc::Sender<()>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    fn pass(&self) {
        self.waits.send(()).unwrap();
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Storage for SlowDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DataFile>> {
        let (inner, gate) = (self.inner.create(name)?, Arc::clone(&self.gate));
        Ok(Arc::new(SlowFile { inner, gate }))
    }
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DataFile>> {
        self.inner.open(name, access)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.sync_directory()
    }
    fn name_sync(&self) -> NameSync {
        self.inner.name_sync()
    }
    fn secret(&self) -> io::Result<u32> {
        self.inner.secret()
    }
}

#[derive(Debug)]
struct SlowFile {
    inner: Arc<dyn DataFile>,
    gate: Arc<Gate>,
}

impl DataFile for SlowFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn write_all_at(&self, head: &[u8], body: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(head, body, offset)
    }
    fn byte_len(&self) -> io::Result<u64> {
        self.inner.byte_len()
    }
    fn truncate(&self, byte_len: u64) -> io::Result<()> {
        self.inner.truncate(byte_len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.sync_data()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }
}

fn journal_in(path: &Path) -> (SessionJournal, Session) {
    let around = JournalSurroundings {
        clock: Arc::new(Clock::system()),
        syncer: Syncer::inline(),
        tails: Arc::default(),
        boot_id: [1; 16],
        generation: Generation::FIRST,
    };
    let raw = RawSpec {
        command: Some(vec!["program".to_owned()]),
        ..RawSpec::default()
    };
    let created = Created {
        spec: raw.validate().unwrap(),
        idempotency_key: None,
        handle: None,
        kind: None,
    };
    let id = SessionId::from_bits(1);
    let retention = created.spec.retention;
    let events = Session::create(created).events;
    SessionJournal::create(&around, path, &id, retention, events).unwrap()
}

fn accepted(input_id: &str) -> Vec<Body> {
    vec![Body::InputAccepted {
        input_id: input_id.to_owned(),
        digest: 7,
        bytes: 1,
        eof: None,
        truncated_line: false,
    }]
}

// Receipts were sealed with the receipts locked: an input on its way met an fsync.
#[test]
fn an_input_is_not_held_up_by_receipts_on_their_way_to_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let (journal, session) = journal_in(&path);
    let (waits, waiting) = mpsc::channel();
    let gate = Arc::new(Gate {
        is_open: Mutex::new(false),
        opened: Condvar::new(),
        waits,
    });
    let disk = Arc::new(SlowDisk {
        inner: FileStorage::open(&path).unwrap(),
        gate: Arc::clone(&gate),
    });
    *journal.shared.receipts() = Receipts::open(disk).unwrap();
    let session = journal.append(&session, accepted("first"), None).unwrap();
    let last = session.last_seq();

    let shared = Arc::clone(&journal.shared);
    let sealing = thread::spawn(move || shared.seal_receipts(last, last, 1));
    waiting.recv().unwrap();
    // The disk waits, and this doesn't.
    let typist = journal.clone();
    let (done, typed) = mpsc::channel();
    thread::spawn(move || {
        assert!(typist.reserve_receipt().unwrap());
        assert_eq!(typist.find_receipt("first").unwrap(), Some(7));
        typist.append(&session, accepted("second"), None).unwrap();
        assert_eq!(typist.find_receipt("second").unwrap(), Some(7));
        done.send(()).unwrap();
    });
    typed.recv_timeout(Duration::from_secs(20)).unwrap();
    gate.open();
    assert_eq!(sealing.join().unwrap().unwrap(), last);
    for input in ["first", "second"] {
        assert_eq!(journal.find_receipt(input).unwrap(), Some(7));
    }
}
