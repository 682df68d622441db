//! Finding a keeper again. The server is not its parent, so it knows it by pid and start time,
//! holds a pidfd, and sees its end there.

use std::{fs, io, os::fd::OwnedFd, path::Path, sync::Arc};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

use crate::limits::KEEPER_LOOK_PAUSE;

/// A keeper that was alive when it was found. Its number is never used again after that: signals
/// and waits go through the pidfd.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    pidfd: Arc<AsyncFd<OwnedFd>>,
    pid: i32,
}

impl Keeper {
    /// The keeper that `state/keeper.pid` names, if it is alive.
    pub(crate) fn find(state_dir: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(state_dir.join("keeper.pid")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut words = text.split_ascii_whitespace();
        let parsed = words
            .next()
            .and_then(|word| word.parse::<i32>().ok())
            .zip(words.next().and_then(|word| word.parse::<u64>().ok()));
        // A torn file is that of a launcher that was killed while it wrote: no keeper is behind it.
        let Some((pid, started)) = parsed else {
            return Ok(None);
        };
        Self::open(pid, started)
    }

    fn open(pid: i32, started: u64) -> io::Result<Option<Self>> {
        let Some(number) = Pid::from_raw(pid) else {
            return Ok(None);
        };
        let pidfd = match pidfd_open(number, PidfdFlags::NONBLOCK) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Compared after the pidfd is open: from here on the number can't change its meaning.
        if start_time(pid)? != Some(started) {
            return Ok(None);
        }
        #[expect(
            deprecated,
            reason = "its replacement is unsafe for the sake of descriptors that someone else may \
                      close; nobody but us has this one"
        )]
        let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE)?;
        Ok(Some(Self {
            pidfd: Arc::new(pidfd),
            pid,
        }))
    }

    /// Its number, for logs.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns once it is gone, and not before: where its end can't be waited for, it is looked
    /// for again and again.
    pub(crate) async fn gone(&self) {
        match self.pidfd.readable().await {
            Ok(mut guard) => return guard.retain_ready(),
            Err(error) => {
                tracing::error!(keeper = self.pid, %error, "a keeper can't be watched; looking for it instead");
            }
        }
        loop {
            match self.is_gone() {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(keeper = self.pid, %error, "a keeper can't be seen");
                }
            }
            sleep(KEEPER_LOOK_PAUSE).await;
        }
    }

    fn is_gone(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.pidfd.get_ref(), PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        Ok(poll(&mut fds, Some(&now))? > 0)
    }

    /// Kills it, and with it everything in its namespaces.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL) {
            // The process is gone, which is what was wanted.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Start time of a process in clock ticks since boot; nothing when there is no such process or it
/// is a zombie.
fn start_time(pid: i32) -> io::Result<Option<u64>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name in parentheses may hold anything; the last parenthesis ends it.
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return Ok(None);
    };
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next(), Some("Z" | "X")) {
        return Ok(None);
    }
    // The state was field 3; the start time is field 22.
    Ok(fields.nth(18).and_then(|field| field.parse().ok()))
}

#[cfg(test)]
mod tests {
    use std::{process::Stdio, time::Duration};

    use tokio::{
        runtime::{Builder, Runtime},
        time::timeout,
    };

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    // A pidfd that could not be watched passed for a keeper that is gone, and a living runtime was
    // replaced.
    #[test]
    fn a_keeper_that_cannot_be_watched_is_not_gone_before_it_is() {
        #[expect(
            clippy::disallowed_methods,
            reason = "a process to look at, and no runtime to hold it"
        )]
        let mut child = std::process::Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let started = start_time(pid).unwrap().unwrap();
        let other = runtime();
        let keeper = other.block_on(async { Keeper::open(pid, started).unwrap().unwrap() });
        // Its pidfd hangs on this runtime, so from here on nobody is woken by it.
        drop(other);
        runtime().block_on(async {
            let early = timeout(KEEPER_LOOK_PAUSE / 2, keeper.gone()).await;
            assert!(early.is_err(), "it lives");
            drop(child.stdin.take());
            timeout(Duration::from_secs(30), keeper.gone())
                .await
                .unwrap();
        });
        assert!(child.wait().unwrap().success());
    }
}
