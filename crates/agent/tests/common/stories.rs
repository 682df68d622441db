//! Stories that hold in every runtime.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicBool, Ordering},
};

use outlive_core::event::ExitStatus;

use super::{
    fixture::{Did, Do},
    sandbox::{Sandbox, start},
};

/// case D3, D4: a program starts in a session of its own, with no signal ignored or blocked and
/// no descriptor of ours.
pub fn a_program_starts_clean(sandbox: &Sandbox) {
    let script = "grep -E '^Sig(Blk|Ign):' /proc/self/status; ls /proc/self/fd | wc -l; \
                  test \"$(cut -d' ' -f6 /proc/$$/stat)\" = $$ && echo leads; umask; ulimit -Sn";
    let (status, output) = sandbox.run("ses-clean", &["sh", "-c", script]);
    assert_eq!(status, ExitStatus::Code(0));
    let words: Vec<&str> = output.split_whitespace().collect();
    // `ls` has the directory itself open as a fourth descriptor.
    let expected = [
        "SigBlk:",
        "0000000000000000",
        "SigIgn:",
        "0000000000000000",
        "4",
        "leads",
        "0022",
        "1024",
    ];
    assert_eq!(words, expected);
}

/// case K3: arguments arrive as they are.
pub fn arguments_arrive_exactly(sandbox: &Sandbox) {
    let strange = ["a b", "", "'\"", "$(id)", "line\nbreak", "\\", "é☕", "-n"];
    let mut argv = vec!["printf", "%s\\0", "--"];
    argv.extend(strange);
    let (status, output) = sandbox.run("ses-argv", &argv);
    assert_eq!(status, ExitStatus::Code(0));
    let expected = ["--"]
        .iter()
        .chain(&strange)
        .fold(String::new(), |mut all, a| {
            write!(all, "{a}\0").unwrap();
            all
        });
    // `printf` takes the first `--` as an end of options, or prints it; both are its business.
    assert!(
        output == expected || format!("--\0{output}") == expected,
        "{output:?}"
    );
    let many: Vec<String> = (0..4000).map(|n| n.to_string()).collect();
    let mut argv = vec!["sh", "-c", "echo $#", "sh"];
    argv.extend(many.iter().map(String::as_str));
    assert_eq!(sandbox.run("ses-many", &argv).1, "4000\n");
}

/// case K2: what can't be started says so, and is no exit code.
pub fn a_start_that_fails_says_why(sandbox: &Sandbox) {
    let missing = sandbox.start("ses-s1", &["no-such-program"]);
    let text = "no such file or directory: no-such-program".to_owned();
    assert_eq!(missing, Did::NotStarted(text));
    let forbidden = sandbox.start("ses-s2", &["/etc"]);
    assert_eq!(
        forbidden,
        Did::NotStarted("permission denied: /etc".to_owned())
    );
    let Do::Start {
        name,
        argv,
        tty,
        env,
        ..
    } = start("ses-s3", &["true"], false)
    else {
        unreachable!()
    };
    let nowhere = sandbox.ask(&Do::Start {
        name,
        argv,
        tty,
        env,
        cwd: "/no/such/dir".to_owned(),
    });
    let text = "working directory: no such file or directory: /no/such/dir".to_owned();
    assert_eq!(nowhere, Did::NotStarted(text));
}

/// case S13, B7: codes 1 to 200 while orphans die; every code is exact.
pub fn two_hundred_codes_are_exact(sandbox: &Sandbox) {
    std::thread::scope(|scope| {
        for part in 0..8_u32 {
            scope.spawn(move || {
                for code in (1..=200_u32).filter(|code| code % 8 == part) {
                    let name = format!("ses-code{code}");
                    let script = format!("(true & true &) ; (sleep 0.01 &) ; exit {code}");
                    sandbox.start(&name, &["sh", "-c", &script]);
                    let expected = ExitStatus::Code(u8::try_from(code).unwrap());
                    assert_eq!(sandbox.wait(&name), expected, "{name}");
                }
            });
        }
    });
}

