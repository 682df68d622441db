//! What the kernel has once for everybody, and a sandbox that wants all of it.

use outlive_api::launch::RuntimeKind;
use outlive_core::event::ExitStatus;

use super::{
    common::{escape::hoard, fixture::Did, sandbox::Sandbox},
    host,
};

// One sandbox took all terminals and all instances of inotify of the host.
pub(crate) fn a_sandbox_that_takes_all_it_gets_leaves_others_theirs() {
    let greedy = with_program();
    let other = with_program();
    // Its sessions' terminals are of its own share: with one of them open it gets one less.
    assert!(matches!(
        greedy.start_tty("ses-shell", &["sleep", "1000"]),
        Did::Pid(_)
    ));
    assert_eq!(hoarded(&greedy, "terminals"), (511, libc::ENOSPC));
    let half = half_of("max_inotify_instances");
    let instances = hoarded(&greedy, "inotify");
    assert_eq!(instances, (half.min(64), libc::EMFILE));
    let namespaces = hoarded(&greedy, "namespaces");
    // The workload's own is one.
    let share = half_of("max_user_namespaces").min(1000);
    assert_eq!(namespaces, (share - 1, libc::ENOSPC));

    other.start_tty("ses-tty", &["sh", "-c", "tty"]);
    assert_eq!(other.wait("ses-tty"), ExitStatus::Code(0));
    assert_eq!(other.output("ses-tty", "tty"), "/dev/pts/0\r\n");
    assert!(hoarded(&other, "inotify").0 > 0);
    let (status, output) = other.run("ses-user", &["unshare", "--user", "true"]);
    assert_eq!(status, ExitStatus::Code(0), "{output}");
    // Nor is more lost to itself than what it took.
    let (status, output) = greedy.run("ses-after", &["echo", "still here"]);
    assert_eq!(
        (status, output.as_str()),
        (ExitStatus::Code(0), "still here\n")
    );
}

fn with_program() -> Sandbox {
    Sandbox::launch_with(RuntimeKind::Namespace, |config| {
        host::bring(&config.directory);
    })
}

/// How much of this a program in there gets and keeps, and with which error it gets no more.
fn hoarded(sandbox: &Sandbox, what: &str) -> (u64, i32) {
    let name = format!("ses-{what}");
    sandbox.start(&name, &["/escape", hoard::WORD, what]);
    loop {
        let output = sandbox.output(&name, "out");
        if let Some(line) = output.strip_suffix('\n') {
            let (count, error) = line.split_once(' ').unwrap();
            return (count.parse().unwrap(), error.parse().unwrap());
        }
        assert_eq!(sandbox.output(&name, "err"), "");
        std::thread::yield_now();
    }
}

/// Half of what this user may have.
fn half_of(file: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/sys/user/{file}")).unwrap();
    text.trim().parse::<u64>().unwrap() / 2
}
