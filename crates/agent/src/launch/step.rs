//! A step of a launch, and how it fails: what was tried, in words, and what the system said.

use outlive_api::launch::LaunchFailure;

pub(crate) type Step<T> = Result<T, LaunchFailure>;

/// Names the step that an error belongs to.
pub(crate) trait Fail<T> {
    /// `self`, or a failure of this step.
    fn step(self, step: &str) -> Step<T>;
}

impl<T> Fail<T> for std::io::Result<T> {
    fn step(self, step: &str) -> Step<T> {
        self.map_err(|e| {
            let unsupported = matches!(
                e.raw_os_error(),
                Some(libc::EPERM | libc::ENOSYS | libc::EINVAL | libc::ENODEV | libc::EOPNOTSUPP)
            );
            LaunchFailure {
                step: step.to_owned(),
                message: e.to_string(),
                unsupported,
            }
        })
    }
}

impl<T> Fail<T> for rustix::io::Result<T> {
    fn step(self, step: &str) -> Step<T> {
        self.map_err(std::io::Error::from).step(step)
    }
}

/// A failure that isn't the system's word.
pub(crate) fn failure(step: &str, message: &str) -> LaunchFailure {
    LaunchFailure {
        step: step.to_owned(),
        message: message.to_owned(),
        unsupported: false,
    }
}
