//! Keeper, spawner and pump in the runtime without isolation: real processes, no privileges.
#![expect(clippy::unwrap_used, reason = "test")]

mod common;

use std::process::ExitCode;

use common::{
    fixture::{Did, Do},
    sandbox::Sandbox,
    stories,
};
use outlive_api::launch::RuntimeKind;

fn main() -> ExitCode {
    common::main(&[
        ("a_program_starts_clean", || {
            stories::a_program_starts_clean(&sandbox());
        }),
        ("arguments_arrive_exactly", || {
            stories::arguments_arrive_exactly(&sandbox());
        }),
        ("a_start_that_fails_says_why", || {
            stories::a_start_that_fails_says_why(&sandbox());
        }),
        ("a_shut_gate_opens_to_nobody", || {
            a_shut_gate_opens_to_nobody(&sandbox());
        }),
        ("two_hundred_codes_are_exact", || {
            stories::two_hundred_codes_are_exact(&sandbox());
        }),
        ("short_programs_lose_nothing", || {
            stories::short_programs_lose_nothing(&sandbox(), 1000);
        }),
        ("ten_kills_of_the_supervisor_change_nothing", || {
            stories::ten_kills_of_the_supervisor_change_nothing(&sandbox());
        }),
        ("an_end_without_a_supervisor_is_known", || {
            stories::an_end_without_a_supervisor_is_known(&sandbox());
        }),
        ("kills_of_the_pump_lose_no_byte", || {
            stories::kills_of_the_pump_lose_no_byte(&sandbox(), 100);
        }),
        ("keeper_and_supervisor_are_replaced_in_place", || {
            stories::keeper_and_supervisor_are_replaced_in_place(&sandbox());
        }),
        ("orphans_leave_no_zombies", || {
            stories::orphans_leave_no_zombies(&sandbox());
        }),
        (
            "a_program_gains_nothing_by_an_exec",
            a_program_gains_nothing_by_an_exec,
        ),
        (
            "a_program_has_no_power_over_the_agents_processes",
            a_program_has_no_power_over_the_agents_processes,
        ),
    ])
}

fn sandbox() -> Sandbox {
    Sandbox::launch(RuntimeKind::Process)
}

/// Whoever waits at its gate leaves when the supervisor dies, whatever else was started meanwhile.
fn a_shut_gate_opens_to_nobody(sandbox: &Sandbox) {
    let waiting: Vec<_> = ["ses-shut1", "ses-shut2"]
        .map(|name| match sandbox.ask(&Do::StartShut(name.to_owned())) {
            Did::Pid(pid) => {
                let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
                rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
            }
            other => panic!("{other:?}"),
        })
        .into();
    assert!(sandbox.kill_supervisor());
    for pidfd in &waiting {
        let limit = rustix::event::Timespec {
            tv_sec: 30,
            tv_nsec: 0,
        };
        let mut fds = [rustix::event::PollFd::new(
            pidfd,
            rustix::event::PollFlags::IN,
        )];
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1));
    }
}

/// Outside of a user namespace of its own no set-user-ID program gives more, and the machine's
/// system calls are denied as in every tier.
fn a_program_gains_nothing_by_an_exec() {
    let look = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status";
    let (_, output) = sandbox().run("ses-exec", &["sh", "-c", look]);
    assert_eq!(output, "NoNewPrivs:\t1\nSeccomp:\t2\n");
}

/// The same user, or even root: Landlock keeps a program from the agent's processes, except that it
/// can lower their limits, and that root may profile whom it likes. The journal lies open. What is
/// said of the runtime is what holds.
fn a_program_has_no_power_over_the_agents_processes() {
    let sandbox = sandbox();
    let isolation = &sandbox.launched.isolation;
    let fenced = isolation.off.iter().any(|sentence| {
        sentence.ends_with("Landlock keeps them from tracing it or sending it signals")
    });
    assert!(
        fenced,
        "this test needs Linux 6.12 with Landlock: {isolation:?}"
    );
    assert!(!isolation.journal_protected);
    let supervisor = sandbox.supervisor().unwrap();
    let arguments = [
        format!("agent={}", sandbox.launched.keeper_pid),
        format!("agent={supervisor}"),
        format!("journal={}", sandbox.state("exits").display()),
    ];
    let program = std::env::current_exe().unwrap();
    let through = sandbox.escape(program.to_str().unwrap(), "none", &arguments);
    let mut expected = Vec::new();
    for name in ["outlive-keeper", "outlive-supervi"] {
        expected.push(format!("limit {name}: GOT THROUGH"));
        if rustix::process::geteuid().is_root() {
            expected.push(format!("open environ of {name}: GOT THROUGH"));
            expected.push(format!("open maps of {name}: GOT THROUGH"));
        }
    }
    expected.push("open the journal: GOT THROUGH".to_owned());
    assert_eq!(through, expected);
    assert!(sandbox.keeper_lives());
    assert_eq!(sandbox.supervisor(), Some(supervisor));
}
