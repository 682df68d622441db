//! A journal: records with a number and a time, in segment files that survive every crash.
//!
//! It knows bytes, numbers and times. It knows nothing of sessions, processes or JSON, reads no
//! clock and starts no thread; time is an argument, and whoever appends says when to sync.
//!
//! ```text
//!  driver ─ append ────────┐                        ┌──► SyncPoint::sync, off the lock
//!  pump ─── begin_output ──┤ Appender (one mutex) ──┤
//!           splice, commit │                        └──► published tail ──► readers
//!                          ▼
//!   000000000001-…001.seg   000000000002-…417.seg   000000000003-…902.seg
//!   header checkpoint frames…  │ header checkpoint frames… │ header checkpoint frames… OPEN
//!   ▲ head (retention)                                     ▲ opening reads only this one
//!
//!  Reader: any process, any number, no lock: position in a file, `pread`
//! ```
//!
//! - A journal always opens. What is damaged costs its own frame and is reported as a gap.
//! - A number that anybody may have seen is never used again.
//! - A killed writer loses nothing that was written: the page cache has it, and the size of the
//!   file says how much of a half-filled frame came.
//!
//! The bytes are described in `docs/internals/journal-format.md`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::indexing_slicing, clippy::host_endian_bytes)]

mod appender;
mod bytes_at;
mod config;
mod damage;
mod error;
mod frame;
pub mod limits;
mod open;
mod output;
mod reader;
pub mod receipts;
mod record;
mod recover;
mod remove;
mod resume;
mod scan;
mod segment;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod storage;
mod sync;
mod trim;

pub use appender::Appender;
pub use config::{Config, Retention};
pub use damage::{Damage, DamageReport};
pub use error::AppendError;
pub use open::Opened;
pub use output::{Committed, OpenFrame};
pub use reader::{ReadError, Reader};
pub use record::{Durability, Gap, KIND_GAP, KIND_RESERVED, NewRecord, Record};
pub use recover::{OpenError, Recovered, recover, recover_from};
pub use remove::remove_tree;
pub use resume::Unread;
pub use segment::FORMAT_VERSION;
pub use storage::{
    FileStorage, put_path, replace_file, replace_path, sync_directory, sync_file_system, sync_path,
};
pub use sync::{Garbage, SyncPoint};
