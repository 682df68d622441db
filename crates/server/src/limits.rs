//! Every bound of the server in one place.

use std::time::Duration;

/// Largest request body, bytes.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Longest time a client may take to send the head of a request.
pub(crate) const HEAD_READ_MAX: Duration = Duration::from_secs(15);

/// Longest path and query of a request, bytes. One that is longer than 64 KiB is not even read.
pub(crate) const ADDRESS_BYTES_MAX: usize = 16 * 1024;

/// Headers of a request.
pub(crate) const HEADERS_MAX: usize = 100;

/// So many are read, to refuse them with a reason.
pub(crate) const HEADERS_READ_MAX: usize = 512;

/// Names and values of a request's headers, bytes.
pub(crate) const HEADERS_BYTES_MAX: usize = 64 * 1024;

/// Open connections; more wait in the kernel's accept queue.
pub(crate) const CONNECTIONS_MAX: usize = 8192;

/// How long connections may go on after the server was told to stop.
pub(crate) const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// How long a call waits for a supervisor that is being restarted.
pub(crate) const AGENT_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long a new runtime may take until its supervisor answers.
pub(crate) const AGENT_START_MAX: Duration = Duration::from_secs(30);

/// How long a release may take before the runtime is killed: the longest stop grace has no bound,
/// but a release kills at once, so this only covers slow disks.
pub(crate) const RELEASE_MAX: Duration = Duration::from_secs(30);

/// How long a killed keeper may take to be gone.
pub(crate) const KEEPER_KILL_MAX: Duration = Duration::from_secs(10);

/// Pause between two looks for a keeper whose end can't be waited for.
pub(crate) const KEEPER_LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Pause between two attempts to reach a supervisor: first and longest.
pub(crate) const RECONNECT_MIN: Duration = Duration::from_millis(2);
/// See [`RECONNECT_MIN`].
pub(crate) const RECONNECT_MAX: Duration = Duration::from_millis(100);

/// How long a supervisor may take to answer the handshake.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// How long nothing may come over a link on which calls wait, until it is seen whether anybody is
/// there. With [`HANDSHAKE_MAX`] for the answer to that, a call ends in 15 s when its supervisor was
/// stopped or hangs: what only takes its time is heard of much sooner.
pub(crate) const LINK_QUIET_MAX: Duration = Duration::from_secs(5);

/// Calls of one link that wait to be written.
pub(crate) const LINK_QUEUE_MAX: usize = 256;

/// Calls of one link that wait for an answer.
pub(crate) const LINK_PENDING_MAX: usize = 8192;

/// Commands that wait for one sandbox's task.
pub(crate) const SANDBOX_MAILBOX_MAX: usize = 256;

/// Sandboxes in one answer.
pub(crate) const LIST_LIMIT_MAX: u32 = 200;
/// Sandboxes in one answer when the caller names no limit.
pub(crate) const LIST_LIMIT_DEFAULT: u32 = 50;

/// Longest name of an owner, bytes.
pub(crate) const OWNER_BYTES_MAX: usize = 64;

/// Longest label of a key and name of a template, bytes.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// Variables of a sandbox, names and values together, bytes.
pub(crate) const ENV_BYTES_MAX: usize = 1024 * 1024;
/// One variable of them, `NAME=value` and the byte behind it: Linux starts no program with a longer
/// string (`MAX_ARG_STRLEN`).
pub(crate) const ENV_STRING_BYTES_MAX: usize = 128 * 1024;

/// Least memory of a workload: a shell and `ls` run in a quarter of it, and nothing in an eighth.
pub(crate) const MEMORY_BYTES_MIN: u64 = 4 * 1024 * 1024;

/// Longest `ttl`, `hard_ttl` and `duration`, seconds: a hundred years.
pub(crate) const TTL_SECONDS_MAX: u64 = 100 * 365 * 24 * 3600;

