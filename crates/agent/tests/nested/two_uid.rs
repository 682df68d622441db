//! Sandboxes without namespaces whose agent has a user of its own.

use std::os::unix::fs::PermissionsExt as _;

use outlive_api::launch::{IsolationTier, LaunchOutcome, RuntimeKind};
use outlive_core::event::ExitStatus;

use crate::common::{
    sandbox::{Sandbox, call, config, us},
    stories,
};

fn sandbox() -> Sandbox {
    Sandbox::launch(RuntimeKind::TwoUid)
}

fn status(pid: u32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .to_owned()
}

/// The agent has four powers and no more; what it starts has none, under another user, and gets
/// neither to the agent nor to its journal nor to root.
pub(crate) fn without_namespaces_the_agent_is_another_user() {
    let other = sandbox();
    let sandbox = sandbox();
    let isolation = &sandbox.launched.isolation;
    assert_eq!(isolation.tier, IsolationTier::TwoUid);
    assert!(isolation.journal_protected);
    assert!(
        isolation
            .off
            .iter()
            .any(|off| off.starts_with("isolation:"))
    );
    let first = sandbox.config.ids.unwrap().first;
    let supervisor = sandbox.supervisor().unwrap();
    for pid in [sandbox.launched.keeper_pid, supervisor] {
        assert_eq!(status(pid, "Uid:"), first.to_string());
        // CHOWN, KILL, SETGID, SETUID.
        assert_eq!(status(pid, "CapPrm:"), "00000000000000e1");
        assert_eq!(status(pid, "Groups:"), "");
    }
    let look = "id -u; id -G; grep -E '^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):' \
                /proc/self/status | tr '\\n\\t' '  '";
    let (_, output) = sandbox.run("ses-look", &["sh", "-c", look]);
    let workload = first + 1;
    let none = "0000000000000000";
    assert_eq!(
        output,
        format!(
            "{workload}\n{workload}\nCapInh: {none} CapPrm: {none} CapEff: {none} \
             CapAmb: {none} NoNewPrivs: 1 Seccomp: 2 "
        )
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("escape");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let arguments = [
        format!("agent={}", sandbox.launched.keeper_pid),
        format!("agent={supervisor}"),
        format!("agent={}", other.launched.keeper_pid),
        format!("agent={}", std::process::id()),
        format!("journal={}", sandbox.state("exits").display()),
        format!("journal={}", other.state("exits").display()),
        format!("journal={}/files/", other.config.directory),
    ];
    let through = sandbox.escape(program.to_str().unwrap(), "two-uid", &arguments);
    assert_eq!(through, Vec::<String>::new());
    assert!(sandbox.keeper_lives() && other.keeper_lives());
}

/// What holds in every tier holds here, and a kill reaches who left the session.
pub(crate) fn two_users_lose_nothing_when_processes_die() {
    let sandbox = sandbox();
    stories::a_program_starts_clean(&sandbox);
    stories::a_start_that_fails_says_why(&sandbox);
    stories::ten_kills_of_the_supervisor_change_nothing(&sandbox);
    stories::an_end_without_a_supervisor_is_known(&sandbox);
    stories::keeper_and_supervisor_are_replaced_in_place(&sandbox);
    stories::short_programs_lose_nothing(&sandbox, 40);
    sandbox.start_tty("ses-tty", &["sh", "-c", "echo more > $(tty)"]);
    assert_eq!(sandbox.wait("ses-tty"), ExitStatus::Code(0));
    assert_eq!(sandbox.output("ses-tty", "tty"), "more\r\n");
    let script = "(setsid sleep 1001 &) ; echo up; exec sleep 1000";
    crate::kill_a_tree(&sandbox, script);
}

/// A data folder that only root passes through is refused, with what to do.
pub(crate) fn files_that_nobody_gets_to_are_told_of() {
    let closed = tempfile::tempdir().unwrap();
    let directory = closed.path().join("sandbox");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let config = config(RuntimeKind::TwoUid, &directory);
    match minicbor::decode(&call(&us(), "launch", &config)).unwrap() {
        LaunchOutcome::Failed(failure) => {
            assert!(failure.message.contains("chmod o+x"), "{failure}");
        }
        LaunchOutcome::Started(launched) => panic!("{launched:?}"),
    }
}
