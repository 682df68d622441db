//! Every limit of this crate, in one place.

use std::time::Duration;

/// Elements of a command.
pub const COMMAND_ELEMENTS_MAX: usize = 4096;
/// Bytes of a command and its environment together, terminators included.
pub const COMMAND_ENV_BYTES_MAX: usize = 1024 * 1024;
/// Characters of a session's name.
pub const NAME_CHARS_MAX: usize = 128;
/// Bytes of a working directory: what the kernel takes for a path.
pub const CWD_BYTES_MAX: usize = 4095;
/// Bytes of a terminal type.
pub const TERM_BYTES_MAX: usize = 128;
/// Bytes of the text that makes an attempt ready.
pub const READINESS_OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Characters of an idempotency key.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 255;
/// Characters of an input's id.
pub const INPUT_ID_CHARS_MAX: usize = 128;
/// Bytes of one input, decoded.
pub const INPUT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Writes that wait in an attempt's input queue.
pub const INPUT_QUEUE_WRITES_MAX: usize = 256;
/// Bytes that wait in an attempt's input queue.
pub const INPUT_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Sessions of a sandbox.
pub const SESSIONS_MAX: usize = 4096;
/// Attempts that a session remembers, the newest included.
pub const ATTEMPTS_KEPT_MAX: usize = 64;
/// Calls that a session remembers having carried out.
pub const CALLS_KEPT_MAX: usize = 32;
/// Bytes kept of the message that says why a start failed.
pub const START_MESSAGE_BYTES_MAX: usize = 1024;
/// Entries of a restart window that are kept apart; beyond it neighbours are joined.
pub const RESTART_ENTRIES_MAX: usize = 256;
/// How long an attempt stays ready, at least, before its next restart starts again with the
/// initial backoff.
pub const STABLE_READY_MIN: Duration = Duration::from_secs(10);
/// Longest wait for a tree to be gone after the kill.
pub const KILL_WAIT: Duration = Duration::from_secs(5);

/// Default lines of a terminal.
pub const ROWS_DEFAULT: u16 = 24;
/// Default columns of a terminal.
pub const COLS_DEFAULT: u16 = 80;
/// Default terminal type.
pub const TERM_DEFAULT: &str = "xterm-256color";
/// Default number of restarts in a window.
pub const RESTARTS_DEFAULT: u32 = 5;
/// Default restart window, seconds.
pub const WINDOW_SECONDS_DEFAULT: u32 = 60;
/// Default delay before the first restart, milliseconds.
pub const BACKOFF_MS_INITIAL_DEFAULT: u32 = 250;
/// Default longest delay, milliseconds.
pub const BACKOFF_MS_MAX_DEFAULT: u32 = 5000;
/// Default grace between the stop signal and the kill, seconds.
pub const STOP_GRACE_SECONDS_DEFAULT: u32 = 10;
/// Default patience for readiness, milliseconds.
pub const READINESS_TIMEOUT_MS_DEFAULT: u32 = 30_000;
/// Default bytes of events kept.
pub const RETENTION_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;
/// Default age of events kept, seconds.
pub const RETENTION_AGE_SECONDS_DEFAULT: u64 = 24 * 60 * 60;

/// Holds of one sandbox at the same time.
pub const HOLDS_MAX: usize = 64;
/// Starts of a runtime that are tried by themselves, one after another.
pub const RUNTIME_STARTS_MAX: u32 = 5;
/// First pause before a step with a runtime is tried again.
pub const RUNTIME_BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a step with a runtime is tried again.
pub const RUNTIME_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A runtime that lived so long did not die young.
pub const RUNTIME_STABLE_MIN: Duration = Duration::from_secs(10);

/// Longest name of a user or group, bytes.
pub const USER_BYTES_MAX: usize = 64;

/// Users and groups of a sandbox by number: 0 to one below.
pub const IDS_MAX: u32 = 65_536;

/// How long a sandbox with a full disk may run after a resume, to make room.
pub const DISK_ROOM_MAX: Duration = Duration::from_mins(1);