/// How long a supervisor may take to answer a question that its files can answer, too.
pub(crate) const READ_ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long a supervisor that is replaced by another executable may take to serve again.
pub(crate) const UPGRADE_MAX: Duration = Duration::from_secs(15);

/// Runtimes that are upgraded at one time.
pub(crate) const UPGRADES_AT_ONCE: usize = 4;

/// Sandboxes that one upgrade names at most.
pub(crate) const UPGRADE_NAMES_MAX: usize = 10_000;

/// Largest executable of an agent, bytes.
pub(crate) const AGENT_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// How long a supervisor may take to give its figures.
pub(crate) const CENSUS_ANSWER_MAX: Duration = Duration::from_secs(1);

/// Deleted sessions of a sandbox that are remembered, so that a late answer is known as such.
pub(crate) const SESSIONS_GONE_KEPT_MAX: usize = 1024;

/// How long a request's body may bring nothing.
pub(crate) const BODY_STALL_MAX: Duration = Duration::from_secs(30);

/// How long an answer of the store about a key is trusted.
pub(crate) const KEY_CACHE_MAX_AGE: Duration = Duration::from_secs(2);

/// Longest bearer token, bytes.
pub(crate) const TOKEN_BYTES_MAX: usize = 512;

/// Longest answer of the launcher, bytes.
pub(crate) const LAUNCH_ANSWER_BYTES_MAX: usize = 64 * 1024;

/// How long the launcher may take: longer than it waits for a supervisor itself (30 s) and cleans
/// up after one that does not come, so that it can say why.
pub(crate) const LAUNCH_MAX: Duration = Duration::from_mins(1);

/// Bytes of the launcher's log that an error shows.
pub(crate) const LAUNCH_LOG_BYTES_SHOWN: u64 = 2048;

/// Processes and threads of a sandbox that asks for no limit.
pub(crate) const PIDS_DEFAULT: u32 = 1024;

/// Rules about what one sandbox reaches.
pub(crate) const EGRESS_RULES_MAX: usize = 128;

/// Ports and ranges of ports in one of those rules.
pub(crate) const EGRESS_PORTS_MAX: usize = 64;

/// How often it is looked which disks are to be measured.
pub(crate) const DISK_LOOK_EVERY: Duration = Duration::from_millis(250);

/// Shortest and longest pause between two measurements of a disk with a limit.
pub(crate) const DISK_MEASURE_EVERY_MIN: Duration = Duration::from_secs(1);
/// See [`DISK_MEASURE_EVERY_MIN`].
pub(crate) const DISK_MEASURE_EVERY_MAX: Duration = Duration::from_secs(30);

/// A measurement is followed by a pause of so many times what it took.
pub(crate) const DISK_MEASURE_SHARE: u32 = 20;

/// How fast a disk is taken to fill at most, in bytes.
pub(crate) const DISK_GROWTH_PER_SECOND: u64 = 1 << 30;

/// A disk has one file for so many bytes of its limit at most, as a file system has.
pub(crate) const DISK_BYTES_PER_ENTRY: u64 = 4096;

/// So many files a disk may have however small it is.
pub(crate) const DISK_ENTRIES_MIN: u64 = 65_536;

/// Processes of a sandbox that are asked for files without a name when its disk is measured: four
/// times as many as it has without a limit of its own.
pub(crate) const OPEN_FILES_PROCESSES_MAX: usize = 4096;

/// So many files that they have open are looked at: about a second's work.
pub(crate) const OPEN_FILES_LOOKED_AT_MAX: u32 = 1 << 18;

/// As much is read of the list of what one of them has mapped, bytes: thousands of mappings.
pub(crate) const OPEN_FILES_MAPS_BYTES_MAX: u64 = 256 << 10;

/// Smallest limit of a disk, in bytes: a sandbox has some files of its own.
pub(crate) const DISK_BYTES_MIN: u64 = 1 << 20;