/// case S1, S4, A4: very short programs; output is whole before the end is known.
pub fn short_programs_lose_nothing(sandbox: &Sandbox, rounds: u32) {
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                for round in (0..rounds).filter(|round| round % 4 == part) {
                    let name = format!("ses-x{round}");
                    let argv = ["sh", "-c", "printf X; exit 3"];
                    let (started, stream) = if round % 2 == 0 {
                        (sandbox.start(&name, &argv), "out")
                    } else {
                        (sandbox.start_tty(&name, &argv), "tty")
                    };
                    assert!(matches!(started, Did::Pid(_)), "{started:?}");
                    assert_eq!(sandbox.wait(&name), ExitStatus::Code(3), "{name}");
                    assert_eq!(sandbox.output(&name, stream), "X", "{name}");
                }
            });
        }
    });
}

/// case S22: the supervisor dies ten times; descriptors, terminals and processes stay.
pub fn ten_kills_of_the_supervisor_change_nothing(sandbox: &Sandbox) {
    for n in 0..5 {
        sandbox.start(&format!("ses-p{n}"), &["cat"]);
        sandbox.start_tty(&format!("ses-t{n}"), &["cat"]);
    }
    let kept = sandbox.kept();
    for _ in 0..10 {
        let before = sandbox.supervisor();
        assert!(sandbox.kill_supervisor());
        // The next one answers, and it is another.
        assert_eq!(sandbox.kept(), kept);
        assert_ne!(sandbox.supervisor(), before);
    }
    for n in 0..5 {
        for kind in ["p", "t"] {
            let name = format!("ses-{kind}{n}");
            sandbox.ask(&Do::Input {
                name: name.clone(),
                data: b"still here\n".to_vec(),
            });
        }
        let name = format!("ses-p{n}");
        sandbox.ask(&Do::CloseInput(name.clone()));
        assert_eq!(sandbox.wait(&name), ExitStatus::Code(0));
        assert_eq!(sandbox.output(&name, "out"), "still here\n");
        let name = format!("ses-t{n}");
        sandbox.ask(&Do::Input {
            name: name.clone(),
            data: vec![4],
        });
        assert_eq!(sandbox.wait(&name), ExitStatus::Code(0));
        assert!(sandbox.output(&name, "tty").contains("still here\r\n"));
    }
}

/// A process ends while no supervisor is there: the keeper's record has its code. case S15
pub fn an_end_without_a_supervisor_is_known(sandbox: &Sandbox) {
    for round in 0..5 {
        let name = format!("ses-e{round}");
        // It ends with its input, and the input ends with the supervisor's copy gone for good.
        sandbox.start(
            &name,
            &["sh", "-c", "echo out; exec sh -c 'sleep 0.05; exit 41'"],
        );
        assert!(sandbox.kill_supervisor());
        assert_eq!(sandbox.wait(&name), ExitStatus::Code(41));
        assert_eq!(sandbox.output(&name, "out"), "out\n");
    }
}

/// The pump is killed at random instants; not one byte is lost, twice, or out of place.
pub fn kills_of_the_pump_lose_no_byte(sandbox: &Sandbox, kills: u32) {
    let lines = 1_200_000;
    let script = format!("seq 1 {lines}; exit 9");
    let slow = format!("seq 1 {lines} | while read -r l; do echo $l; done | head -n 60000; exit 9");
    sandbox.start("ses-pump", &["sh", "-c", &slow]);
    sandbox.start_tty("ses-pumptty", &["sh", "-c", &slow]);
    let done = AtomicBool::new(false);
    let killed = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut killed = 0;
            let mut seed = 0x9e37_79b9_u64;
            while killed < kills || !done.load(Ordering::Relaxed) {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let wait = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 1_000_000 + i64::try_from(seed >> 40).unwrap() % 15_000_000,
                };
                rustix::event::poll(&mut [], Some(&wait)).unwrap();
                killed += u32::from(sandbox.kill_supervisor());
                if killed >= kills {
                    return killed;
                }
            }
            killed
        });
        for round in 0.. {
            let name = format!("ses-flood{round}");
            sandbox.start(&name, &["sh", "-c", &script]);
            assert_eq!(sandbox.wait(&name), ExitStatus::Code(9));
            check_lines(&sandbox.output(&name, "out"), lines, "\n");
            std::fs::remove_file(sandbox.state(&format!("{name}.out"))).unwrap();
            if killer.is_finished() {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        killer.join().unwrap()
    });
    assert!(killed >= kills);
    assert_eq!(sandbox.wait("ses-pump"), ExitStatus::Code(9));
    assert_eq!(sandbox.wait("ses-pumptty"), ExitStatus::Code(9));
    check_lines(&sandbox.output("ses-pump", "out"), 60_000, "\n");
    check_lines(&sandbox.output("ses-pumptty", "tty"), 60_000, "\r\n");
    assert_eq!(sandbox.ask(&Do::Mode), Did::Splices(true));
}

