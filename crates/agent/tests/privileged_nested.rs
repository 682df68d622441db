//! Keeper, spawner and pump in nested namespaces; needs root, and fails without.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "test")]

#[path = "nested/caller.rs"]
mod caller;
mod common;
#[path = "nested/groups.rs"]
mod groups;
#[path = "nested/host.rs"]
mod host;
#[path = "nested/networks.rs"]
mod networks;
#[path = "nested/ordinary.rs"]
mod ordinary;
#[path = "nested/servers.rs"]
mod servers;
#[path = "nested/shares.rs"]
mod shares;
#[path = "nested/two_uid.rs"]
mod two_uid;

use std::process::ExitCode;

use common::{
    Story,
    fixture::{Did, Do},
    sandbox::Sandbox,
    stories,
};
use outlive_api::launch::{IsolationTier, RuntimeKind};
use outlive_core::event::ExitStatus;

const STORIES: &[Story] = &[
    ("a_program_starts_clean", || {
        stories::a_program_starts_clean(&sandbox());
    }),
    ("arguments_arrive_exactly", || {
        stories::arguments_arrive_exactly(&sandbox());
    }),
    ("a_start_that_fails_says_why", || {
        stories::a_start_that_fails_says_why(&sandbox());
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
        "a_kill_reaches_the_whole_tree",
        a_kill_reaches_the_whole_tree,
    ),
    ("the_host_keeps_its_secrets", the_host_keeps_its_secrets),
    (
        "root_inside_has_no_power_over_the_agent",
        root_inside_has_no_power_over_the_agent,
    ),
    (
        "every_way_out_is_refused_to_root_inside",
        every_way_out_is_refused_to_root_inside,
    ),
    (
        "a_sandbox_that_takes_all_it_gets_leaves_others_theirs",
        shares::a_sandbox_that_takes_all_it_gets_leaves_others_theirs,
    ),
    ("a_sandbox_fits_inside", a_sandbox_fits_inside),
    ("a_terminal_has_a_name_inside", a_terminal_has_a_name_inside),
    (
        "a_bridge_leads_out_under_the_hosts_address",
        networks::a_bridge_leads_out_under_the_hosts_address,
    ),
    (
        "egress_rules_hold_and_change_under_way",
        networks::egress_rules_hold_and_change_under_way,
    ),
    (
        "rules_are_the_same_whoever_writes_them",
        networks::rules_are_the_same_whoever_writes_them,
    ),
    (
        "a_link_that_is_cut_carries_nothing",
        networks::a_link_that_is_cut_carries_nothing,
    ),
    (
        "a_bridge_reaches_neither_the_host_nor_a_neighbour",
        networks::a_bridge_reaches_neither_the_host_nor_a_neighbour,
    ),
    (
        "addresses_are_taken_once_and_given_back",
        networks::addresses_are_taken_once_and_given_back,
    ),
    (
        "a_user_with_granted_ids_has_whole_sandboxes",
        ordinary::a_user_with_granted_ids_has_whole_sandboxes,
    ),
    (
        "a_user_without_granted_ids_has_sandboxes_with_root_alone",
        ordinary::a_user_without_granted_ids_has_sandboxes_with_root_alone,
    ),
    (
        "a_host_forwards_for_its_sandboxes_and_for_nobody_else",
        networks::a_host_forwards_for_its_sandboxes_and_for_nobody_else,
    ),
    (
        "ipv6_is_no_way_round_the_rules",
        networks::ipv6_is_no_way_round_the_rules,
    ),
    (
        "a_server_that_starts_tidies_up_after_everybody",
        networks::a_server_that_starts_tidies_up_after_everybody,
    ),
    (
        "what_sandboxes_share_is_there_while_a_server_runs",
        servers::what_sandboxes_share_is_there_while_a_server_runs,
    ),
    (
        "sandboxes_outlive_servers_with_their_rules",
        servers::sandboxes_outlive_servers_with_their_rules,
    ),
    (
        "a_sandbox_is_made_after_a_firewall_removed_all_rules",
        servers::a_sandbox_is_made_after_a_firewall_removed_all_rules,
    ),
    (
        "a_host_becomes_a_router_beside_a_server",
        servers::a_host_becomes_a_router_beside_a_server,
    ),
    (
        "servers_come_and_go_at_once",
        servers::servers_come_and_go_at_once,
    ),
    (
        "without_namespaces_the_agent_is_another_user",
        two_uid::without_namespaces_the_agent_is_another_user,
    ),
    (
        "two_users_lose_nothing_when_processes_die",
        two_uid::two_users_lose_nothing_when_processes_die,
    ),
    (
        "files_that_nobody_gets_to_are_told_of",
        two_uid::files_that_nobody_gets_to_are_told_of,
    ),
    (
        "groups_that_nobody_holds_are_removed_and_no_others",
        groups::groups_that_nobody_holds_are_removed_and_no_others,
    ),
    ("a_workload_is_limited", a_workload_is_limited),
    ("a_launch_is_quick_and_small", a_launch_is_quick_and_small),
];

fn main() -> ExitCode {
    common::main(STORIES)
}

fn sandbox() -> Sandbox {
    Sandbox::launch(RuntimeKind::Namespace)
}

/// Starts a program that says `up`, and kills it with all that it started.
fn kill_a_tree(sandbox: &Sandbox, script: &str) {
    sandbox.start("ses-tree", &["sh", "-c", script]);
    while sandbox.output("ses-tree", "out") != "up\n" {
        std::thread::yield_now();
    }
    sandbox.ask(&Do::Kill("ses-tree".to_owned()));
    let killed = ExitStatus::Signal {
        signal: 9,
        core: false,
    };
    assert_eq!(sandbox.wait("ses-tree"), killed);
}

/// case F1, S69: a kill reaches those who left the session and the process group.
fn a_kill_reaches_the_whole_tree() {
    let sandbox = sandbox();
    let script = "sleep 1000 & (setsid sleep 1001 &) ; echo up; wait";
    kill_a_tree(&sandbox, script);
    while sandbox.ask(&Do::List) != Did::Names(vec![]) {
        // The attempt is forgotten only once its group is empty.
        std::thread::yield_now();
    }
}

fn the_host_keeps_its_secrets() {
    let sandbox = sandbox();
    // The host's own line of root, whatever it is, must not be found inside.
    let host = std::fs::read_to_string("/etc/shadow").unwrap();
    let (_, inside) = sandbox.run("ses-shadow", &["cat", "/etc/shadow"]);
    assert_ne!(inside, host);
    assert_eq!(inside, "root:*:19000:0:99999:7:::\n");
    let look = "ls -A /root /home/user /var/log /mnt /srv; ls / | tr '\\n' ' '; id -u; \
                touch /root/a /usr/local/b /etc/c /tmp/d && echo writes; command -v python3 || true";
    let (status, output) = sandbox.run("ses-look", &["sh", "-c", look]);
    assert_eq!(status, ExitStatus::Code(0), "{output}");
    assert!(output.contains("0\nwrites\n"), "{output}");
    let directory = sandbox.config.directory.clone();
    let (_, output) = sandbox.run("ses-dir", &["ls", &directory]);
    assert_eq!(output, "");
}

fn root_inside_has_no_power_over_the_agent() {
    let sandbox = sandbox();
    let script = "kill -9 1 2>/dev/null && echo killed; \
                  ls /proc/1/root/ 2>/dev/null && echo root; \
                  ls /proc/1/fd/ 2>/dev/null && echo fds; \
                  cat /proc/1/environ 2>/dev/null && echo environ; \
                  grep -q 'keep[e]r' /proc/[0-9]*/cmdline && echo agent; \
                  mount -t tmpfs none /mnt 2>/dev/null && echo mounts; \
                  ip link set lo down 2>/dev/null && echo network; \
                  tr '\\0' ' ' < /proc/1/cmdline; echo; \
                  unshare -m true && echo unshares";
    let (_, output) = sandbox.run("ses-power", &["sh", "-c", script]);
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    assert_eq!(lines, ["sbx-init", "unshares"], "{output}");
    assert!(sandbox.keeper_lives());
    assert!(sandbox.launched.isolation.journal_protected);
    assert_eq!(sandbox.launched.isolation.tier, IsolationTier::Nested);
    assert_eq!(sandbox.launched.isolation.off, Vec::<String>::new());
}

/// Seventy and more attempts by root of the workload; see `common/escape.rs`.
fn every_way_out_is_refused_to_root_inside() {
    let other = sandbox();
    let sandbox = Sandbox::launch_with(RuntimeKind::Namespace, |config| {
        host::bring(&config.directory);
    });
    let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut arguments = vec![format!("port={}", service.local_addr().unwrap())];
    for pid in [std::process::id(), sandbox.launched.keeper_pid] {
        arguments.push(format!("pid={pid}"));
    }
    for path in ["", "state/agent.sock", "state/exits", "upper"] {
        arguments.push(format!("path={}/{path}", sandbox.config.directory));
        arguments.push(format!("path={}/{path}", other.config.directory));
    }
    let through = sandbox.escape("/escape", "nested", &arguments);
    assert_eq!(through, Vec::<String>::new());
    assert!(sandbox.keeper_lives() && other.keeper_lives());
}

/// The covers over `/proc` don't keep a sandbox of the user's own from having one.
fn a_sandbox_fits_inside() {
    let sandbox = sandbox();
    let script = "unshare --user --map-root-user --pid --fork --mount --mount-proc \
                  sh -c 'cat /proc/1/comm; mount -t tmpfs none /mnt && echo mounts; \
                  cat /proc/kcore 2>/dev/null | head -c 1 | wc -c'";
    let (_, output) = sandbox.run("ses-inside", &["sh", "-c", script]);
    assert_eq!(
        output,
        "sh\nmounts\n0\n",
        "{}",
        sandbox.output("ses-inside", "err")
    );
}

fn a_terminal_has_a_name_inside() {
    let sandbox = sandbox();
    let script = "tty; stty size; echo again > /dev/tty; echo more > $(tty)";
    sandbox.start_tty("ses-tty", &["sh", "-c", script]);
    assert_eq!(sandbox.wait("ses-tty"), ExitStatus::Code(0));
    assert_eq!(
        sandbox.output("ses-tty", "tty"),
        "/dev/pts/0\r\n24 80\r\nagain\r\nmore\r\n"
    );
    // Opening a pipe again takes its ownership.
    let (status, output) = sandbox.run("ses-again", &["sh", "-c", "echo a > /dev/stdout"]);
    assert_eq!((status, output.as_str()), (ExitStatus::Code(0), "a\n"));
}

fn a_workload_is_limited() {
    let sandbox = Sandbox::launch_with(RuntimeKind::Namespace, |config| {
        config.limits.pids_max = Some(32);
        config.limits.memory_bytes_max = Some(64 << 20);
    });
    let script = "i=0; while [ $i -lt 60 ]; do sleep 1 & i=$((i+1)); done; wait";
    sandbox.start("ses-pids", &["sh", "-c", script]);
    assert_ne!(sandbox.wait("ses-pids"), ExitStatus::Code(0));
    let (status, _) = sandbox.run("ses-memory", &["sh", "-c", "exec tail /dev/zero"]);
    let killed = ExitStatus::Signal {
        signal: 9,
        core: false,
    };
    assert_eq!(status, killed);
}

/// Prints figures; the bounds are wide, for a busy machine.
fn a_launch_is_quick_and_small() {
    let mut millis = Vec::new();
    let mut kib = 0;
    for _ in 0..5 {
        let from = outlive_agent::sys::boot_clock();
        let sandbox = sandbox();
        let took = outlive_agent::sys::boot_clock().saturating_sub(from);
        millis.push(took.as_secs_f64() * 1000.0);
        kib = pss_kib(&sandbox);
    }
    println!("first launches: {millis:.1?} ms; idle PSS {kib} KiB");
    assert!(kib < 5 * 1024, "{kib} KiB");
}

/// Proportional memory of keeper, supervisor and `sbx-init` together.
fn pss_kib(sandbox: &Sandbox) -> u64 {
    let keeper = sandbox.launched.keeper_pid;
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let children = children.unwrap();
    [keeper.to_string().as_str()]
        .into_iter()
        .chain(children.split_whitespace())
        .map(|pid| {
            let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
            let line = rollup.lines().find(|l| l.starts_with("Pss:")).unwrap();
            line.split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}
