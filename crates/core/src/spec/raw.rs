//! What a caller asks for, and the one way from there to a [`SessionSpec`].

use std::collections::BTreeMap;

use super::{
    Descendants, DesiredState, Io, Lifecycle, Readiness, Restart, RestartPolicy, Retention,
    RuntimeRecovery, SessionSpec, Terminal, User,
};
use crate::limits;

/// A specification as it was asked for: every field may be missing, numbers may be anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawSpec {
    /// `name`.
    pub name: Option<String>,
    /// `command`.
    pub command: Option<Vec<String>>,
    /// `cwd`.
    pub cwd: Option<String>,
    /// `env`.
    pub env: Option<BTreeMap<String, String>>,
    /// `io`.
    pub io: RawIo,
    /// `lifecycle`.
    pub lifecycle: RawLifecycle,
    /// `readiness`.
    pub readiness: RawReadiness,
    /// `event_retention`.
    pub event_retention: RawRetention,
    /// `user`.
    pub user: Option<String>,
}

/// How the streams are connected; `pipes` when missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoMode {
    /// Three pipes.
    Pipes,
    /// One pseudo terminal.
    Pty,
}

/// When an attempt counts as ready; `process` when missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReadinessKind {
    /// As soon as the process runs.
    Process,
    /// When it has lived for a while.
    Delay,
    /// When it has written something.
    Output,
}

/// `io`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawIo {
    /// `io.mode`.
    pub mode: Option<IoMode>,
    /// `io.terminal`.
    pub terminal: RawTerminal,
}

/// `io.terminal`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawTerminal {
    /// `io.terminal.rows`.
    pub rows: Option<i64>,
    /// `io.terminal.cols`.
    pub cols: Option<i64>,
    /// `io.terminal.term`.
    pub term: Option<String>,
}

/// `lifecycle`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawLifecycle {
    /// `lifecycle.desired_state`.
    pub desired_state: Option<DesiredState>,
    /// `lifecycle.restart`.
    pub restart: RawRestart,
    /// `lifecycle.runtime_recovery`.
    pub runtime_recovery: Option<RuntimeRecovery>,
    /// `lifecycle.idle_timeout_seconds`.
    pub idle_timeout_seconds: Option<i64>,
    /// `lifecycle.max_lifetime_seconds`.
    pub max_lifetime_seconds: Option<i64>,
    /// `lifecycle.stop_grace_period_seconds`.
    pub stop_grace_period_seconds: Option<i64>,
    /// `lifecycle.descendants`.
    pub descendants: Option<Descendants>,
}

/// `lifecycle.restart`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRestart {
    /// `lifecycle.restart.policy`.
    pub policy: Option<RestartPolicy>,
    /// `lifecycle.restart.max_restarts`: -1 is no limit.
    pub max_restarts: Option<i64>,
    /// `lifecycle.restart.window_seconds`.
    pub window_seconds: Option<i64>,
    /// `lifecycle.restart.initial_backoff_ms`.
    pub initial_backoff_ms: Option<i64>,
    /// `lifecycle.restart.max_backoff_ms`.
    pub max_backoff_ms: Option<i64>,
}

/// `readiness`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawReadiness {
    /// `readiness.type`.
    pub kind: Option<ReadinessKind>,
    /// `readiness.delay_ms`.
    pub delay_ms: Option<i64>,
    /// `readiness.output`.
    pub output: Option<String>,
    /// `readiness.timeout_ms`.
    pub timeout_ms: Option<i64>,
}

/// `event_retention`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRetention {
    /// `event_retention.max_bytes`.
    pub max_bytes: Option<i64>,
    /// `event_retention.max_age_seconds`.
    pub max_age_seconds: Option<i64>,
}

/// A field that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct SpecError {
    /// Its path, as in `lifecycle.restart.max_restarts`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: SpecProblem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecProblem {
    /// It is needed.
    #[error("is required")]
    Missing,
    /// It holds nothing but white space.
    #[error("must not be blank")]
    Blank,
    /// It is too long.
    #[error("is longer than {max} {unit}")]
    TooLong {
        /// The most it may have.
        max: usize,
        /// Of what.
        unit: &'static str,
    },
    /// It is too small or too large.
    #[error("must be between {min} and {max}")]
    OutOfRange {
        /// The smallest value.
        min: i64,
        /// The largest value.
        max: i64,
    },
    /// It holds a NUL byte, which no process can be given.
    #[error("must not contain a NUL character")]
    Nul,
    /// A variable without a name.
    #[error("must not have an empty name")]
    EmptyName,
    /// A variable whose name holds an equals sign.
    #[error("must not have a name that contains '='")]
    EqualsInName,
    /// It names no user.
    #[error("must be uid, uid:gid, or names; numbers are below 65536")]
    NoUser,
    /// The longest delay is shorter than the first.
    #[error("must not be less than initial_backoff_ms")]
    BelowInitial,
}

const INT32: i64 = i32::MAX as i64;

