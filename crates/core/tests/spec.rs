//! The table of fields: defaults, what 0 means, and what is refused.
#![expect(clippy::expect_used, reason = "a test's tools")]

use expect_test::{Expect, expect};
use outlive_core::{
    limits,
    receipt::check_input_id,
    spec::{
        Descendants, DesiredState, Io, IoMode, RawSpec, Readiness, ReadinessKind, RestartPolicy,
        RuntimeRecovery, SessionSpec, SpecError, check_idempotency_key,
    },
};

fn raw() -> RawSpec {
    RawSpec {
        command: Some(vec!["cat".to_owned()]),
        ..RawSpec::default()
    }
}

fn valid(change: impl FnOnce(&mut RawSpec)) -> SessionSpec {
    let mut spec = raw();
    change(&mut spec);
    spec.validate().expect("a valid specification")
}

#[track_caller]
fn refused(change: impl FnOnce(&mut RawSpec), expected: &Expect) {
    let mut spec = raw();
    change(&mut spec);
    let error: SpecError = spec.validate().expect_err("refused");
    expected.assert_eq(&error.to_string());
}

#[test]
fn what_is_left_out_has_the_defaults_of_the_contract() {
    let spec = valid(|_| {});
    assert_eq!(
        (spec.name.as_str(), spec.cwd.as_str(), spec.env.len()),
        ("", "", 0)
    );
    assert_eq!(spec.io, Io::Pipes);
    let lifecycle = &spec.lifecycle;
    assert_eq!(lifecycle.desired_state, DesiredState::Running);
    assert_eq!(lifecycle.restart.policy, RestartPolicy::Never);
    assert_eq!(lifecycle.restart.restarts_max, Some(5));
    assert_eq!(lifecycle.restart.window_seconds, 60);
    assert_eq!(lifecycle.restart.backoff_ms_initial, 250);
    assert_eq!(lifecycle.restart.backoff_ms_max, 5000);
    assert_eq!(lifecycle.runtime_recovery, RuntimeRecovery::Restart);
    assert_eq!(
        (lifecycle.idle_timeout(), lifecycle.max_lifetime()),
        (None, None)
    );
    assert_eq!(lifecycle.stop_grace_seconds, 10);
    assert_eq!(lifecycle.descendants, Descendants::Leave);
    assert_eq!(
        spec.readiness,
        Readiness::Process {
            timeout_ms: 30_000,
            delay_ms: 0
        }
    );
    assert_eq!(spec.retention.bytes_max, 67_108_864);
    assert_eq!(spec.retention.age_seconds_max, 86_400);
}

#[test]
fn zero_is_the_default_and_minus_one_no_limit() {
    let zeroed = valid(|spec| {
        let restart = &mut spec.lifecycle.restart;
        restart.max_restarts = Some(0);
        restart.window_seconds = Some(0);
        restart.initial_backoff_ms = Some(0);
        restart.max_backoff_ms = Some(0);
        spec.lifecycle.stop_grace_period_seconds = Some(0);
        spec.lifecycle.idle_timeout_seconds = Some(0);
        spec.readiness.timeout_ms = Some(0);
        spec.event_retention.max_bytes = Some(0);
        spec.event_retention.max_age_seconds = Some(0);
    });
    assert_eq!(zeroed, valid(|_| {}));
    let unlimited = valid(|spec| spec.lifecycle.restart.max_restarts = Some(-1));
    assert_eq!(unlimited.lifecycle.restart.restarts_max, None);
}

#[test]
fn a_terminal_has_a_size_and_pipes_have_none() {
    let pty = valid(|spec| {
        spec.io.mode = Some(IoMode::Pty);
        spec.io.terminal.rows = Some(0);
        spec.io.terminal.cols = Some(65_535);
        spec.io.terminal.term = Some(String::new());
    });
    let Io::Pty(terminal) = pty.io else {
        panic!("a terminal was asked for")
    };
    assert_eq!((terminal.rows, terminal.cols), (24, 65_535));
    assert_eq!(terminal.term, "xterm-256color");
    let pipes = valid(|spec| spec.io.terminal.rows = Some(50));
    assert_eq!(pipes.digest(), valid(|_| {}).digest());
}

#[test]
fn a_name_is_trimmed_and_a_command_is_not() {
    let spec = valid(|spec| {
        spec.name = Some("  build ".to_owned());
        spec.command = Some(vec!["cat".to_owned(), "  ".to_owned(), String::new()]);
    });
    assert_eq!(spec.name, "build");
    assert_eq!(spec.command, ["cat", "  ", ""]);
}

