//! Stories of the pump: drains, discards, and sinks without room.

use std::{
    fs::File,
    io::Write,
    os::fd::AsFd,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

/// A sink that has no room before it is told so.
#[derive(Debug)]
struct Narrow {
    inner: Arc<Over>,
    has_room: AtomicBool,
}

impl OutputSink for Narrow {
    fn append(&self, stream: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError> {
        if self.has_room.load(Ordering::Acquire) {
            self.inner.append(stream, fill)
        } else {
            Err(SinkError::Full)
        }
    }

    fn progress(&self, stream: Stream, bytes: usize) {
        self.inner.progress(stream, bytes);
    }

    fn ended(&self, _: Stream, _: SourceEnd) {}
}

/// Writes over the start of one file, for ever.
#[derive(Debug)]
struct Over {
    file: File,
    moved: AtomicUsize,
    ended: AtomicUsize,
}

impl Over {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            file: tempfile::tempfile().unwrap(),
            moved: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        })
    }
}

impl OutputSink for Over {
    fn append(&self, _: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError> {
        fill(self.file.as_fd(), 0, 64 * 1024).map_err(SinkError::Source)
    }

    fn progress(&self, _: Stream, bytes: usize) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    fn ended(&self, _: Stream, _: SourceEnd) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes frames of 48 KiB, and tells of each.
#[derive(Debug)]
struct Framed {
    file: File,
    moved: mpsc::Sender<usize>,
}

impl OutputSink for Framed {
    fn append(&self, _: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError> {
        fill(self.file.as_fd(), 0, 48 * 1024).map_err(SinkError::Source)
    }

    fn progress(&self, _: Stream, bytes: usize) {
        self.moved.send(bytes).unwrap();
    }

    fn ended(&self, _: Stream, _: SourceEnd) {}
}

fn pipe() -> (Source, OwnedFd) {
    let (pipe, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let stream = Stream::Stdout;
    (Source::Pipe { stream, pipe }, theirs)
}

fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(Duration::from_secs(30), work).await })
        .unwrap()
}

#[test]
fn a_writer_that_never_stops_does_not_hold_a_drain_up() {
    let pump = Pump::start().unwrap();
    let (source, theirs) = pipe();
    let id = pump.attach(0, source, Over::new()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut theirs = File::from(theirs);
            let mut written = Ok(());
            while !over.load(Ordering::Relaxed) && written.is_ok() {
                written = theirs.write_all(&[b'y'; 4096]);
            }
        });
        for _ in 0..20 {
            soon(pump.drain(id)).unwrap();
        }
        soon(pump.detach(id)).unwrap();
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_crowd_of_keystrokes_refuses_no_source_and_no_drain() {
    let pump = Pump::start().unwrap();
    let (source, theirs) = pipe();
    let sink = Over::new();
    let id = pump.attach(0, source, Arc::clone(&sink) as _).unwrap();
    for _ in 0..100 * PUMP_COMMANDS_MAX {
        pump.typed(id).unwrap();
    }
    let (other, _others) = pipe();
    pump.attach(0, other, Over::new()).unwrap();
    rustix::io::write(&theirs, b"last words").unwrap();
    soon(pump.detach(id)).unwrap();
    assert_eq!(sink.moved.load(Ordering::Relaxed), 10);
}

// Who wrote to a pipe after its reader had let it go was killed by the signal for that.
#[test]
fn a_discarded_source_takes_bytes_for_ever_and_keeps_none() {
    let pump = Pump::start().unwrap();
    let (source, theirs) = pipe();
    let sink = Over::new();
    let id = pump.attach(0, source, Arc::clone(&sink) as _).unwrap();
    let mut theirs = File::from(theirs);
    theirs.write_all(b"kept").unwrap();
    soon(pump.discard(id)).unwrap();
    // More than a pipe holds: without a reader this would wait for ever.
    theirs.write_all(&vec![b'y'; 4 << 20]).unwrap();
    soon(pump.drain(id)).unwrap();
    assert_eq!(sink.moved.load(Ordering::Relaxed), 4);
    assert_eq!(sink.ended.load(Ordering::Relaxed), 0);
    drop(theirs);
    soon(pump.drain(id)).unwrap();
    assert_eq!(sink.ended.load(Ordering::Relaxed), 1);
}

#[test]
fn a_closed_source_has_no_reader_left() {
    let pump = Pump::start().unwrap();
    let (source, theirs) = pipe();
    let id = pump.attach_discarding(0, source, Over::new()).unwrap();
    let mut theirs = File::from(theirs);
    theirs.write_all(b"thrown away").unwrap();
    pump.close(id).unwrap();
    soon(pump.drain(id)).unwrap();
    let error = theirs.write_all(b"refused").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

/// A source that comes to such an end while its last bytes have nowhere to go: the end waits
/// until they have. What is left of it then.
fn ended_without_room(then: Then) -> (Pump, File, Arc<Narrow>) {
    let pump = Pump::start().unwrap();
    let (source, theirs) = pipe();
    let sink = Arc::new(Narrow {
        inner: Over::new(),
        has_room: AtomicBool::new(false),
    });
    let id = pump.attach(0, source, Arc::clone(&sink) as _).unwrap();
    let mut theirs = File::from(theirs);
    theirs.write_all(b"last words").unwrap();
    soon(async {
        let mut ended = std::pin::pin!(pump.finish(id, then));
        // Commands are carried out in their order, so it was tried by the end of this one.
        let tried = pump.drain(id);
        tokio::select! {
            biased;
            _ = ended.as_mut() => panic!("its bytes have nowhere to go"),
            tried = tried => tried.unwrap(),
        }
        sink.has_room.store(true, Ordering::Release);
        pump.resume(id).unwrap();
        ended.await.unwrap();
    });
    assert_eq!(sink.inner.moved.load(Ordering::Relaxed), 10);
    (pump, theirs, sink)
}

// Its last bytes had no room when it was to be discarded: they are kept all the same.
#[test]
fn a_source_is_discarded_once_its_last_bytes_have_room() {
    let (_pump, mut theirs, sink) = ended_without_room(Then::Discard);
    theirs.write_all(&vec![b'y'; 1 << 20]).unwrap();
    assert_eq!(sink.inner.moved.load(Ordering::Relaxed), 10);
}

// A source that was let go on a full disk took its last bytes with it.
#[test]
fn a_source_is_let_go_once_its_last_bytes_have_room() {
    ended_without_room(Then::Detach);
}

// A turn that was over just when the terminal fell silent left what it had taken in the spill
// pipe, where nobody saw it before the program wrote again.
#[test]
fn the_end_of_a_flood_is_shown_though_its_turn_is_over() {
    let (terminal, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    rustix::pipe::fcntl_setpipe_size(&terminal, 1 << 20).unwrap();
    let (spill_read, spill_write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let source = Source::Terminal {
        master: Arc::new(terminal),
        spill_read,
        spill_write,
    };
    // Six frames are more than a turn, and by then the spill pipe took a third of one ahead.
    let flood = vec![b'y'; 304 * 1024];
    File::from(theirs.try_clone().unwrap())
        .write_all(&flood)
        .unwrap();
    let (moved, moves) = mpsc::channel();
    let file = tempfile::tempfile().unwrap();
    let pump = Pump::start().unwrap();
    pump.attach(0, source, Arc::new(Framed { file, moved }))
        .unwrap();
    let mut shown = 0;
    while shown < flood.len() {
        shown += moves.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}

/// Whether a drain of everything wakes nobody.
fn sleeps(pump: &Pump) -> bool {
    let threads = &pump.shared.threads;
    threads.iter().all(|thread| thread.has_nothing_to_do())
}

// A freeze of a silent sandbox waited for two threads that had nothing to do.
#[test]
fn a_pump_that_sleeps_over_silent_pipes_is_not_woken() {
    let pump = Pump::start().unwrap();
    let sink = Over::new();
    let (source, theirs) = pipe();
    let _id = pump.attach(0, source, Arc::clone(&sink) as _).unwrap();
    rustix::io::write(&theirs, b"something").unwrap();
    soon(pump.drain_all()).unwrap();
    assert_eq!(sink.moved.load(Ordering::Relaxed), 9);
    while !sleeps(&pump) {
        std::thread::yield_now(); // It is on its way to sleep.
    }
    // What a sink has no room for is tried by every drain.
    let narrow = Arc::new(Narrow {
        inner: Over::new(),
        has_room: AtomicBool::new(false),
    });
    let (source, theirs) = pipe();
    let id = pump.attach(0, source, Arc::clone(&narrow) as _).unwrap();
    rustix::io::write(&theirs, b"waits").unwrap();
    soon(pump.drain(id)).unwrap();
    assert!(!sleeps(&pump));
    narrow.has_room.store(true, Ordering::Release);
    soon(pump.drain_all()).unwrap();
    assert_eq!(narrow.inner.moved.load(Ordering::Relaxed), 5);
}

#[test]
fn what_was_written_before_a_drain_of_everything_is_in_its_sink_after_it() {
    let pump = Pump::start().unwrap();
    let flows: Vec<_> = (0..4)
        .map(|lane| {
            let (source, theirs) = pipe();
            let sink = Over::new();
            pump.attach(lane, source, Arc::clone(&sink) as _).unwrap();
            (theirs, sink)
        })
        .collect();
    let mut written = [0; 4];
    soon(async {
        for round in 0..20_000_usize {
            // Now a flood, now a single byte that finds the threads anywhere on their way to sleep.
            let at = round * 7 % 4;
            let bytes = 1 + round * 31 % 97;
            written[at] += rustix::io::write(&flows[at].0, &[b'x'; 97][..bytes]).unwrap();
            for _ in 0..round % 50 {
                std::hint::spin_loop();
            }
            pump.drain_all().await.unwrap();
            let moved = flows[at].1.moved.load(Ordering::Relaxed);
            assert_eq!(moved, written[at], "round {round}");
        }
    });
}
