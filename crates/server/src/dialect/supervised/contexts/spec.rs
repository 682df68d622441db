//! From a request to the session that a context is.

use std::collections::BTreeMap;

use outlive_api::{
    context::{
        CreateContextRequest, CreateReplContextRequest, ProcessType, PtySize, ReplConfig,
        ReplReadyMode,
    },
    error::ApiError,
};
use outlive_core::{
    event::{Created, Kind},
    spec::{
        IoMode, RawIo, RawLifecycle, RawReadiness, RawSpec, RawTerminal, ReadinessKind,
        RuntimeRecovery,
    },
};

use super::{
    interpreter::{self, Interpreter},
    marker::READY,
};
use crate::limits::INTERPRETER_START_MS_MAX;

/// What to make, and what to do then.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) created: Created,
    /// The interpreter's first chunk.
    pub(super) input: Option<String>,
    /// Whether the answer waits for the end.
    pub(super) wait: Wait,
}

/// Whether an answer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Until it is done.
    UntilDone,
    /// Until it runs.
    No,
}

/// Plans a context.
pub(super) fn plan(request: CreateContextRequest) -> Result<Plan, ApiError> {
    for (name, seconds) in [
        ("idle_timeout_sec", request.idle_timeout_sec),
        ("ttl_sec", request.ttl_sec),
    ] {
        if seconds.is_some_and(|seconds| seconds < 0) {
            return Err(ApiError::invalid(format!("{name} must not be negative")));
        }
    }
    let wait = match request.wait_until_done {
        Some(true) => Wait::UntilDone,
        Some(false) | None => Wait::No,
    };
    let mut raw = RawSpec {
        cwd: request.cwd.clone(),
        env: request.env_vars.clone(),
        io: streams(request.pty_size.as_ref()),
        lifecycle: RawLifecycle {
            idle_timeout_seconds: request.idle_timeout_sec,
            max_lifetime_seconds: request.ttl_sec,
            stop_grace_period_seconds: Some(1),
            ..RawLifecycle::default()
        },
        ..RawSpec::default()
    };
    let (kind, input) = match kind(&request)? {
        ProcessType::Cmd => {
            let cmd = request.cmd.unwrap_or_default();
            raw.command = Some(cmd.command);
            // A command that was half done is not done again by itself.
            raw.lifecycle.runtime_recovery = Some(RuntimeRecovery::Stop);
            (Kind::Command, None)
        }
        ProcessType::Repl => {
            raw.lifecycle.runtime_recovery = Some(RuntimeRecovery::Restart);
            let mut repl = request.repl.unwrap_or_default();
            let input = repl.input.take().filter(|input| !input.is_empty());
            (interpreter(repl, &mut raw)?, input)
        }
    };
    Ok(Plan {
        created: Created {
            spec: raw.validate().map_err(ApiError::from)?,
            idempotency_key: None,
            handle: None,
            kind: Some(kind),
        },
        input,
        wait,
    })
}

fn kind(request: &CreateContextRequest) -> Result<ProcessType, ApiError> {
    match (request.kind, &request.cmd, &request.repl) {
        (Some(ProcessType::Cmd), _, Some(_)) => {
            Err(ApiError::invalid("repl is only valid for repl contexts"))
        }
        (Some(ProcessType::Repl), Some(_), _) => {
            Err(ApiError::invalid("cmd is only valid for cmd contexts"))
        }
        (None, Some(_), Some(_)) => Err(ApiError::invalid("give either cmd or repl")),
        (Some(ProcessType::Cmd), None, None) => Err(ApiError::invalid("cmd.command is required")),
        (Some(kind), _, _) => Ok(kind),
        (None, Some(_), None) => Ok(ProcessType::Cmd),
        (None, None, Some(_)) => Ok(ProcessType::Repl),
        (None, None, None) => Err(ApiError::invalid("type must be cmd or repl")),
    }
}

fn streams(size: Option<&PtySize>) -> RawIo {
    let Some(size) = size else {
        return RawIo::default();
    };
    RawIo {
        mode: Some(IoMode::Pty),
        terminal: RawTerminal {
            rows: size.rows,
            cols: size.cols,
            term: None,
        },
    }
}