#[test]
fn commands_are_checked() {
    refused(
        |spec| spec.command = None,
        &expect![["command is required"]],
    );
    refused(
        |spec| spec.command = Some(vec![]),
        &expect![["command is required"]],
    );
    refused(
        |spec| spec.command = Some(vec![" \t".to_owned()]),
        &expect!["command must not be blank"],
    );
    refused(
        |spec| spec.command = Some(vec!["a\0b".to_owned()]),
        &expect!["command must not contain a NUL character"],
    );
    refused(
        |spec| spec.command = Some(vec!["a".to_owned(); limits::COMMAND_ELEMENTS_MAX + 1]),
        &expect!["command is longer than 4096 elements"],
    );
    valid(|spec| spec.command = Some(vec!["a".to_owned(); limits::COMMAND_ELEMENTS_MAX]));
}

#[test]
fn command_and_environment_share_a_limit() {
    let with = |argument: usize, value: usize| {
        let mut spec = raw();
        spec.command = Some(vec!["c".to_owned(), "a".repeat(argument)]);
        spec.env = Some([("K".to_owned(), "v".repeat(value))].into());
        spec.validate()
    };
    // "c", the argument, "K=" and the value, each with its NUL.
    let room = limits::COMMAND_ENV_BYTES_MAX - 2 - 1 - 3;
    assert_eq!(with(room, 0).map(|spec| spec.command.len()), Ok(2));
    assert_eq!(
        with(room / 2, room - room / 2).map(|spec| spec.env.len()),
        Ok(1)
    );
    let error = with(room / 2, room - room / 2 + 1).expect_err("refused");
    expect!["command is longer than 1048576 bytes together with env"].assert_eq(&error.to_string());
}

#[test]
fn environments_are_checked() {
    let with = |key: &'static str, value: &'static str| {
        move |spec: &mut RawSpec| spec.env = Some([(key.to_owned(), value.to_owned())].into())
    };
    refused(with("", "x"), &expect!["env must not have an empty name"]);
    refused(
        with("A=B", "x"),
        &expect!["env must not have a name that contains '='"],
    );
    refused(
        with("A\0", "x"),
        &expect!["env must not contain a NUL character"],
    );
    refused(
        with("A", "\0"),
        &expect!["env must not contain a NUL character"],
    );
    assert_eq!(valid(with("A", "b=c")).env["A"], "b=c");
}

#[test]
fn texts_are_bounded() {
    let name = limits::NAME_CHARS_MAX;
    valid(|spec| spec.name = Some("ü".repeat(name)));
    refused(
        |spec| spec.name = Some("ü".repeat(name + 1)),
        &expect!["name is longer than 128 characters"],
    );
    refused(
        |spec| spec.name = Some("a\0".to_owned()),
        &expect!["name must not contain a NUL character"],
    );
    refused(
        |spec| spec.cwd = Some("a\0".to_owned()),
        &expect!["cwd must not contain a NUL character"],
    );
    refused(
        |spec| spec.cwd = Some("a".repeat(4096)),
        &expect!["cwd is longer than 4095 bytes"],
    );
    refused(
        |spec| spec.io.terminal.term = Some("a".repeat(129)),
        &expect!["io.terminal.term is longer than 128 bytes"],
    );
    refused(
        |spec| spec.io.terminal.term = Some("\0".to_owned()),
        &expect!["io.terminal.term must not contain a NUL character"],
    );
}