/// Length of the database's log, bytes: SQLite moves it into the database after 1000 pages of
/// 4 KiB, and a transaction of ours has a few.
pub(crate) const LOG_BYTES_USUAL: u64 = 5 << 20;

/// Of the data folder's disk, kept for what frees space, bytes. One deletion takes two rows of
/// the database, and its log is moved into it at 4 MiB: this is twice as much.
pub(crate) const RESERVE_BYTES: u64 = 8 << 20;

/// So much of it is given up at a time, bytes: hundreds of rows.
pub(crate) const RESERVE_STEP_BYTES: u64 = 1 << 20;

/// Of the files that the data folder's disk can hold, so many are kept for the same. A pause, a
/// suspension and a start of the server each make a few.
pub(crate) const RESERVE_FILES: u64 = 256;

/// So many of them are given up at a time.
pub(crate) const RESERVE_STEP_FILES: u64 = 32;

/// With room for fewer files on the data folder's disk nothing is begun that makes any: more than
/// one step, and more than a new sandbox has.
pub(crate) const DISK_FILES_FREE_MIN: u64 = 128;

/// With less room on the data folder's disk, bytes, nothing is begun that takes space: more than
/// one step, so that a step that was given up isn't taken for room.
pub(crate) const DISK_FREE_MIN: u64 = 4 << 20;

/// How often it is looked whether there is room for what was given up.
pub(crate) const RESERVE_LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long it may take to change what a sandbox reaches.
pub(crate) const EGRESS_MAX: Duration = Duration::from_secs(15);

/// How long it may take to change the limits of a sandbox: a kernel looks for memory that it can
/// take back.
pub(crate) const LIMIT_MAX: Duration = Duration::from_secs(15);

/// How long it may take to look at what the host can do.
pub(crate) const PROBE_MAX: Duration = Duration::from_secs(15);

/// Random ids that are tried before a creation gives up.
pub(crate) const IDS_TRIED_MAX: u32 = 64;

/// Sandboxes of one tenant, unless the configuration says otherwise.
pub const SANDBOXES_OWNED_MAX_DEFAULT: u32 = 1000;

/// Snapshots of one tenant, unless the configuration says otherwise.
pub const SNAPSHOTS_OWNED_MAX_DEFAULT: u32 = 1000;

/// Longest description of a snapshot, bytes.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 4096;

/// Pause before a snapshot that could not be removed when its time came is tried again.
pub(crate) const EXPIRY_RETRY: Duration = Duration::from_secs(5);

/// How long a command waits for a sandbox whose disk is being copied before it is refused.
pub(crate) const BUSY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Requests of one tenant a second, unless the configuration says otherwise.
pub const REQUESTS_PER_SECOND_DEFAULT: u32 = 5000;

/// Longest sleep towards a deadline of the wall clock, which may be set meanwhile.
pub(crate) const DEADLINE_SLEEP_MAX: Duration = Duration::from_mins(1);

/// How often one call wakes a sandbox that goes to sleep again under it.
pub(crate) const WAKES_MAX: u32 = 3;

/// What the kernel takes of an answer beyond what is on its way to the client, bytes. A client has
/// to read half of it within [`STALL_MAX`] to be seen to read at all.
pub(crate) const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// How long a client may take nothing of what it asked for.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(30);

/// Attachments of one session: streams, WebSockets and pages.
pub(crate) const ATTACHMENTS_MAX: usize = 1024;

/// A follower this many events behind reads the journal by itself.
pub(crate) const FEED_BEHIND_EVENTS_MAX: u64 = 256;

/// Payload that is encoded at once for all followers at the tail, about.
pub(crate) const FEED_CHUNK_BYTES: usize = 64 * 1024;

/// Encoded events that a session keeps for its followers, for each format.
pub(crate) const FEED_RING_BYTES_MAX: usize = 256 * 1024;

/// Payload that one follower or page reads at once, about.
pub(crate) const REPLAY_CHUNK_BYTES: usize = 256 * 1024;

