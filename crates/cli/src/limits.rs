//! Every limit of the command line in one place.

use std::time::Duration;

/// Longest wait for a connection to the server.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server of this machine is waited for that may just have been started, as by
/// `outlive serve &` in the line before.
pub const START_WAIT_MAX: Duration = Duration::from_secs(2);

/// How often it is looked for meanwhile.
pub const START_LOOK_EVERY: Duration = Duration::from_millis(20);

/// Longest wait for the answer to a call that only reads.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream without a byte for this long is dead: the server sends a heartbeat every 15 s.
pub const STREAM_SILENCE_MAX: Duration = Duration::from_secs(45);

/// First delay before a stream is opened again.
pub const RECONNECT_DELAY_INITIAL: Duration = Duration::from_millis(100);

/// Longest delay before a stream is opened again.
pub const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(5);

/// How long `run` and `session attach` try to reach a lost server, unless told otherwise.
pub const RECONNECT_SECONDS_DEFAULT: u64 = 300;

/// Longest answer that is read whole, bytes: a page of 10,000 events of 32 KiB.
pub const ANSWER_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Longest line of an event stream, bytes.
pub const STREAM_LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most bytes in one input call: the server's limit.
pub const INPUT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes read from the local standard input at a time.
pub const STDIN_CHUNK_BYTES: usize = 64 * 1024;

/// Chunks of local standard input that wait to be sent.
pub const STDIN_CHUNKS_MAX: usize = 8;

/// Tries of a call that is safe to repeat, the first included.
pub const TRIES_MAX: u32 = 4;

/// Longest wait that a server's `Retry-After` is obeyed for, one try.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

/// How long a terminal that was told the end of our input has for ending, before it is told again:
/// twice as long each time.
pub const END_DELAY_INITIAL: Duration = Duration::from_millis(250);

/// How long a program that reads keys has for leaving at ctrl-d, before its terminal hangs up: also on
/// a machine with much to do, for what it did not read by then is lost.
pub const END_KEY_GRACE: Duration = Duration::from_secs(5);

/// Sessions that an error about an ambiguous name lists.
pub const NAMES_LISTED_MAX: usize = 20;

/// Most characters of a command that a table shows.
pub const COMMAND_CHARS_SHOWN_MAX: usize = 60;

/// Largest specification or profile file, bytes.
pub const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Deepest directory that `sandbox cp` goes into.
pub const COPY_DEPTH_MAX: u32 = 256;

/// Bytes kept of what the sandbox's side of a copy says when it fails.
pub const COPY_WORDS_BYTES_MAX: usize = 4096;

/// Pieces of a copy, of 4 MiB at most, that are asked for before the first of them came: far less
/// than the journal keeps.
pub const COPY_PIECES_MAX: usize = 4;

/// The sandbox's side of a copy ends by itself when nothing came or went for this long, seconds: its
/// client was killed.
pub const COPY_IDLE_SECONDS: u64 = 300;

/// How long a copy looks for a lost server: less than the sandbox's side waits.
pub const COPY_PATIENCE: Duration = Duration::from_mins(4);

/// How often a progress bar is drawn.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Longest code for an interpreter, bytes: the server's limit.
pub const CODE_BYTES_MAX: u64 = 512 * 1024;

/// Longest time the demo may take.
pub const DEMO_DURATION_MAX: Duration = Duration::from_mins(2);

/// Longest wait of the demo for one thing.
pub const DEMO_WAIT_MAX: Duration = Duration::from_secs(15);

/// How often the demo looks at processes and files.
pub const DEMO_POLL: Duration = Duration::from_millis(5);

/// Lines the demo reads before the kills, and again after them.
pub const DEMO_LINES_BEFORE: u64 = 300;

/// Lines of the server's log that a failed demo shows.
pub const DEMO_LOG_LINES: usize = 20;

/// A connection that stood for this long counts as progress when a server is looked for.
pub const CONNECTION_STOOD: Duration = Duration::from_secs(3);

/// How long a signal that tells us to go waits for output that is being written.
pub const WRITE_GRACE: Duration = Duration::from_millis(200);

/// Longest time that looking at this machine may take.
pub const PROBE_MAX: Duration = Duration::from_secs(30);

/// How often `--wait` looks at a sandbox.
pub const WAIT_POLL: Duration = Duration::from_millis(200);

/// How long `--wait` waits, unless told otherwise.
pub const WAIT_SECONDS_DEFAULT: u64 = 60;

/// A call that takes longer shows that it goes on.
pub const SPINNER_DELAY: Duration = Duration::from_millis(400);

/// How often what shows it moves.
pub const SPINNER_TICK: Duration = Duration::from_millis(100);

/// How long a hold lasts, unless told otherwise: an hour.
pub const HOLD_SECONDS_DEFAULT: u64 = 3600;

/// Bytes of an upload that are read at once.
pub const UPLOAD_CHUNK_BYTES: usize = 256 * 1024;