fn fault<T>(field: &'static str, problem: SpecProblem) -> Result<T, SpecError> {
    Err(SpecError { field, problem })
}

/// Checks an idempotency key: trimmed, it has 1 to 255 characters; empty means none.
pub fn check_idempotency_key(key: &str) -> Result<Option<String>, SpecError> {
    let key = key.trim();
    if key.chars().count() > limits::IDEMPOTENCY_KEY_CHARS_MAX {
        let max = limits::IDEMPOTENCY_KEY_CHARS_MAX;
        return fault(
            "Idempotency-Key",
            SpecProblem::TooLong {
                max,
                unit: "characters",
            },
        );
    }
    Ok((!key.is_empty()).then(|| key.to_owned()))
}

impl RawSpec {
    /// Checks every field, fills the defaults and drops what has no meaning.
    pub fn validate(self) -> Result<SessionSpec, SpecError> {
        let name = self.name.unwrap_or_default().trim().to_owned();
        if name.chars().count() > limits::NAME_CHARS_MAX {
            let max = limits::NAME_CHARS_MAX;
            return fault(
                "name",
                SpecProblem::TooLong {
                    max,
                    unit: "characters",
                },
            );
        }
        no_nul("name", &name)?;
        let cwd = self.cwd.unwrap_or_default();
        no_nul("cwd", &cwd)?;
        at_most("cwd", &cwd, limits::CWD_BYTES_MAX)?;
        let env = self.env.unwrap_or_default();
        let command = checked_command(self.command, &env)?;
        Ok(SessionSpec {
            name,
            command,
            cwd,
            env,
            io: self.io.validate()?,
            lifecycle: self.lifecycle.validate()?,
            readiness: self.readiness.validate()?,
            retention: self.event_retention.validate()?,
            user: checked_user(self.user)?,
        })
    }
}

fn checked_user(user: Option<String>) -> Result<Option<User>, SpecError> {
    match user.map(|text| User::parse(&text)).transpose() {
        Ok(user) => Ok(user),
        Err(problem) => fault("user", problem),
    }
}

fn checked_command(
    command: Option<Vec<String>>,
    env: &BTreeMap<String, String>,
) -> Result<Vec<String>, SpecError> {
    let command = command.unwrap_or_default();
    let Some(program) = command.first() else {
        return fault("command", SpecProblem::Missing);
    };
    if program.trim().is_empty() {
        return fault("command", SpecProblem::Blank);
    }
    if command.len() > limits::COMMAND_ELEMENTS_MAX {
        let max = limits::COMMAND_ELEMENTS_MAX;
        return fault(
            "command",
            SpecProblem::TooLong {
                max,
                unit: "elements",
            },
        );
    }
    for element in &command {
        no_nul("command", element)?;
    }
    for (key, value) in env {
        if key.is_empty() {
            return fault("env", SpecProblem::EmptyName);
        }
        if key.contains('=') {
            return fault("env", SpecProblem::EqualsInName);
        }
        no_nul("env", key)?;
        no_nul("env", value)?;
    }
    // As the kernel counts: each string with its NUL, `=` included.
    let argv_bytes: usize = command.iter().map(|element| element.len() + 1).sum();
    let env_bytes: usize = env
        .iter()
        .map(|(key, value)| key.len() + value.len() + 2)
        .sum();
    if argv_bytes + env_bytes > limits::COMMAND_ENV_BYTES_MAX {
        let max = limits::COMMAND_ENV_BYTES_MAX;
        return fault(
            "command",
            SpecProblem::TooLong {
                max,
                unit: "bytes together with env",
            },
        );
    }
    Ok(command)
}

impl RawIo {
    fn validate(self) -> Result<Io, SpecError> {
        // A terminal is checked even where it is dropped: a wrong number is wrong anywhere.
        let terminal = self.terminal.validate()?;
        Ok(match self.mode.unwrap_or(IoMode::Pipes) {
            IoMode::Pipes => Io::Pipes,
            IoMode::Pty => Io::Pty(terminal),
        })
    }
}

impl RawTerminal {
    fn validate(self) -> Result<Terminal, SpecError> {
        let size = |field, value, default: u16| {
            let value = within(field, value, 0, i64::from(u16::MAX), i64::from(default))?;
            Ok(u16::try_from(value).unwrap_or(default))
        };
        let term = self.term.filter(|term| !term.is_empty());
        let term = term.unwrap_or_else(|| limits::TERM_DEFAULT.to_owned());
        no_nul("io.terminal.term", &term)?;
        at_most("io.terminal.term", &term, limits::TERM_BYTES_MAX)?;
        Ok(Terminal {
            rows: size("io.terminal.rows", self.rows, limits::ROWS_DEFAULT)?,
            cols: size("io.terminal.cols", self.cols, limits::COLS_DEFAULT)?,
            term,
        })
    }
}

