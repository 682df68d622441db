//! Every limit of this crate, in one place.

use std::time::Duration;

/// Descriptors that the keeper holds at most: 4,096 sessions with eight each.
pub const KEPT_FDS_MAX: usize = 32_768;
/// Longest name of a kept descriptor, bytes.
pub const KEPT_NAME_BYTES_MAX: usize = 128;
/// Descriptors in one message to or from the keeper.
pub const KEEPER_BATCH_MAX: usize = 64;
/// Exit records in one message from the keeper.
pub const EXITS_BATCH_MAX: usize = 128;
/// Exit records that the keeper holds at most; the oldest goes first.
pub const EXITS_MAX: usize = 16_384;
/// Longest message between keeper and supervisor, bytes.
pub const KEEPER_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// How long the supervisor waits for an answer of its keeper.
pub const KEEPER_ANSWER_MAX: Duration = Duration::from_secs(10);
/// First delay before a supervisor that never got ready is started again.
pub const SUPERVISOR_BACKOFF_INITIAL: Duration = Duration::from_millis(10);
/// Longest such delay.
pub const SUPERVISOR_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A supervisor that served and lived shorter than this ended too early.
pub const SUPERVISOR_LIFE_SHORT: Duration = Duration::from_secs(1);
/// Longest delay before one is started again that ended too early.
pub const SUPERVISOR_BACKOFF_SERVED_MAX: Duration = Duration::from_millis(100);
/// A new executable that crashes this often before it is ready makes way for the old one.
pub const UPGRADE_CRASHES_MAX: u32 = 3;
/// How long the launcher waits until the supervisor is ready.
pub const LAUNCH_READY_MAX: Duration = Duration::from_secs(30);
/// The agent's own log is emptied at a start above this size, bytes.
pub const AGENT_LOG_BYTES_MAX: u64 = 256 * 1024;
/// Starts that may wait for the spawner thread.
pub const SPAWN_QUEUE_MAX: usize = 256;
/// Pump threads at most.
pub const PUMP_THREADS_MAX: usize = 2;
/// Bytes that one source moves in one turn of a pump.
pub const PUMP_TURN_BYTES_MAX: usize = 256 * 1024;
/// Bytes that one splice takes from a terminal.
pub const PTY_SPLICE_BYTES_MAX: usize = 4096;
/// Bytes that one read takes of output that nobody wants.
pub const DISCARD_BYTES: usize = 16 * 1024;
/// Size that a flooded pipe grows to, where the kernel allows.
pub const PIPE_BYTES_FLOODED: usize = 1024 * 1024;
/// How long a pump gathers after a short read under flood.
pub const PUMP_GATHER: Duration = Duration::from_micros(200);
/// A small frame that follows another this closely is part of a flood.
pub const PUMP_FLOOD_GAP: Duration = Duration::from_micros(500);
/// Output isn't gathered this long after input arrived: somebody types.
pub const PUMP_ECHO_SPAN: Duration = Duration::from_millis(50);
/// Fewer waiting bytes than this are a short read.
pub const PUMP_SHORT_BYTES: usize = 32 * 1024;
/// Commands that may wait for a pump thread before it is no longer told of keystrokes.
pub const PUMP_COMMANDS_MAX: usize = 1024;

/// How long a supervisor waits until another no longer writes to the state directory.
pub(crate) const STATE_LOCK_WAIT: Duration = Duration::from_secs(10);

/// Links that may watch at once. Two is normal: a server and the one that replaces it.
pub(crate) const WATCHERS_MAX: usize = 8;

/// Links at once; more are closed when they come.
pub(crate) const LINKS_MAX: usize = 16;

/// Calls of one link that may be under way; the link is not read while there are more.
pub(crate) const LINK_CALLS_MAX: usize = 8192;

/// Bytes of requests of one link that may be under way; the link is not read while there are more.
pub(crate) const LINK_REQUEST_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// Replies of one link that wait for its socket.
pub(crate) const LINK_REPLIES_MAX: usize = 256;

/// Between two messages about output that a link gets while output floods. A lone line is told at
/// once, and so is anything else than output; what is told less often costs both sides less.
pub(crate) const LINK_NEWS_EVERY: Duration = Duration::from_micros(500);

/// Messages about output that may follow each other faster than that.
pub(crate) const LINK_NEWS_BURST: u32 = 8;

/// How long a link may take to say hello.
pub(crate) const LINK_HELLO_WAIT: Duration = Duration::from_secs(5);

/// Sessions of a sandbox.
pub(crate) const SESSIONS_MAX: u32 = 4096;

/// Messages that wait for one session's driver.
pub(crate) const MAILBOX_MAX: usize = 64;

/// Calls that wait until one session's change is over.
pub(crate) const WAITERS_MAX: usize = 1024;

/// Journals that are opened at once when a supervisor starts.
pub(crate) const OPENS_AT_ONCE: usize = 4;

/// How long a list waits for sessions that are still being opened or taken over.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(2);

/// How long data of class B may wait for its sync.
pub(crate) const GROUP_SYNC_WAIT: Duration = Duration::from_millis(200);

