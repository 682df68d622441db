//! What fails for want of descriptors. Whatever opens a file or starts a process may, and each tells
//! it in its own words; the answer tells it for all of them.

use std::{fs::File, io};

use outlive_api::error::{ApiError, ErrorCode};
use rustix::io::Errno;

use crate::limits::DESCRIPTORS_FREE_MIN;

/// What failed while descriptors lacked failed for that, and may be tried again.
pub(super) fn blame(error: ApiError) -> ApiError {
    blame_with(error, || File::open("/dev/null"))
}

fn blame_with(error: ApiError, open: impl Fn() -> io::Result<File>) -> ApiError {
    if error.status != ErrorCode::InternalError.status() || !lack(open) {
        return error;
    }
    let message = format!(
        "the server has as many files and connections open as it may ({}); try again in a moment, \
         or let it have more",
        error.message
    );
    ApiError::new(ErrorCode::Unavailable, message).with_retry_after(1)
}

/// Whether there are none for a call, which needs several.
fn lack(open: impl Fn() -> io::Result<File>) -> bool {
    let opened: io::Result<Vec<File>> = (0..DESCRIPTORS_FREE_MIN).map(|_| open()).collect();
    opened.is_err_and(|error| {
        let errno = Errno::from_io_error(&error);
        matches!(errno, Some(Errno::MFILE | Errno::NFILE))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// As a call fails while so many descriptors are left, and the rest fails like this.
    fn told(left: usize, errno: Errno) -> ApiError {
        let left = Cell::new(left);
        let failed = ApiError::new(ErrorCode::CreateSessionFailed, "no file for it");
        blame_with(failed, || {
            left.set(left.get().checked_sub(1).ok_or(errno)?);
            File::open("/dev/null")
        })
    }

    // It was 500, for which no client tries again.
    #[test]
    fn what_fails_for_want_of_descriptors_may_be_tried_again() {
        for (left, errno) in [(0, Errno::MFILE), (0, Errno::NFILE), (3, Errno::MFILE)] {
            let error = told(left, errno);
            assert_eq!((error.status, error.code), (503, ErrorCode::Unavailable));
            assert_eq!(error.retry_after_seconds, Some(1));
            assert!(error.message.contains("no file for it"), "{error:?}");
        }
    }

    #[test]
    fn what_fails_for_something_else_says_so() {
        for (left, errno) in [(DESCRIPTORS_FREE_MIN, Errno::MFILE), (0, Errno::ACCESS)] {
            let error = told(left, errno);
            assert_eq!(error.code, ErrorCode::CreateSessionFailed);
        }
        let gone = ApiError::new(ErrorCode::NotFound, "no such thing");
        let error = blame_with(gone, || Err(Errno::MFILE.into()));
        assert_eq!(error.code, ErrorCode::NotFound);
    }
}
