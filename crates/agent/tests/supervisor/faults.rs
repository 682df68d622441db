//! Full disks, damaged files, new executables: what is not an everyday matter.
use std::fs;

use crate::supervised::{self, Sandbox, argv, eventually, kill, on_terminal, sh, status};
use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    event::{ExitStatus, Stream},
    session::{Phase, Rejection},
};

#[test]
fn one_damaged_session_is_its_own_misfortune() {
    let sandbox = Sandbox::launch();
    let damaged = sandbox.create(argv(&["true"]));
    let other = sandbox.create(argv(&["cat"]));
    sandbox.wait_for(&damaged, &[Phase::Exited]);
    let folder = sandbox.state().join("sessions").join(damaged.as_str());
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let length = fs::metadata(&path).unwrap().len();
        fs::write(&path, vec![0x5a; usize::try_from(length).unwrap()]).unwrap();
    }
    fs::create_dir(sandbox.state().join("sessions/no-session")).unwrap();
    sandbox.kill_supervisor();
    assert_eq!(sandbox.session(&other).phase(), Phase::Running);
    assert!(matches!(
        sandbox.write(&other, "a", b"on\n"),
        Outcome::Written { .. }
    ));
    sandbox.wait_for_output(&other, Stream::Stdout, "on\n");
    let outcome = sandbox.call(&Request::Get(damaged.clone()));
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    let ids: Vec<_> = sandbox
        .list()
        .iter()
        .map(|session| session.id().clone())
        .collect();
    assert_eq!(ids, [other]);
    let deleted = sandbox.call(&Request::Delete(damaged.clone()));
    assert_eq!(deleted, Outcome::Done);
    assert!(!folder.exists());
    let outcome = sandbox.call(&Request::Get(damaged));
    assert_eq!(outcome, Outcome::Rejected(Rejection::NotFound));
    match sandbox.call(&Request::Health) {
        Outcome::Health(health) => {
            assert_eq!(health.damaged, 1);
            assert_eq!(health.supervisor_starts, 2);
        }
        other => panic!("{other:?}"),
    }
}

// case J4, at the agent: with the executable gone right after
#[test]
fn an_upgrade_in_place_keeps_processes_and_their_output() {
    let sandbox = Sandbox::launch();
    let ids: Vec<_> = (0..10)
        .map(|round| {
            let spec = sh("i=0; while read line; do i=$((i+1)); echo $i $line; done; exit 4");
            sandbox.create(if round % 2 == 0 {
                spec
            } else {
                on_terminal(spec)
            })
        })
        .collect();
    let pids: Vec<_> = ids
        .iter()
        .map(|id| sandbox.session(id).attempt().unwrap().pid)
        .collect();
    let exe = sandbox.state().join("new-agent");
    fs::copy(env!("CARGO_BIN_EXE_outlive-agent"), &exe).unwrap();
    let before = sandbox.supervisor_pid();
    let path = exe.to_str().unwrap().to_owned();
    assert_eq!(
        sandbox.link().call(Request::Upgrade { path }).unwrap(),
        Outcome::Done
    );
    fs::remove_file(&exe).unwrap();
    eventually("another supervisor", || {
        (sandbox.supervisor_pid() != before).then_some(())
    });
    for (id, pid) in ids.iter().zip(pids) {
        let session = sandbox.session(id);
        assert_eq!(session.phase(), Phase::Running);
        assert_eq!(session.attempt().unwrap().pid, pid);
        let eof = Some(outlive_core::session::EofMode::Character);
        let request = supervised::write(id, "line", b"line\n", eof);
        assert!(matches!(sandbox.call(&request), Outcome::Written { .. }));
        let session = sandbox.wait_for(id, &[Phase::Exited]);
        assert_eq!(status(&session), ExitStatus::Code(4));
    }
    assert_eq!(sandbox.output(&ids[0], Stream::Stdout), b"1 line\n");
}

