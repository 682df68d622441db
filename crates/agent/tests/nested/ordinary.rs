//! Sandboxes of an ordinary user.

use outlive_api::launch::{IsolationTier, RuntimeKind};
use outlive_core::event::ExitStatus;

use crate::{
    caller::{FIRST, Granted, USER, ordinary},
    common::{
        fixture::{Did, Do},
        sandbox::Sandbox,
        stories,
    },
    host,
};

fn sandbox(granted: Granted) -> Sandbox {
    Sandbox::launch_by(RuntimeKind::Namespace, |config| {
        host::bring(&config.directory);
        ordinary(granted, config)
    })
}

/// An ordinary user with granted ids: all that root's sandboxes do, with a root of its own inside
/// and other users beside it.
pub(crate) fn a_user_with_granted_ids_has_whole_sandboxes() {
    let sandbox = sandbox(Granted::Ids);
    stories::a_program_starts_clean(&sandbox);
    stories::a_start_that_fails_says_why(&sandbox);
    stories::ten_kills_of_the_supervisor_change_nothing(&sandbox);
    stories::an_end_without_a_supervisor_is_known(&sandbox);
    stories::keeper_and_supervisor_are_replaced_in_place(&sandbox);
    a_terminal_and_a_disk(&sandbox);
    let script = "touch /root/hers && chown 1000:1000 /root/hers && stat -c %u:%g /root/hers && \
                  setpriv --reuid 1000 --regid 1000 --clear-groups id -u";
    let (_, output) = sandbox.run("ses-ids", &["sh", "-c", script]);
    assert_eq!(
        output,
        "1000:1000\n1000\n",
        "{}",
        sandbox.output("ses-ids", "err")
    );
    on_the_host_nothing_is_root(&sandbox);
    nothing_gets_through(&sandbox, &[]);
}

/// Without granted ids there is root inside and nobody else, and that is said.
pub(crate) fn a_user_without_granted_ids_has_sandboxes_with_root_alone() {
    let sandbox = sandbox(Granted::Nothing);
    let said = &sandbox.launched.isolation.off;
    assert!(
        said.iter().any(|off| off.starts_with("ids: one")),
        "{said:?}"
    );
    stories::a_program_starts_clean(&sandbox);
    stories::ten_kills_of_the_supervisor_change_nothing(&sandbox);
    stories::an_end_without_a_supervisor_is_known(&sandbox);
    a_terminal_and_a_disk(&sandbox);
    on_the_host_nothing_is_root(&sandbox);
    // Root inside has the init's id: the kernel does nothing with its signal and says that it did,
    // and shows directories of which nothing can be opened.
    nothing_gets_through(
        &sandbox,
        &[
            "signal the init: GOT THROUGH",
            "limit the init: GOT THROUGH",
            "open /proc/1/map_files: GOT THROUGH",
            "list /proc/1/fd: GOT THROUGH",
        ],
    );
}

fn a_terminal_and_a_disk(sandbox: &Sandbox) {
    sandbox.start_tty("ses-tty", &["sh", "-c", "tty; echo more > $(tty)"]);
    assert_eq!(sandbox.wait("ses-tty"), ExitStatus::Code(0));
    assert_eq!(sandbox.output("ses-tty", "tty"), "/dev/pts/0\r\nmore\r\n");
    let script = "id -u; cat /etc/hostname; cat /etc/shadow; echo new > /etc/motd; \
                  mkdir -p /var/lib/a /home/b && rm -r /srv && echo writes; \
                  touch /usr/bin/a 2>/dev/null || echo closed";
    let (_, output) = sandbox.run("ses-disk", &["sh", "-c", script]);
    let expected = "0\nbox\nroot:*:19000:0:99999:7:::\nwrites\nclosed\n";
    assert_eq!(output, expected, "{}", sandbox.output("ses-disk", "err"));
}

/// Every process of the sandbox belongs to the user, or to an id that the user was granted.
fn on_the_host_nothing_is_root(sandbox: &Sandbox) {
    assert!(matches!(
        sandbox.start("ses-sleep", &["sleep", "1000"]),
        Did::Pid(_)
    ));
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let ours = namespace(&sandbox.launched.keeper_pid.to_string());
    let pids = std::fs::read_dir("/proc").unwrap();
    let pids = pids.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let inside: Vec<u32> = pids
        .filter(|pid| pid.parse::<u32>().is_ok() && namespace(pid) == ours)
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())
        .map(|status| {
            let line = status
                .lines()
                .find(|line| line.starts_with("Uid:"))
                .unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        })
        .collect();
    // Keeper, supervisor, init and the program.
    assert!(inside.len() >= 4, "{inside:?}");
    for uid in inside {
        assert!(
            uid == USER || (FIRST..FIRST + 65_536).contains(&uid),
            "{uid}"
        );
    }
    sandbox.ask(&Do::Kill("ses-sleep".to_owned()));
    let killed = ExitStatus::Signal {
        signal: 9,
        core: false,
    };
    assert_eq!(sandbox.wait("ses-sleep"), killed);
    assert_eq!(sandbox.launched.isolation.tier, IsolationTier::Nested);
    assert!(sandbox.launched.isolation.journal_protected);
}

fn nothing_gets_through(sandbox: &Sandbox, except: &[&str]) {
    let state = sandbox.state("exits").display().to_string();
    let arguments = [
        format!("pid={}", std::process::id()),
        format!("pid={}", sandbox.launched.keeper_pid),
        format!("path={state}"),
    ];
    assert_eq!(sandbox.escape("/escape", "nested", &arguments), except);
    assert!(sandbox.keeper_lives());
}
