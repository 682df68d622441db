//! A session as the context that it is.

use outlive_api::{
    context::{Context, ContextOutput, ProcessType},
    event::EndFacts,
    time,
};
use outlive_core::{
    event::{AttemptEnd, Kind},
    session::{Phase, Session},
    spec::Io,
};

/// The context, with the end of its process and without its output; none when it is no context.
pub(super) fn show(session: &Session) -> Option<Context> {
    let id = session.id().context()?;
    let spec = session.spec();
    let (kind, alias, command) = match session.kind()? {
        Kind::Command => (ProcessType::Cmd, None, Some(spec.command.clone())),
        Kind::Interpreter { alias, .. } => (ProcessType::Repl, Some(alias.clone()), None),
    };
    let phase = session.phase();
    let end = session.attempt().and_then(|attempt| attempt.end.as_ref());
    let mut output = ContextOutput::default();
    if let Some(end) = end {
        finish(&mut output, end);
    }
    Some(Context {
        id: id.to_owned(),
        kind,
        alias,
        command,
        cwd: spec.cwd.clone(),
        env_vars: spec.env.clone(),
        running: session.live_attempt().is_some() && phase != Phase::Paused,
        paused: matches!(phase, Phase::Paused | Phase::Suspended),
        created_at: time::text(session.created_at()),
        output,
    })
}

/// Says how the process ended.
pub(super) fn finish(output: &mut ContextOutput, end: &AttemptEnd) {
    let facts = EndFacts::from(end);
    output.exit_code = facts.exit_code;
    output.state = Some(end.reason().to_owned());
    output.signal = facts.signal.map(std::borrow::Cow::into_owned);
}

/// Whether it runs on a terminal.
pub(super) fn has_terminal(session: &Session) -> bool {
    matches!(session.spec().io, Io::Pty(_))
}