impl RawLifecycle {
    fn validate(self) -> Result<Lifecycle, SpecError> {
        Ok(Lifecycle {
            desired_state: self.desired_state.unwrap_or(DesiredState::Running),
            restart: self.restart.validate()?,
            runtime_recovery: self.runtime_recovery.unwrap_or(RuntimeRecovery::Restart),
            idle_timeout_seconds: int64(
                "lifecycle.idle_timeout_seconds",
                self.idle_timeout_seconds,
                0,
            )?,
            max_lifetime_seconds: int64(
                "lifecycle.max_lifetime_seconds",
                self.max_lifetime_seconds,
                0,
            )?,
            stop_grace_seconds: int32(
                "lifecycle.stop_grace_period_seconds",
                self.stop_grace_period_seconds,
                limits::STOP_GRACE_SECONDS_DEFAULT,
            )?,
            descendants: self.descendants.unwrap_or(Descendants::Leave),
        })
    }
}

impl RawRestart {
    fn validate(self) -> Result<Restart, SpecError> {
        let default = i64::from(limits::RESTARTS_DEFAULT);
        let max = within(
            "lifecycle.restart.max_restarts",
            self.max_restarts,
            -1,
            INT32,
            default,
        )?;
        let restart = Restart {
            policy: self.policy.unwrap_or(RestartPolicy::Never),
            // -1, the only negative that passes, is no limit.
            restarts_max: u32::try_from(max).ok(),
            window_seconds: int32(
                "lifecycle.restart.window_seconds",
                self.window_seconds,
                limits::WINDOW_SECONDS_DEFAULT,
            )?,
            backoff_ms_initial: int32(
                "lifecycle.restart.initial_backoff_ms",
                self.initial_backoff_ms,
                limits::BACKOFF_MS_INITIAL_DEFAULT,
            )?,
            backoff_ms_max: int32(
                "lifecycle.restart.max_backoff_ms",
                self.max_backoff_ms,
                limits::BACKOFF_MS_MAX_DEFAULT,
            )?,
        };
        if restart.backoff_ms_max < restart.backoff_ms_initial {
            return fault(
                "lifecycle.restart.max_backoff_ms",
                SpecProblem::BelowInitial,
            );
        }
        Ok(restart)
    }
}

impl RawReadiness {
    fn validate(self) -> Result<Readiness, SpecError> {
        let delay_ms = int32("readiness.delay_ms", self.delay_ms, 0)?;
        let timeout_ms = int32(
            "readiness.timeout_ms",
            self.timeout_ms,
            limits::READINESS_TIMEOUT_MS_DEFAULT,
        )?;
        let output = self.output.unwrap_or_default();
        at_most(
            "readiness.output",
            &output,
            limits::READINESS_OUTPUT_BYTES_MAX,
        )?;
        Ok(match self.kind.unwrap_or(ReadinessKind::Process) {
            ReadinessKind::Process => Readiness::Process {
                timeout_ms,
                delay_ms,
            },
            ReadinessKind::Delay => Readiness::Delay {
                delay_ms,
                timeout_ms,
            },
            ReadinessKind::Output if output.is_empty() => {
                return fault("readiness.output", SpecProblem::Missing);
            }
            ReadinessKind::Output => Readiness::Output {
                needle: output.into_bytes(),
                timeout_ms,
                delay_ms,
            },
        })
    }
}

impl RawRetention {
    fn validate(self) -> Result<Retention, SpecError> {
        Ok(Retention {
            bytes_max: int64(
                "event_retention.max_bytes",
                self.max_bytes,
                limits::RETENTION_BYTES_DEFAULT,
            )?,
            age_seconds_max: int64(
                "event_retention.max_age_seconds",
                self.max_age_seconds,
                limits::RETENTION_AGE_SECONDS_DEFAULT,
            )?,
        })
    }
}

/// A number in a range; missing and 0 become the default.
fn within(
    field: &'static str,
    value: Option<i64>,
    min: i64,
    max: i64,
    default: i64,
) -> Result<i64, SpecError> {
    match value {
        None | Some(0) => Ok(default),
        Some(value) if (min..=max).contains(&value) => Ok(value),
        Some(_) => fault(field, SpecProblem::OutOfRange { min, max }),
    }
}

fn int32(field: &'static str, value: Option<i64>, default: u32) -> Result<u32, SpecError> {
    let value = within(field, value, 0, INT32, i64::from(default))?;
    Ok(u32::try_from(value).unwrap_or(default))
}

fn int64(field: &'static str, value: Option<i64>, default: u64) -> Result<u64, SpecError> {
    let signed = i64::try_from(default).unwrap_or(i64::MAX);
    let value = within(field, value, 0, i64::MAX, signed)?;
    Ok(u64::try_from(value).unwrap_or(default))
}

fn no_nul(field: &'static str, text: &str) -> Result<(), SpecError> {
    if text.contains('\0') {
        fault(field, SpecProblem::Nul)
    } else {
        Ok(())
    }
}

fn at_most(field: &'static str, text: &str, max: usize) -> Result<(), SpecError> {
    if text.len() > max {
        fault(field, SpecProblem::TooLong { max, unit: "bytes" })
    } else {
        Ok(())
    }
}
