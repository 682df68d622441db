//! Processes found by a walk over `/proc`, where no control group holds them together.
//!
//! ```text
//!   keeper ─┬─ supervisor ─── attempts ── …  ┐
//!           ├─ sbx-init ───── orphans ─── …  ├ the workload: all but the agent's three
//!           └─ attempts of supervisors before ┘
//! ```
//! Whatever a program does with sessions and process groups, it stays below the keeper: that is
//! PID 1 of its namespace, or the subreaper of everything that it started.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use super::spawn::INNER_INIT;
use crate::{keeper::Kept, sys};

const SIGKILL: u8 = 9;
const SIGCONT: u8 = 18;
const SIGSTOP: u8 = 19;

/// How often somebody new is looked for: more often than any program that means well starts another
/// and ends.
const ROUNDS_MAX: usize = 32;

/// Everything that runs in the sandbox beside the agent.
#[derive(Debug)]
pub struct Crowd {
    keeper: u32,
    /// The agent's own below it.
    agents: Vec<u32>,
}

impl Crowd {
    /// Below the keeper of this supervisor.
    pub fn from_kept(kept: &[Kept]) -> io::Result<Self> {
        let init = kept.iter().find(|it| it.label.name == INNER_INIT);
        let init = init.map(|it| pid_of(it.fd.as_fd())).transpose()?;
        Ok(Self {
            keeper: keeper()?,
            agents: init.into_iter().chain([std::process::id()]).collect(),
        })
    }

    /// Stops what runs. `true`: nothing did.
    ///
    /// A process may have forked before its stop reached it, so ask until nothing runs.
    pub fn stop_running(&self) -> io::Result<bool> {
        let mut running = Vec::new();
        for seen in self.members()? {
            if !seen.is_stopped()? {
                running.push(seen.pid);
            }
        }
        self.signal_each(&running, SIGSTOP)?;
        Ok(running.is_empty())
    }

    /// Has all go on, children before their parents, so that none of them finds a child stopped.
    pub fn go_on(&self) -> io::Result<()> {
        let mut pids = self.pids()?;
        pids.reverse();
        self.signal_each(&pids, SIGCONT)
    }

    /// Kills all. `true`: nobody was left.
    ///
    /// A process may have forked before its kill reached it, so ask until nobody is left.
    pub fn kill(&self) -> io::Result<bool> {
        let pids = self.pids()?;
        self.signal_each(&pids, SIGKILL)?;
        Ok(pids.is_empty())
    }

    fn signal_each(&self, pids: &[u32], signal: u8) -> io::Result<()> {
        signal_each(pids, &|| self.pids(), signal)
    }

    fn pids(&self) -> io::Result<Vec<u32>> {
        Ok(self.members()?.into_iter().map(|seen| seen.pid).collect())
    }

    /// Parents before their children.
    fn members(&self) -> io::Result<Vec<Seen>> {
        // Another one above us is the host's: what is below that is not ours to touch.
        if keeper()? != self.keeper {
            return Err(io::Error::other("the keeper is gone"));
        }
        let mut members = with_descendants(all()?, |seen| seen.parent == self.keeper);
        members.retain(|seen| seen.lives() && !self.agents.contains(&seen.pid));
        Ok(members)
    }
}

/// These and what is below them, parents before their children.
fn with_descendants(all: Vec<Seen>, is_top: impl Fn(&Seen) -> bool) -> Vec<Seen> {
    let (mut found, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(is_top);
    let mut by_parent: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
    for seen in rest {
        by_parent.entry(seen.parent).or_default().push(seen);
    }
    let mut at = 0;
    while let Some(seen) = found.get(at) {
        let children = by_parent.remove(&seen.pid);
        found.extend(children.unwrap_or_default());
        at += 1;
    }
    found
}

/// The parent of this process, which the keeper is as long as it lives.
fn keeper() -> io::Result<u32> {
    rustix::process::getppid()
        .map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
        .ok_or_else(|| io::Error::other("the keeper is in another namespace"))
}

/// Living processes of an attempt: those of its leader's session and process group, and what is
/// below them. A daemon whose parents all ended is not found.
pub(super) fn attempt_pids(leader: u32) -> io::Result<Vec<u32>> {
    let is_top = |seen: &Seen| seen.group == leader || seen.session == leader;
    let mut members = with_descendants(all()?, is_top);
    members.retain(Seen::lives);
    Ok(members.into_iter().map(|seen| seen.pid).collect())
}

/// A process as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    pid: u32,
    parent: u32,
    group: u32,
    session: u32,
    state: State,
    threads: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Stopped,
    Gone,
    Runs,
}

impl State {
    /// By its letter.
    fn of(letter: &str) -> Self {
        match letter {
            "T" | "t" => Self::Stopped,
            "Z" | "X" => Self::Gone,
            _ => Self::Runs,
        }
    }
}

impl Seen {
    fn parse(pid: u32, stat: &str) -> Option<Self> {
        // The name may hold blanks and parentheses: count after its end.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let state = State::of(fields.next()?);
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        let threads = fields.nth(13)?.parse().ok()?;
        Some(Self {
            pid,
            parent,
            group,
            session,
            state,
            threads,
        })
    }

    /// A first thread that ended leaves the others running.
    fn lives(&self) -> bool {
        self.state != State::Gone || self.threads > 1
    }

    /// Whether no thread of it runs.
    fn is_stopped(&self) -> io::Result<bool> {
        if self.threads <= 1 || self.state == State::Runs {
            return Ok(self.state != State::Runs);
        }
        let threads = numbers(&format!("/proc/{}/task", self.pid))?;
        Ok(threads.into_iter().all(|thread| {
            let path = format!("/proc/{}/task/{thread}/stat", self.pid);
            look(&path, thread).is_none_or(|seen| seen.state != State::Runs)
        }))
    }
}

