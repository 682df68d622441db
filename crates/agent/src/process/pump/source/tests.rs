//! Stories of single turns.

use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{super::Fill, *};

/// A file that is full until there is space.
struct Disk {
    has_space: AtomicBool,
    file: Mutex<File>,
}

impl OutputSink for Disk {
    fn append(&self, _stream: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError> {
        let mut file = self.file.lock().unwrap();
        let end = file.seek(io::SeekFrom::End(0)).unwrap();
        let moved = if self.has_space.load(Ordering::Acquire) {
            fill(file.as_fd(), end, 1000)
        } else {
            let full = File::options().write(true).open("/dev/full").unwrap();
            fill(full.as_fd(), 0, 1000)
        };
        moved.map_err(SinkError::Source)
    }

    fn progress(&self, _stream: Stream, _bytes: usize) {}

    fn ended(&self, _stream: Stream, _end: SourceEnd) {}
}

// Where the kernel can't splice, a full disk cost what had been read: up to 64 KiB.
#[test]
fn a_copy_that_meets_a_full_disk_holds_its_bytes() {
    let disk = Arc::new(Disk {
        has_space: AtomicBool::new(false),
        file: Mutex::new(tempfile::tempfile().unwrap()),
    });
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let source = Source::Pipe {
        stream: Stream::Stdout,
        pipe: read,
    };
    let mut flow = Flow::new(source, Arc::clone(&disk) as Arc<dyn OutputSink>, Fate::Kept);
    flow.mover = Mover::Copy;
    let wrote: Vec<u8> = (0..500_u32).flat_map(u32::to_le_bytes).collect();
    File::from(write).write_all(&wrote).unwrap();

    assert!(matches!(flow.turn(), Turn::Full));
    // Held bytes wait like those in the pipe, and there are as many.
    assert_eq!(flow.waiting(), wrote.len());
    assert!(matches!(flow.turn(), Turn::Full));
    disk.has_space.store(true, Ordering::Release);
    assert!(matches!(flow.turn(), Turn::Ended(SourceEnd::Eof)));
    let mut got = Vec::new();
    let mut file = disk.file.lock().unwrap();
    file.rewind().unwrap();
    file.read_to_end(&mut got).unwrap();
    assert!(got == wrote, "{} of {} bytes", got.len(), wrote.len());
}