/// A silent stream says that it is alive this often.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);

/// A WebSocket's client is asked this often whether it is there.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(15);

/// A WebSocket's client that was not heard of for this long is gone.
pub(crate) const PONG_MAX: Duration = Duration::from_secs(45);

/// How long the rest of a frame and the close frame may take to reach a client that was too slow.
pub(crate) const LINGER_MAX: Duration = Duration::from_mins(1);

/// How long the kernel tries to bring what was written to a peer that says nothing: at least what
/// a client that is merely slow gets for its last frames.
pub(crate) const PEER_SILENCE_MAX: Duration = Duration::from_secs(90);

/// How long a WebSocket's client may take to close its side.
pub(crate) const CLOSE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Between the answer to a handshake and the first frame: clients that begin to listen only when
/// the socket is open lose what comes together with the answer.
pub(crate) const FIRST_FRAME_DELAY: Duration = Duration::from_millis(5);

/// Longest message of a WebSocket's client: the largest input in base64, with room around it.
pub(crate) const MESSAGE_BYTES_MAX: usize = 6 * 1024 * 1024;

/// Requests of one WebSocket that wait to be carried out.
pub(crate) const WS_REQUESTS_MAX: usize = 256;

/// Bytes of those requests together.
pub(crate) const WS_REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Events of a WebSocket that are written before the writer looks around, bytes, about.
pub(crate) const WS_PIECE_BYTES: usize = 16 * 1024;

/// How long the end of a WebSocket may take: what its client still asked for, and the goodbye.
pub(crate) const WS_END_MAX: Duration = Duration::from_secs(5);

/// Answers and pongs of one WebSocket that wait to be written.
pub(crate) const WS_COMMANDS_MAX: usize = 64;

/// Output in the answer of a context's call, each of its fields, bytes: the end of it.
pub(crate) const CONTEXT_OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// Longest chunk of code for an interpreter, bytes.
pub(crate) const CHUNK_BYTES_MAX: usize = 512 * 1024;

/// How long a call waits for a command or a chunk; both go on after that.
pub(crate) const CONTEXT_WAIT_MAX: Duration = Duration::from_hours(24);

/// How long an interpreter may take to be ready, milliseconds.
pub(crate) const INTERPRETER_START_MS_MAX: i64 = 60_000;

/// Contexts that are over and are deleted at once to make place for a new one.
pub(crate) const CONTEXTS_SWEPT_MAX: usize = 64;

/// How long it may take to sweep up after a runtime.
pub(crate) const SWEEP_MAX: Duration = Duration::from_secs(15);

/// Bytes of a body that is too large that are still read, so that its client sees the answer.
pub(crate) const BODY_BYTES_DISCARDED_MAX: usize = 32 * 1024 * 1024;

/// How often a page without a cursor begins anew because retention overtook it: each time takes a
/// look at the newest files, and 8 in a row were seen to be overtaken by a flood on a busy machine.
pub(crate) const HEAD_MOVES_MAX: u32 = 64;

/// How long a call for a session waits for an attempt that is being started.
pub(crate) const STARTING_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a follower whose journal can't be read waits to hear that its session was deleted.
pub(crate) const DELETION_NEWS_MAX: Duration = Duration::from_millis(500);

/// Largest file of the host's `/etc` that becomes part of the image `host`, bytes.
pub(crate) const HOST_FILE_BYTES_MAX: u64 = 4 << 20;
/// How long a supervisor may take to stop a workload or let it go on.
pub(crate) const FREEZE_ANSWER_MAX: Duration = Duration::from_secs(15);

