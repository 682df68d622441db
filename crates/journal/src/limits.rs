//! Every limit of this crate.

/// Smallest target of a segment file, bytes.
pub const SEGMENT_BYTES_MIN: u64 = 64 * 1024;

/// Largest target of a segment file, bytes.
pub const SEGMENT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A segment's target is this part of the retention, between the two bounds above.
pub const SEGMENT_PARTS: u64 = 8;

/// Longest payload of a frame, bytes: the length field has 24 bits.
pub const PAYLOAD_BYTES_MAX: usize = (1 << 24) - 1;

/// Most records in one batch.
pub const BATCH_RECORDS_MAX: usize = 4096;

/// How many numbers a lease reserves. A segment at its target holds at most 131,072 frames, so a
/// lease taken when a segment begins covers all of it.
pub const SEQ_LEASE: u64 = 262_144;

/// Largest number a record may get; what is above is for damage nobody foresaw.
pub const SEQ_MAX: u64 = (1 << 62) - 1;

/// Most entries of a segment's sparse index.
pub const INDEX_SLOTS_MAX: u16 = 64;

/// Distance between two entries of the sparse index, bytes.
pub const INDEX_SPACING_BYTES: u64 = 64 * 1024;

/// Distance between two places in a segment where reading may begin when it is opened again,
/// bytes; four times the checkpoint's length where that is more.
pub const RESUME_SPACING_BYTES: u64 = 256 * 1024;

/// How much a reader takes from a file at once, bytes.
pub const READ_CHUNK_BYTES: usize = 256 * 1024;

/// How much the retention cursor takes from a file at once, bytes.
pub const TRIM_CHUNK_BYTES: usize = 4 * 1024;

/// The head is written down at the latest when it moved this far, logical bytes.
pub const HEAD_LAG_BYTES_MAX: u64 = 256 * 1024;

/// How often a frame that looks bad at the tail of a growing file is read again.
pub const READ_AGAIN_MAX: u32 = 4;

/// An active segment is sealed when its oldest record has this part of the maximal age, so that
/// whole files can go soon after they are due.
pub const AGE_PARTS: u32 = 4;

/// Most findings a damage report lists; the rest is only counted.
pub const DAMAGE_LISTED_MAX: usize = 256;

/// Receipts that are always kept, newest first.
pub const RECEIPTS_KEPT_MIN: usize = 65_536;

/// How long receipts are kept at least, nanoseconds: 24 hours.
pub const RECEIPT_AGE_NANOS: i64 = 24 * 3600 * 1_000_000_000;

/// Most receipts of one journal.
pub const RECEIPTS_MAX: usize = 1_000_000;

/// Most run files of receipts; above it they are merged.
pub const RECEIPT_RUNS_MAX: usize = 8;

/// Most receipts that wait in memory for a seal; above it a run is due whether or not the
/// journal rolled.
pub const RECEIPTS_ACTIVE_MAX: usize = 4096;