/// All processes that our `/proc` shows, those that are born meanwhile included: else a parent that
/// ends and its newborn child are both missed, and a tree looks gone that is not.
fn all() -> io::Result<Vec<Seen>> {
    let mut found = Vec::new();
    each_new(
        || numbers("/proc"),
        |pids| {
            let seen = |pid: &u32| look(&format!("/proc/{pid}/stat"), *pid);
            found.extend(pids.iter().filter_map(seen));
            Ok(())
        },
    )?;
    Ok(found)
}

/// Hands on whoever is listed, each once, until nobody new is. On a host where somebody is always
/// born that is after [`ROUNDS_MAX`] lists.
fn each_new(
    list: impl Fn() -> io::Result<Vec<u32>>,
    mut act: impl FnMut(&[u32]) -> io::Result<()>,
) -> io::Result<()> {
    let mut known = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let mut born = list()?;
        born.retain(|pid| known.insert(*pid));
        if born.is_empty() {
            break;
        }
        act(&born)?;
    }
    Ok(())
}

/// `None`: it ended meanwhile.
fn look(path: &str, pid: u32) -> Option<Seen> {
    Seen::parse(pid, &std::fs::read_to_string(path).ok()?)
}

/// The entries of a directory that are numbers; none when it is gone.
fn numbers(path: &str) -> io::Result<Vec<u32>> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => numbers.extend(
                entry
                    .file_name()
                    .to_str()
                    .and_then(|it| it.parse::<u32>().ok()),
            ),
            // A process whose threads are listed ends.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(numbers)
}

/// Signals whoever `look` finds, and whoever they start meanwhile: a process may fork before its
/// signal reaches it, and its child must not be the one that never hears of it.
pub(super) fn signal_growing(
    look: &impl Fn() -> io::Result<Vec<u32>>,
    signal: u8,
) -> io::Result<()> {
    each_new(look, |pids| signal_each(pids, look, signal))
}

/// Signals these, in this order, if `look` still finds them once a pidfd holds each. One that ends
/// meanwhile is fine.
fn signal_each(
    pids: &[u32],
    look: &impl Fn() -> io::Result<Vec<u32>>,
    signal: u8,
) -> io::Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    let mut targets = Vec::new();
    for pid in pids {
        targets.extend(open_pidfd(*pid)?.map(|fd| (pid, fd)));
    }
    // An id that was reused between the list and the pidfd isn't in the second list.
    let still: HashSet<u32> = look()?.into_iter().collect();
    for (pid, pidfd) in &targets {
        if !still.contains(pid) {
            continue;
        }
        match sys::pidfd_signal(pidfd.as_fd(), signal) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {} // It is gone.
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(super) fn open_pidfd(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    else {
        return Ok(None);
    };
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The id of a pidfd's process, as our `/proc` counts.
fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    pid.and_then(|pid| pid.trim().parse().ok())
        .ok_or_else(|| io::Error::other("a pidfd of no process that we see"))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn seen(pid: u32, parent: u32) -> Seen {
        Seen {
            pid,
            parent,
            group: 1,
            session: 1,
            state: State::Runs,
            threads: 1,
        }
    }

    #[test]
    fn what_is_below_comes_parents_first_whatever_the_ids() {
        let all = [(9, 1), (3, 9), (2, 3), (7, 1), (5, 4), (4, 7), (8, 6)];
        let all = all.map(|(pid, parent)| seen(pid, parent)).to_vec();
        let found = with_descendants(all, |it| it.parent == 1);
        let found: Vec<_> = found.into_iter().map(|it| it.pid).collect();
        assert_eq!(found, [9, 7, 3, 4, 2, 5]);
    }

    #[test]
    fn who_is_born_while_others_are_looked_at_is_looked_at_too() {
        // The parent 5 was listed, had its child, and ended before anybody looked at it.
        let lists = RefCell::new(vec![vec![1, 6, 7], vec![1, 6], vec![1, 5]]);
        let mut seen = Vec::new();
        let outcome = each_new(
            || Ok(lists.borrow_mut().pop().unwrap_or_default()),
            |pids| {
                seen.push(pids.to_vec());
                Ok(())
            },
        );
        outcome.unwrap();
        assert_eq!(seen, [vec![1, 5], vec![6], vec![7]]);
    }

    #[test]
    fn a_host_where_somebody_is_always_born_holds_nobody_up() {
        let last = Cell::new(0);
        let mut rounds = 0;
        let list = || {
            last.set(last.get() + 1);
            Ok(vec![last.get()])
        };
        let act = |_: &[u32]| {
            rounds += 1;
            Ok(())
        };
        each_new(list, act).unwrap();
        assert_eq!(rounds, ROUNDS_MAX);
    }

    #[test]
    fn a_process_whose_first_thread_ended_lives_and_a_zombie_does_not() {
        let stat = |letter, threads| {
            let stat =
                format!("12 (a ) Z b) {letter} 3 4 5 0 -1 4 1 2 3 4 5 6 7 8 20 0 {threads} 0 9");
            Seen::parse(12, &stat).unwrap()
        };
        let found = stat("S", 1);
        assert_eq!((found.parent, found.group, found.session), (3, 4, 5));
        assert!(found.lives() && !found.is_stopped().unwrap());
        assert!(stat("T", 1).is_stopped().unwrap());
        assert!(!stat("Z", 1).lives());
        assert!(stat("Z", 2).lives());
    }
}