/// Threads that wait for the disk.
pub(crate) const SYNC_THREADS_MAX: usize = 4;

/// How long a start may take from its release to its program; a directory or a program on a disk
/// that does not answer would hold it for ever.
pub(crate) const EXEC_WAIT: Duration = Duration::from_secs(10);

/// How long a start that is under way holds a release up.
pub(crate) const START_RELEASE_WAIT: Duration = Duration::from_secs(2);

/// How long a start that is under way may hold a freeze up before the freeze is given up.
pub(crate) const START_FREEZE_WAIT: Duration = Duration::from_secs(2);

/// How often a freeze looks whether the processes stand still before it waits to be told: few need
/// longer than some 10 µs, and so long takes a look.
pub(crate) const FREEZE_LOOKS: u32 = 32;

/// How often it looks from then on.
pub(crate) const FREEZE_LOOK_PAUSE: Duration = Duration::from_millis(1);

/// How long processes may take to stand still before a freeze is given up.
pub(crate) const FREEZE_WAIT: Duration = Duration::from_secs(2);

/// How long all sessions together may take for one step of a freeze or a thaw.
pub(crate) const FREEZE_ANSWERS_WAIT: Duration = Duration::from_secs(10);

/// As many journals of a freeze are synced one by one; more by one sync of their file system.
pub(crate) const SYNCS_ONE_BY_ONE_MAX: usize = 4;

/// How long descendants that hold an attempt's output may be silent before it counts as drained.
pub(crate) const DRAIN_IDLE: Duration = Duration::from_millis(200);

/// How long they may go on writing at most.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long the last output of a runtime that goes may take: longer than it takes without a full
/// disk, and shorter than the server waits.
pub(crate) const RELEASE_DRAIN_MAX: Duration = Duration::from_secs(10);

/// Inputs of one attempt that are remembered because their delivery failed.
pub(crate) const UNSETTLED_INPUTS_MAX: usize = 1024;

/// Trees of ended attempts that one session may leave behind; the oldest is killed beyond.
pub(crate) const LEFTOVERS_MAX: usize = 16;

/// Such trees of all sessions together: each holds descriptors. Beyond, the oldest of the session
/// that leaves one more is killed.
pub(crate) const LEFTOVERS_ALL_MAX: usize = 1024;

/// Pause between two looks whether a tree's members stopped, where no control group tells.
pub(crate) const STOP_WALK_PAUSE: Duration = Duration::from_millis(1);

/// Pause between two looks for a tree's members where no control group tells.
pub(crate) const TREE_WALK_PAUSE: Duration = Duration::from_millis(20);

/// How soon a full disk is tried again.
pub(crate) const FULL_RETRY: Duration = Duration::from_millis(250);

/// Bytes of a line that a terminal in canonical mode takes: the kernel's `N_TTY_BUF_SIZE`, less
/// one for the line's end.
pub(crate) const CANONICAL_LINE_BYTES_MAX: usize = 4095;

/// Bytes of one frame of output.
pub(crate) const OUTPUT_FRAME_BYTES_MAX: usize = 64 * 1024;

/// Shortest pause between two turns of a journal's maintenance.
pub(crate) const MAINTENANCE_PAUSE: Duration = Duration::from_secs(1);

/// Bytes of one page when written output is searched.
pub(crate) const SEARCH_PAGE_BYTES: usize = 256 * 1024;

/// Records of such a page.
pub(crate) const SEARCH_PAGE_RECORDS: usize = 1024;

/// Bytes of the disk that only what must be journalled may use.
pub(crate) const RESERVE_BYTES: u64 = 1024 * 1024;
/// As much of `/etc/passwd` is read, bytes.
pub const PASSWD_BYTES_MAX: u64 = 1 << 20;

/// Directories inside each other that a copy of a disk follows.
pub const COPY_DEPTH_MAX: usize = 400;
/// Stack of a copy: enough for as many directories.
pub const COPY_STACK_BYTES: usize = 64 << 20;
/// How often a copy says how far it is.
pub const COPY_NEWS_EVERY: Duration = Duration::from_millis(200);
/// Bytes that a copy moves between two looks at the clock.
pub const COPY_PIECE_BYTES: usize = 64 << 20;
/// Longest value, and longest list of names, of a file's extended attributes: the kernel's own.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

/// Further groups of one process.
pub(crate) const GROUPS_MAX: usize = 64;

/// How long the kernel may take to say what became of a request about networks: it says so before
/// the request returns.
pub(crate) const KERNEL_ANSWER_MAX: Duration = Duration::from_secs(5);

/// Terminals of a sandbox, those of its sessions and those that its programs open: the kernel has
/// some 3,000 for everybody.
pub(crate) const TERMINALS_MAX: u32 = 512;

/// Instances of inotify that a sandbox may have.
pub(crate) const INOTIFY_INSTANCES_MAX: u64 = 64;

/// Files that a sandbox may watch by inotify.
pub(crate) const INOTIFY_WATCHES_MAX: u64 = 65_536;

/// Namespaces of each kind that a sandbox may have.
pub(crate) const NAMESPACES_MAX: u64 = 1000;