/// How often a freeze is tried again on a full disk, each time with more room.
pub(crate) const FREEZE_AGAIN_MAX: u32 = 3;
/// So often what a request needs is finished first before the request is refused.
pub(crate) const PUT_OFF_MAX: u32 = 4;
/// How long the store may not know yet that a sandbox stands still or goes on again, which its runtime
/// says itself: who freezes and thaws at once costs one write for each.
pub(crate) const NOTE_WAIT: Duration = Duration::from_millis(50);
/// Pause before the store is told again what it did not take down.
pub(crate) const STORE_RETRY: Duration = Duration::from_millis(500);
/// Longest a hold lasts before it has to be taken again, seconds.
pub(crate) const HOLD_SECONDS_MAX: u64 = 86_400;

/// Plain bytes of one archive, of the files of one image, and of one upload.
pub(crate) const IMAGE_BYTES_MAX: u64 = 64 << 30;

/// Entries of all layers of one image.
pub(crate) const IMAGE_ENTRIES_MAX: u64 = 2_000_000;

/// Longest name in a layer, bytes: what the system takes.
pub(crate) const IMAGE_PATH_BYTES_MAX: usize = 4095;

/// Extended attributes of one file of an image, names and values together, bytes.
pub(crate) const IMAGE_XATTR_BYTES_MAX: usize = 64 * 1024;

/// Layers of one image: their names must fit into one page of mount options.
pub(crate) const IMAGE_LAYERS_MAX: usize = 127;

/// Largest manifest, index, configuration and list of users of an image, bytes.
pub(crate) const IMAGE_JSON_BYTES_MAX: u64 = 4 << 20;

/// How many indexes of an image may lie in one another.
pub(crate) const IMAGE_INDEX_DEPTH_MAX: usize = 4;

/// Files of an archive that holds an image with its layers.
pub(crate) const BUNDLE_ENTRIES_MAX: usize = 10_000;

/// How many links of such an archive are followed for one file.
pub(crate) const BUNDLE_LINKS_MAX: usize = 8;

/// What a tar may say about one entry before its data, bytes.
pub(crate) const TAR_HEADER_BYTES_MAX: u64 = 2 << 20;

/// Largest window of a zstd stream, as a power of two: 128 MiB of memory.
pub(crate) const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Images that are taken in at one time.
pub(crate) const IMPORTS_MAX: usize = 4;

/// Longest name of an image without its tag, bytes.
pub(crate) const IMAGE_NAME_BYTES_MAX: usize = 255;
/// Longest tag.
pub(crate) const IMAGE_TAG_BYTES_MAX: usize = 128;

/// How often a long call that is followed says how far it is.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long a registry may take to accept a connection.
pub(crate) const REGISTRY_CONNECT_MAX: Duration = Duration::from_secs(30);

/// How long a registry may take to answer with a description or a token, all of it.
pub(crate) const REGISTRY_ANSWER_MAX: Duration = Duration::from_mins(1);

/// Of a layer, so much has to come in so long, or all that is left of it.
pub(crate) const REGISTRY_PACE_BYTES: u64 = 64 * 1024;
/// See [`REGISTRY_PACE_BYTES`].
pub(crate) const REGISTRY_SILENCE_MAX: Duration = Duration::from_mins(1);

/// Largest answer with a token of a registry, and largest of its complaints that is read, bytes.
pub(crate) const REGISTRY_NOTE_BYTES_MAX: u64 = 64 * 1024;

/// Of what a registry complains about, so much is shown, characters.
pub(crate) const REGISTRY_COMPLAINT_MAX: usize = 300;

/// How often a registry may send one request elsewhere.
pub(crate) const REGISTRY_REDIRECTS_MAX: usize = 10;

/// With fewer descriptors left, what failed is taken to have failed for want of them: a start of a
/// process takes about as many, and has given them back when it has failed.
pub(crate) const DESCRIPTORS_FREE_MIN: usize = 16;

/// Templates of one server.
pub(crate) const TEMPLATES_MAX: usize = 1000;

/// Largest file of templates, bytes.
pub(crate) const TEMPLATE_FILE_BYTES_MAX: u64 = 4 << 20;