fn check_lines(output: &str, count: usize, end: &str) {
    let mut expected = String::new();
    for line in 1..=count {
        write!(expected, "{line}{end}").unwrap();
    }
    assert!(
        output == expected,
        "{} of {} bytes",
        output.len(),
        expected.len()
    );
}

/// Waits until a process of the agent runs from memory. Root sees that; to its own user it is hidden.
fn runs_from_memory(find: impl Fn() -> Option<u32>) {
    let is_root = rustix::process::geteuid().is_root();
    let end = outlive_agent::sys::boot_clock() + std::time::Duration::from_secs(30);
    loop {
        let link = find().map(|pid| std::fs::read_link(format!("/proc/{pid}/exe")));
        match link {
            Some(Ok(link)) if link.to_str().unwrap().contains("memfd:outlive-agent") => return,
            Some(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                assert!(!is_root);
                return;
            }
            // The one before is on its way out.
            link => assert!(outlive_agent::sys::boot_clock() < end, "{link:?}"),
        }
        std::thread::yield_now();
    }
}

/// The keeper replaces itself, and the supervisor's executable is replaced while its file goes
/// away: the same processes, the same terminals, the right codes. case J4
pub fn keeper_and_supervisor_are_replaced_in_place(sandbox: &Sandbox) {
    let mut pids = Vec::new();
    for n in 0..10 {
        pids.push(sandbox.start(&format!("ses-u{n}"), &["sh", "-c", "read line; exit $line"]));
        sandbox.start_tty(&format!("ses-v{n}"), &["sh", "-c", "read line; exit $line"]);
    }
    let kept = sandbox.kept();
    let keeper = sandbox.launched.keeper_pid;
    assert_eq!(sandbox.ask(&Do::Reexec), Did::Done);
    let Did::Keeper(status) = sandbox.ask(&Do::Keeper) else {
        unreachable!()
    };
    assert_eq!((status.kept, status.reexecs), (kept, 1));

    let new = sandbox.state("new-agent");
    std::fs::copy(std::env::current_exe().unwrap(), &new).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(sandbox.state("")).unwrap());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&new, Some(owner), Some(owner)).unwrap();
    }
    assert_eq!(sandbox.ask(&Do::Upgrade("new-agent".to_owned())), Did::Done);
    std::fs::remove_file(&new).unwrap();
    assert!(sandbox.kept() == kept && sandbox.keeper_lives());
    runs_from_memory(|| sandbox.supervisor());
    assert_eq!(sandbox.ask(&Do::Reexec), Did::Done);
    runs_from_memory(|| Some(keeper));
    assert!(sandbox.kill_supervisor());

    for (n, pid) in pids.iter().enumerate() {
        for kind in ["u", "v"] {
            let name = format!("ses-{kind}{n}");
            let data = format!("{}\n", n + 20).into_bytes();
            if kind == "u" {
                // Starting again answers who is there already.
                assert_eq!(&sandbox.start(&name, &["false"]), pid);
            }
            sandbox.ask(&Do::Input {
                name: name.clone(),
                data,
            });
            assert_eq!(
                sandbox.wait(&name),
                ExitStatus::Code(u8::try_from(n + 20).unwrap())
            );
        }
    }
}

/// case S14, F3: orphans are reaped as they come.
pub fn orphans_leave_no_zombies(sandbox: &Sandbox) {
    let script = "i=0; while [ $i -lt 1000 ]; do (sleep 0.01 &); i=$((i+1)); done; sleep 0.5; \
                  cat /proc/[0-9]*/stat 2>/dev/null | grep -c '(sleep) Z ' || true";
    let (status, output) = sandbox.run("ses-zombies", &["sh", "-c", script]);
    assert_eq!(status, ExitStatus::Code(0));
    let zombies: u32 = output.trim().parse().unwrap();
    assert!(zombies < 5, "{zombies} zombies");
}