#[test]
fn variables_of_the_sandbox_reach_the_next_attempts() {
    let sandbox = Sandbox::launch();
    let env = [
        ("COLOUR".to_owned(), "red".to_owned()),
        ("SIZE".to_owned(), "1".to_owned()),
    ];
    let configure = Request::Configure {
        env: env.into_iter().collect(),
    };
    assert_eq!(sandbox.call(&configure), Outcome::Done);
    let mut spec = sh("echo $COLOUR $SIZE $PWD");
    spec.env = Some([("SIZE".to_owned(), "2".to_owned())].into_iter().collect());
    spec.cwd = Some("/usr".to_owned());
    let id = sandbox.create(spec);
    sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(sandbox.output(&id, Stream::Stdout), b"red 2 /usr\n");
    // What is no longer configured is gone, wherever it came from.
    let env = [("SIZE".to_owned(), "3".to_owned())].into_iter().collect();
    assert_eq!(sandbox.call(&Request::Configure { env }), Outcome::Done);
    let id = sandbox.create(sh("echo ${COLOUR-none} $SIZE ${FROM_LAUNCH-none}"));
    sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(sandbox.output(&id, Stream::Stdout), b"none 3 none\n");
}

#[test]
fn a_killed_keeper_loses_processes_and_no_event() {
    let mut sandbox = Sandbox::launch();
    let id = sandbox.create(sh("echo one; exec sleep 600"));
    sandbox.wait_for_output(&id, Stream::Stdout, "one");
    let before = sandbox.records(&id);
    kill(sandbox.keeper_pid().cast_signed(), 9);
    eventually("the supervisor leaves too", || {
        sandbox.link_once().is_err().then_some(())
    });
    sandbox.replace();
    let session = sandbox.wait_for(&id, &[Phase::Running]);
    assert_eq!(session.attempt().unwrap().number, 2);
    let after = sandbox.records(&id);
    assert_eq!(&after[..before.len()], &before[..]);
}

// A session that lives longer than the group's wait paid a sync for its start alone.
#[test]
fn a_session_costs_three_syncs_from_its_creation_to_its_deletion() {
    let sandbox = Sandbox::launch();
    let syncs = || match sandbox.call(&Request::Health) {
        Outcome::Health(health) => health.syncs,
        other => panic!("{other:?}"),
    };
    let names = outlive_journal::FileStorage::open(&sandbox.state())
        .unwrap()
        .name_sync();
    // Where a file system keeps no order, its directory costs one more.
    let most = match names {
        outlive_journal::storage::NameSync::WithFile => 3,
        outlive_journal::storage::NameSync::Separate => 4,
    };
    for script in ["echo short", "sleep 0.6; echo long"] {
        let before = syncs();
        let id = sandbox.create(sh(script));
        let session = sandbox.wait_for(&id, &[Phase::Exited]);
        assert_eq!(status(&session), ExitStatus::Code(0));
        assert_eq!(sandbox.call(&Request::Delete(id)), Outcome::Done);
        let spent = syncs() - before;
        assert!((2..=most).contains(&spent), "{script}: {spent} syncs");
    }
}

/// What takes root. The test command tells the rest as an ordinary user.
#[cfg(feature = "privileged")]
mod as_root {
    use std::time::Duration;

    use outlive_core::spec::DesiredState;

    use super::*;
    use crate::supervised::pause;

    /// A small disk of its own; mounting one takes root.
    struct SmallDisk(tempfile::TempDir);

    impl SmallDisk {
        fn mount(bytes: u64) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount(
                "tmpfs",
                directory.path(),
                "tmpfs",
                flags,
                options.as_c_str(),
            )
            .unwrap();
            Self(directory)
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }

    #[test]
    fn a_full_disk_makes_the_workload_wait_and_nothing_is_lost() {
        let disk = SmallDisk::mount(8 * 1024 * 1024);
        let sandbox = Sandbox::launch_in(disk.0.path());
        let filler = disk.0.path().join("filler");
        fs::write(&filler, vec![1; 5 * 1024 * 1024]).unwrap();
        let script =
            "i=0; while [ $i -lt 100 ]; do head -c 40000 /dev/zero; i=$((i+1)); done; exit 9";
        let id = sandbox.create(sh(script));
        eventually("the disk is full", || {
            let free = rustix::fs::statvfs(disk.0.path()).unwrap().f_bavail;
            (free < 20).then_some(())
        });
        pause(Duration::from_millis(300));
        assert_eq!(sandbox.session(&id).phase(), Phase::Running);
        // Others can still be stopped: there is a reserve.
        let other = sandbox.list()[0].id().clone();
        assert_eq!(other, id);
        fs::remove_file(&filler).unwrap();
        let session = sandbox.wait_for(&id, &[Phase::Exited]);
        assert_eq!(status(&session), ExitStatus::Code(9));
        assert_eq!(sandbox.output(&id, Stream::Stdout).len(), 4_000_000);
        sandbox.set_desired(&id, DesiredState::Stopped);
    }
}
