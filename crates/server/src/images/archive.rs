//! The bytes of an archive on their way from a file: counted, hashed on both sides of their
//! compression, and bounded. Whoever made the archive is not trusted.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    os::unix::fs::FileExt as _,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, ReadBuf};

use super::{digest::Digest, error::ImageError};
use crate::limits::{TAR_HEADER_BYTES_MAX, ZSTD_WINDOW_LOG_MAX};

/// A part of a file that is read on its own.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Slice {
    /// All of it.
    pub(crate) fn whole(file: File) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Self {
            file: Arc::new(file),
            at: 0,
            end,
        })
    }

    /// A part of this part; nothing when it reaches beyond the end.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Option<Self> {
        let at = self.at.checked_add(offset)?;
        let end = at.checked_add(length).filter(|end| *end <= self.end)?;
        Some(Self {
            file: Arc::clone(&self.file),
            at,
            end,
        })
    }

    /// Bytes in it.
    pub(crate) const fn len(&self) -> u64 {
        self.end - self.at
    }

    /// Everything, which the caller knows to be small.
    pub(crate) fn read_small(mut self, bytes_max: u64) -> Result<Vec<u8>, ImageError> {
        if self.len() > bytes_max {
            return Err(ImageError::TooLarge {
                what: "a description in the archive, bytes",
                max: bytes_max,
            });
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)
            .map_err(|error| ImageError::corrupt("the archive", &error))?;
        Ok(bytes)
    }

    /// How it is compressed, told by its first bytes.
    pub(crate) fn compression(&self) -> io::Result<Compression> {
        let mut magic = [0; 6];
        let mut start = self.clone();
        let mut filled = 0;
        while let Some(rest) = magic.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match start.read(rest)? {
                0 => break,
                n => filled += n,
            }
        }
        Ok(match magic {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0] => Compression::Unknown("xz"),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41] => Compression::Unknown("bzip2"),
            _ => Compression::None,
        })
    }
}

impl Read for Slice {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.len()).unwrap_or(usize::MAX);
        let length = into.len().min(most);
        let Some(into) = into.get_mut(..length).filter(|into| !into.is_empty()) else {
            return Ok(0);
        };
        let n = self.file.read_at(into, self.at)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into()); // The file became shorter.
        }
        self.at += n as u64;
        Ok(n)
    }
}

/// See [`Slice::compression`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    /// Another one, by its name.
    Unknown(&'static str),
}

/// Counts and hashes what passes, and stops it at its bounds.
#[derive(Debug, Clone)]
struct Meter(Arc<Mutex<Metered>>);

#[derive(Debug)]
struct Metered {
    hash: Sha256,
    bytes: u64,
    bytes_max: u64,
    /// What may pass until the next entry shows.
    header_left: Option<u64>,
    exceeded: Option<(&'static str, u64)>,
}

impl Meter {
    fn new(bytes_max: u64) -> Self {
        Self(Arc::new(Mutex::new(Metered {
            hash: Sha256::new(),
            bytes: 0,
            bytes_max,
            header_left: None,
            exceeded: None,
        })))
    }

    fn get(&self) -> MutexGuard<'_, Metered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, bytes: &[u8]) -> io::Result<()> {
        let mut metered = self.get();
        let count = bytes.len() as u64;
        metered.hash.update(bytes);
        metered.bytes = metered.bytes.saturating_add(count);
        if metered.bytes > metered.bytes_max {
            metered.exceeded = Some(("the unpacked archive, bytes", metered.bytes_max));
        }
        if let Some(left) = metered.header_left {
            match left.checked_sub(count) {
                Some(left) => metered.header_left = Some(left),
                None => {
                    metered.exceeded =
                        Some(("what describes one entry, bytes", TAR_HEADER_BYTES_MAX));
                }
            }
        }
        match metered.exceeded {
            None => Ok(()),
            Some((what, _)) => Err(io::Error::other(format!("{what}: too large"))),
        }
    }

    fn digest(&self) -> Digest {
        Digest::from(<[u8; 32]>::from(self.get().hash.clone().finalize()))
    }
}

#[derive(Debug)]
struct MeteredRead<R> {
    inner: R,
    meter: Meter,
}

impl<R: Read> Read for MeteredRead<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(into)?;
        self.meter.pass(into.get(..n).unwrap_or_default())?;
        Ok(n)
    }
}

type Decoder = Box<dyn Read + Send>;

/// The plain bytes of a [`Slice`]. Clones read from one position. It always answers at once: it
/// is for threads that may block.
#[derive(Clone)]
pub(crate) struct Plain {
    inner: Arc<Mutex<Decoder>>,
    before: Meter,
    after: Meter,
}

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").finish_non_exhaustive()
    }
}

impl Plain {
    /// Reads a slice; more than `bytes_max` plain bytes are an error.
    pub(crate) fn open(slice: Slice, bytes_max: u64) -> Result<Self, ImageError> {
        let failed = |error: io::Error| ImageError::corrupt("the archive", &error);
        let compression = slice.compression().map_err(failed)?;
        let (raw, plain) = (Meter::new(u64::MAX), Meter::new(bytes_max));
        let metered = BufReader::with_capacity(
            256 << 10,
            MeteredRead {
                inner: slice,
                meter: raw.clone(),
            },
        );
        let decoder: Decoder = match compression {
            Compression::None => Box::new(metered),
            Compression::Unknown(name) => {
                let why =
                    format!("the archive is packed with {name}; taken are tar, gzip and zstd");
                return Err(ImageError::Unsupported(why.into()));
            }
            Compression::Gzip => Box::new(MultiGzDecoder::new(metered)),
            Compression::Zstd => {
                let mut decoder =
                    zstd::stream::read::Decoder::with_buffer(metered).map_err(failed)?;
                decoder
                    .window_log_max(ZSTD_WINDOW_LOG_MAX)
                    .map_err(failed)?;
                Box::new(decoder)
            }
        };
        let inner: Decoder = Box::new(MeteredRead {
            inner: decoder,
            meter: plain.clone(),
        });
        Ok(Self {
            inner: Arc::new(Mutex::new(inner)),
            before: raw,
            after: plain,
        })
    }

    /// What follows is the description of an entry, which has a bound.
    pub(crate) fn expect_header(&self) {
        self.after.get().header_left = Some(TAR_HEADER_BYTES_MAX);
    }

    /// What follows is an entry's data.
    pub(crate) fn expect_data(&self) {
        self.after.get().header_left = None;
    }

    /// What a failed read of this stream means.
    pub(crate) fn failure(&self, what: &str, error: &io::Error) -> ImageError {
        match self.after.get().exceeded {
            Some((what, max)) => ImageError::TooLarge { what, max },
            None => ImageError::corrupt(what, error),
        }
    }

    /// Reads to the end, and tells the digests of what was in the file and of the plain bytes.
    pub(crate) fn finish(self) -> Result<(Digest, Digest), ImageError> {
        self.expect_data();
        let mut rest = vec![0; 64 << 10];
        loop {
            let n = self.lock().read(&mut rest);
            match n {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure("the end of the archive", &error)),
            }
        }
        Ok((self.before.digest(), self.after.digest()))
    }

    fn lock(&self) -> MutexGuard<'_, Decoder> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for Plain {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.lock().read(into)
    }
}

impl AsyncRead for Plain {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n = self.lock().read(buf.initialize_unfilled());
        Poll::Ready(n.map(|n| buf.advance(n)))
    }
}
