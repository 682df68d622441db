//! Launchers that are killed while they work: what they began is nobody's, and ends by itself, with
//! or without control groups.

use std::{
    fs::{self, File},
    os::unix::fs::chown,
    process::Child,
};

use outlive_api::launch::LaunchConfig;
use outlive_core::{event::ExitStatus, session::Phase};
use rustix::fs::{FlockOperation, flock};

use crate::{
    launching::{begin, config, directory_in},
    supervised::{Sandbox, children, eventually, is_alive, sh, status},
};

/// How far a launch has come when its launcher is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// It is written down who will be the keeper.
    Named,
    /// The keeper lives, and its supervisor is not ready.
    Kept,
}

/// A launch that can't end, because somebody else has the supervisor's lock.
struct HeldUp {
    wrapper: &'static [&'static str],
    directory: tempfile::TempDir,
    config: LaunchConfig,
    lock: File,
    launcher: Child,
}

impl HeldUp {
    fn begin(wrapper: &'static [&'static str], change: fn(&mut LaunchConfig)) -> Self {
        let directory = directory_in(&std::env::temp_dir());
        let mut config = config(directory.path());
        change(&mut config);
        let state = directory.path().join("state");
        fs::create_dir(&state).unwrap();
        let lock = File::create(state.join("supervisor.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        if let Some(ids) = config.ids {
            for ours in [state.join("supervisor.lock"), state] {
                chown(ours, Some(ids.first), Some(ids.first)).unwrap();
            }
        }
        let launcher = begin(wrapper, &config);
        Self {
            wrapper,
            directory,
            config,
            lock,
            launcher,
        }
    }

    /// Whom whoever cleans up would find.
    fn named(&self) -> Option<u32> {
        let text = fs::read_to_string(self.directory.path().join("state/keeper.pid")).ok()?;
        let (pid, start_ticks) = text.strip_suffix('\n')?.split_once(' ')?;
        let pid = pid.parse().unwrap();
        let now = outlive_agent::sys::start_ticks(pid).ok();
        (now == start_ticks.parse().ok()).then_some(pid)
    }

    /// Waits until the launch has come so far; the keeper, or who becomes it.
    fn comes_to(&self, moment: Moment) -> u32 {
        eventually("the launch comes so far", || {
            let named = self.named()?;
            let title = fs::read(format!("/proc/{named}/cmdline")).unwrap_or_default();
            match moment {
                Moment::Named => Some(named),
                Moment::Kept => title.starts_with(b"outlive-keeper\0").then_some(named),
            }
        })
    }

    /// Who says that they are of this sandbox.
    fn titled(&self) -> Vec<u32> {
        let id = self.config.sandbox.as_str().as_bytes();
        let of_sandbox = |pid: &u32| {
            let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            title.split(|&byte| byte == 0).any(|word| word == id)
        };
        let names = fs::read_dir("/proc").unwrap();
        names
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
            .filter(of_sandbox)
            .collect()
    }
}

/// Where there was no control group, a keeper whose launcher was killed went on for ever with all
/// that it had started: nobody had its number, and no later runtime got the supervisor's lock.
fn a_killed_launcher_leaves_nothing(
    wrapper: &'static [&'static str],
    change: fn(&mut LaunchConfig),
) {
    for moment in [Moment::Named, Moment::Kept, Moment::Named] {
        let mut held_up = HeldUp::begin(wrapper, change);
        let keeper = held_up.comes_to(moment);
        let mut begun: Vec<u32> = children(keeper)
            .iter()
            .map(|pid| pid.unsigned_abs())
            .collect();
        begun.push(keeper);
        held_up.launcher.kill().unwrap();
        held_up.launcher.wait().unwrap();
        eventually("the keeper ends", || (!is_alive(keeper)).then_some(()));
        // Whoever waits for it finds that it has no keeper.
        flock(&held_up.lock, FlockOperation::Unlock).unwrap();
        eventually("nothing is left", || {
            let left = begun.iter().any(|pid| is_alive(*pid)) || !held_up.titled().is_empty();
            (!left).then_some(())
        });
        let HeldUp {
            directory, config, ..
        } = held_up;
        let next = Sandbox::launch_there(held_up.wrapper, directory, config);
        let session = next.create(sh("exit 7"));
        let exited = next.wait_for(&session, &[Phase::Exited]);
        assert_eq!(status(&exited), ExitStatus::Code(7));
    }
}

#[test]
fn a_killed_launcher_leaves_no_processes_of_its_own_user() {
    a_killed_launcher_leaves_nothing(&[], |_| {});
}

#[cfg(feature = "privileged")]
mod as_root {
    use super::*;
    use crate::launching::{NO_GROUPS, as_two_users, in_namespaces};

    #[test]
    fn a_killed_launcher_leaves_no_namespaces() {
        a_killed_launcher_leaves_nothing(&NO_GROUPS, in_namespaces);
        a_killed_launcher_leaves_nothing(&[], in_namespaces);
    }

    #[test]
    fn a_killed_launcher_leaves_no_second_user() {
        a_killed_launcher_leaves_nothing(&NO_GROUPS, as_two_users);
        a_killed_launcher_leaves_nothing(&[], as_two_users);
    }

    #[test]
    fn a_killed_launcher_leaves_no_processes_without_groups() {
        a_killed_launcher_leaves_nothing(&NO_GROUPS, |_| {});
    }

    // Whoever starts a server may leave files open to it: a pipe whose reader waits for its end, say.
    #[test]
    fn what_was_left_open_to_a_launcher_stays_with_it() {
        let forgetful = ["sh", "-c", "exec 9</dev/zero; exec \"$0\" \"$@\""];
        let directory = directory_in(&std::env::temp_dir());
        let config = config(directory.path());
        let sandbox = Sandbox::launch_there(&forgetful, directory, config);
        for pid in [
            sandbox.keeper_pid(),
            sandbox.supervisor_pid().unsigned_abs(),
        ] {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let open: Vec<_> = open
                .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
                .collect();
            assert!(!open.is_empty());
            assert!(!open.iter().any(|file| file.ends_with("zero")), "{open:?}");
        }
    }
}