fn interpreter(repl: CreateReplContextRequest, raw: &mut RawSpec) -> Result<Kind, ApiError> {
    let alias = repl.alias.as_deref().map(str::trim).unwrap_or_default();
    if let Some(config) = repl.repl_config {
        return foreign(alias, config, raw);
    }
    let alias = if alias.is_empty() { "python" } else { alias };
    let known = Interpreter::of(alias).ok_or_else(|| {
        ApiError::invalid(format!(
            "no interpreter is known as {alias:?}; known are {}, any other needs repl_config",
            Interpreter::ALIASES
        ))
    })?;
    raw.command = Some(known.command());
    raw.readiness = RawReadiness {
        kind: Some(ReadinessKind::Output),
        output: Some(READY.to_owned()),
        timeout_ms: Some(INTERPRETER_START_MS_MAX),
        delay_ms: None,
    };
    Ok(Kind::Interpreter {
        alias: alias.to_owned(),
        prompt: None,
    })
}

/// An interpreter that is known by its program and its prompt; programs prompt on a terminal.
fn foreign(alias: &str, config: ReplConfig, raw: &mut RawSpec) -> Result<Kind, ApiError> {
    let name = config.name.trim();
    if name.is_empty() {
        return Err(ApiError::invalid("repl.repl_config.name is required"));
    }
    if !alias.is_empty() && alias != name {
        return Err(ApiError::invalid(
            "repl.alias must match repl.repl_config.name",
        ));
    }
    let candidates: Vec<(&str, &[String])> = config
        .candidates
        .iter()
        .map(|candidate| {
            let arguments = candidate.args.as_deref().unwrap_or_default();
            (candidate.name.trim(), arguments)
        })
        .collect();
    if candidates.is_empty() || candidates.iter().any(|(program, _)| program.is_empty()) {
        return Err(ApiError::invalid(
            "repl.repl_config.candidates must name a program each",
        ));
    }
    raw.command = Some(interpreter::foreign(&candidates));
    raw.io.mode = Some(IoMode::Pty);
    raw.io.terminal.term = config.default_term.filter(|term| !term.is_empty());
    let given = raw.env.clone().unwrap_or_default();
    let env = raw.env.get_or_insert_default();
    for variable in config.env.unwrap_or_default() {
        let value = match (variable.value, variable.value_from) {
            (Some(value), _) => value,
            (None, Some(from)) => given.get(&from).cloned().unwrap_or_default(),
            (None, None) => String::new(),
        };
        add(env, variable.name, value);
    }
    let ready = config.ready.unwrap_or_default();
    let custom = config.prompt.and_then(|prompt| prompt.custom_prompt);
    let token = ready.token.or(custom).filter(|token| !token.is_empty());
    let prompt = match (ready.mode, token) {
        (Some(ReplReadyMode::StartupDelay), _) | (None, None) => None,
        (Some(ReplReadyMode::PromptToken), None) => {
            return Err(ApiError::invalid(
                "repl.repl_config.ready.token is required for prompt_token",
            ));
        }
        (Some(ReplReadyMode::PromptToken) | None, Some(token)) => Some(token),
    };
    raw.readiness = match &prompt {
        Some(token) => RawReadiness {
            kind: Some(ReadinessKind::Output),
            output: Some(token.clone()),
            timeout_ms: Some(INTERPRETER_START_MS_MAX),
            delay_ms: None,
        },
        None => match ready.startup_delay_ms.filter(|delay| *delay != 0) {
            Some(delay) => RawReadiness {
                kind: Some(ReadinessKind::Delay),
                output: None,
                timeout_ms: Some(INTERPRETER_START_MS_MAX),
                delay_ms: Some(delay),
            },
            None => RawReadiness::default(),
        },
    };
    Ok(Kind::Interpreter {
        alias: name.to_owned(),
        prompt: Some(prompt.unwrap_or_default()),
    })
}

/// What the request says of a variable wins over the interpreter's own.
fn add(env: &mut BTreeMap<String, String>, name: String, value: String) {
    env.entry(name).or_insert(value);
}
