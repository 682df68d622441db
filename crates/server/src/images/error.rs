//! What can be wrong with an image, and what clients see of it.

use std::{borrow::Cow, io};

use outlive_api::error::{ApiError, ErrorCode};
use serde_json::json;

use super::{digest::Digest, dir::LayerError};
use crate::store::StoreError;

/// An image can't be taken in, used or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// Our own directory failed.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An entry wants out of the image.
    #[error("the archive is refused: entry {entry:?} {why}")]
    Hostile {
        /// Its name.
        entry: String,
        /// What it tries.
        why: &'static str,
    },
    /// The bytes make no sense.
    #[error("{what} is damaged: {reason}")]
    Corrupt {
        /// A part of the archive.
        what: String,
        /// What was found.
        reason: String,
    },
    /// More than is taken in.
    #[error("too large: {what}; the most is {max}")]
    TooLarge {
        /// What, with its unit.
        what: &'static str,
        /// The bound.
        max: u64,
    },
    /// The bytes are others than announced.
    #[error("{what} is not what was announced: {expected} was promised, {actual} came")]
    Digest {
        /// A part of the image.
        what: &'static str,
        /// As announced.
        expected: Digest,
        /// As found.
        actual: Digest,
    },
    /// The image is made of something that is not known here.
    #[error("the image can't be used: {0}")]
    Unsupported(Cow<'static, str>),
    /// The name can't be given to an image.
    #[error("{name:?} can't name an image: {why}")]
    Name {
        /// As asked for.
        name: String,
        /// The rule.
        why: &'static str,
    },
    /// No such image.
    #[error("there is no image {0:?}; `outlive image list` shows those there are")]
    NotFound(String),
    /// Sandboxes or snapshots use it.
    #[error(
        "image {name:?} is used by {sandboxes} sandboxes and {snapshots} snapshots; delete them \
         first"
    )]
    InUse {
        /// The image.
        name: String,
        /// How many, paused ones included.
        sandboxes: u64,
        /// How many.
        snapshots: u64,
    },
    /// The registry said no.
    #[error("registry {registry}: {message}")]
    Registry {
        /// Which.
        registry: String,
        /// In words.
        message: String,
        /// Whether another try may help.
        passing: bool,
    },
    /// As many imports as may go on at once.
    #[error("{0} images are being taken in already; try again later")]
    Busy(usize),
    /// The client left, or the server is going.
    #[error("the work was given up before its end")]
    Cancelled,
    /// A thread of ours failed.
    #[error("the work failed: {0}")]
    Failed(String),
}

impl ImageError {
    /// The bytes make no sense.
    pub(crate) fn corrupt(what: impl Into<String>, reason: &io::Error) -> Self {
        let reason = if reason.kind() == io::ErrorKind::UnexpectedEof {
            "it ends early".to_owned()
        } else {
            reason.to_string()
        };
        // The reader of tars quotes what it can't read: bytes that no terminal should see.
        let quotes = |char: char| char.is_control() || char == char::REPLACEMENT_CHARACTER;
        let reason = if reason.contains(quotes) {
            "there is something else where a tar describes a file".to_owned()
        } else {
            reason
        };
        Self::Corrupt {
            what: what.into(),
            reason,
        }
    }

    fn code(&self) -> ErrorCode {
        match self {
            Self::Hostile { .. }
            | Self::Corrupt { .. }
            | Self::TooLarge { .. }
            | Self::Digest { .. }
            | Self::Unsupported(_)
            | Self::Name { .. }
            | Self::Registry { passing: false, .. } => ErrorCode::BadRequest,
            Self::NotFound(_) => ErrorCode::NotFound,
            Self::InUse { .. } => ErrorCode::Conflict,
            Self::Registry { passing: true, .. } | Self::Busy(_) | Self::Cancelled => {
                ErrorCode::Unavailable
            }
            Self::Store(StoreError::Full(_)) => ErrorCode::DiskFull,
            Self::Layer(LayerError::File { source, .. })
                if source.kind() == io::ErrorKind::StorageFull =>
            {
                ErrorCode::DiskFull
            }
            Self::Layer(_) | Self::Store(_) | Self::Failed(_) => ErrorCode::InternalError,
        }
    }

    /// A word for programs.
    fn reason(&self) -> &'static str {
        match self {
            Self::Hostile { .. } => "hostile_archive",
            Self::Corrupt { .. } => "corrupt_archive",
            Self::TooLarge { .. } => "too_large",
            Self::Digest { .. } => "digest_mismatch",
            Self::Unsupported(_) => "unsupported_image",
            Self::Name { .. } => "image_name",
            Self::NotFound(_) => "no_image",
            Self::InUse { .. } => "image_in_use",
            Self::Registry { .. } => "registry",
            Self::Busy(_) => "busy",
            Self::Cancelled => "cancelled",
            Self::Layer(_) => "images_directory",
            Self::Store(_) => "store",
            Self::Failed(_) => "fault",
        }
    }
}

impl From<&ImageError> for ApiError {
    fn from(error: &ImageError) -> Self {
        let mut details = json!({ "reason": error.reason() });
        if let ImageError::InUse {
            sandboxes,
            snapshots,
            ..
        } = error
        {
            details["sandboxes"] = (*sandboxes).into();
            details["snapshots"] = (*snapshots).into();
        }
        let mut answer = Self::new(error.code(), error.to_string()).with_details(details);
        if matches!(error, ImageError::TooLarge { .. }) {
            answer.status = 413;
        }
        if answer.code == ErrorCode::Unavailable {
            answer = answer.with_retry_after(1);
        }
        answer
    }
}