#[test]
fn numbers_are_bounded() {
    refused(
        |spec| spec.io.terminal.rows = Some(65_536),
        &expect!["io.terminal.rows must be between 0 and 65535"],
    );
    refused(
        |spec| spec.io.terminal.cols = Some(-1),
        &expect!["io.terminal.cols must be between 0 and 65535"],
    );
    refused(
        |spec| spec.lifecycle.restart.max_restarts = Some(-2),
        &expect!["lifecycle.restart.max_restarts must be between -1 and 2147483647"],
    );
    refused(
        |spec| spec.lifecycle.restart.max_restarts = Some(1 << 31),
        &expect!["lifecycle.restart.max_restarts must be between -1 and 2147483647"],
    );
    refused(
        |spec| spec.lifecycle.restart.window_seconds = Some(-1),
        &expect!["lifecycle.restart.window_seconds must be between 0 and 2147483647"],
    );
    refused(
        |spec| spec.lifecycle.restart.initial_backoff_ms = Some(i64::MAX),
        &expect!["lifecycle.restart.initial_backoff_ms must be between 0 and 2147483647"],
    );
    refused(
        |spec| spec.lifecycle.restart.max_backoff_ms = Some(i64::MIN),
        &expect!["lifecycle.restart.max_backoff_ms must be between 0 and 2147483647"],
    );
    refused(
        |spec| spec.lifecycle.restart.max_backoff_ms = Some(249),
        &expect!["lifecycle.restart.max_backoff_ms must not be less than initial_backoff_ms"],
    );
    refused(
        |spec| spec.lifecycle.restart.initial_backoff_ms = Some(5001),
        &expect!["lifecycle.restart.max_backoff_ms must not be less than initial_backoff_ms"],
    );
    refused(
        |spec| spec.lifecycle.idle_timeout_seconds = Some(-1),
        &expect!["lifecycle.idle_timeout_seconds must be between 0 and 9223372036854775807"],
    );
    refused(
        |spec| spec.lifecycle.max_lifetime_seconds = Some(-1),
        &expect!["lifecycle.max_lifetime_seconds must be between 0 and 9223372036854775807"],
    );
    refused(
        |spec| spec.lifecycle.stop_grace_period_seconds = Some(-1),
        &expect!["lifecycle.stop_grace_period_seconds must be between 0 and 2147483647"],
    );
    refused(
        |spec| spec.readiness.delay_ms = Some(-1),
        &expect!["readiness.delay_ms must be between 0 and 2147483647"],
    );
    refused(
        |spec| spec.readiness.timeout_ms = Some(1 << 31),
        &expect!["readiness.timeout_ms must be between 0 and 2147483647"],
    );
    refused(
        |spec| spec.event_retention.max_bytes = Some(-1),
        &expect!["event_retention.max_bytes must be between 0 and 9223372036854775807"],
    );
    refused(
        |spec| spec.event_retention.max_age_seconds = Some(-1),
        &expect!["event_retention.max_age_seconds must be between 0 and 9223372036854775807"],
    );
    let longest = valid(|spec| spec.lifecycle.idle_timeout_seconds = Some(i64::MAX));
    assert!(longest.lifecycle.idle_timeout().is_some());
}

#[test]
fn readiness_by_output_needs_output() {
    let output = |text: &str| {
        let text = text.to_owned();
        move |spec: &mut RawSpec| {
            spec.readiness.kind = Some(ReadinessKind::Output);
            spec.readiness.output = Some(text);
        }
    };
    refused(output(""), &expect!["readiness.output is required"]);
    refused(
        output(&"a".repeat(limits::READINESS_OUTPUT_BYTES_MAX + 1)),
        &expect!["readiness.output is longer than 65536 bytes"],
    );
    valid(output(&"a".repeat(limits::READINESS_OUTPUT_BYTES_MAX)));
    let spec = valid(output(" READY\n"));
    let Readiness::Output { needle, .. } = spec.readiness else {
        panic!("output was asked for")
    };
    assert_eq!(needle, b" READY\n");
}

#[test]
fn keys_and_ids_are_trimmed_and_bounded() {
    assert_eq!(check_idempotency_key("  "), Ok(None));
    assert_eq!(check_idempotency_key(" k "), Ok(Some("k".to_owned())));
    let error = check_idempotency_key(&"k".repeat(256)).expect_err("refused");
    expect!["Idempotency-Key is longer than 255 characters"].assert_eq(&error.to_string());
    assert_eq!(check_input_id(" i "), Ok("i".to_owned()));
    expect!["input_id is required"]
        .assert_eq(&check_input_id(" ").expect_err("refused").to_string());
    expect!["input_id is longer than 128 characters"].assert_eq(
        &check_input_id(&"i".repeat(129))
            .expect_err("refused")
            .to_string(),
    );
}

#[test]
fn a_digest_is_the_same_for_ever_and_for_the_same_specification_only() {
    let digest = valid(|spec| spec.name = Some("build".to_owned())).digest();
    expect!["e3f02519c7472c2679c116cefb596e36"].assert_eq(&format!("{:032x}", digest.as_u128()));
    // What was left out and what was said aloud is the same.
    let aloud = valid(|spec| {
        spec.name = Some(" build ".to_owned());
        spec.lifecycle.restart.max_restarts = Some(5);
        spec.io.mode = Some(IoMode::Pipes);
    });
    assert_eq!(aloud.digest(), digest);
    let other = valid(|spec| {
        spec.name = Some("build".to_owned());
        spec.lifecycle.restart.max_restarts = Some(6);
    });
    assert_ne!(other.digest(), digest);
}
