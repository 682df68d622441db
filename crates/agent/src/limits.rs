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
/// Commands that may wait for a pump thread.
pub const PUMP_COMMANDS_MAX: usize = 1024;
