//! What must hold: in every state, of every event, of every passage, after every torn batch.

use outlive_core::{
    event::{AttemptEnd, Body, Event},
    session::{Decision, Effect, Input, Phase, Session},
    spec::DesiredState,
    time::Timestamp,
};

use super::{Node, Process, stamped};

/// What holds in every state.
pub(super) fn check_node(node: &Node) {
    let session = &node.session;
    let lives = node.process != Process::None;
    assert_eq!(
        session.live_attempt().is_some(),
        lives,
        "the session knows its process"
    );
    assert_eq!(
        Session::restore(&session.checkpoint()).as_ref(),
        Ok(session)
    );

    let numbers: Vec<u32> = session
        .attempts()
        .iter()
        .map(|attempt| attempt.number)
        .collect();
    assert!(
        numbers.is_sorted_by(|a, b| a + 1 == *b),
        "attempts count up: {numbers:?}"
    );
    let ended = session
        .attempts()
        .iter()
        .filter(|attempt| attempt.end.is_some())
        .count();
    assert_eq!(
        ended + usize::from(lives),
        numbers.len(),
        "every other attempt has its end"
    );

    let stopped = session.spec().lifecycle.desired_state == DesiredState::Stopped;
    if stopped {
        assert!(
            matches!(session.phase(), Phase::Stopping | Phase::Stopped)
                || (session.is_frozen() && lives),
            "a stop is obeyed, not {:?}",
            session.phase()
        );
    }
    if session.is_frozen() {
        assert_eq!(
            session.next_deadline(),
            None,
            "a frozen clock rings no bell"
        );
    }
    if session.is_deleted() {
        assert_eq!((session.next_deadline(), lives), (None, false));
    }
    let respawns = session
        .unfinished()
        .iter()
        .any(|e| matches!(e, Effect::Spawn { .. }));
    assert!(
        !respawns || node.process == Process::BeingStarted,
        "no second process at takeover"
    );
    check_early_deadline(node);
}

/// A deadline that is told too early means nothing.
fn check_early_deadline(node: &Node) {
    let Some(due) = node.session.next_deadline() else {
        let never = node.session.decide(node.now, &Input::DeadlinePassed);
        assert_eq!(never, Ok(Decision::none()));
        return;
    };
    let early = Timestamp::from_unix_nanos(due.unix_nanos() - 1);
    assert_eq!(
        node.session.decide(early, &Input::DeadlinePassed),
        Ok(Decision::none())
    );
}

/// A batch that was torn here: the machine goes on by itself, and a new runtime recovers it.
pub(super) fn check_torn(torn: &Node) {
    let mut node = torn.clone();
    assert_eq!(
        Session::restore(&node.session.checkpoint()).as_ref(),
        Ok(&node.session)
    );
    if node.session.live_attempt().is_none() && !node.session.is_frozen() {
        let at_once = |node: &Node| {
            node.session
                .next_deadline()
                .is_some_and(|due| due <= node.now)
        };
        for _ in 0..3 {
            if !at_once(&node) {
                break;
            }
            let input = Input::DeadlinePassed;
            let decision = node
                .session
                .decide(node.now, &input)
                .expect("never refused");
            for event in stamped(&node.session, node.now, &decision) {
                node.session.apply(&event);
            }
        }
        assert!(!at_once(&node), "what was owed is paid");
    }
    let mut lost = torn.session.clone();
    let generation = lost.generation().next();
    let input = Input::RuntimeStarted(generation);
    let decision = lost.decide(torn.now, &input).expect("never refused");
    for event in stamped(&lost, torn.now, &decision) {
        lost.apply(&event);
    }
    let spawns = decision
        .effects
        .iter()
        .filter(|e| matches!(e, Effect::Spawn { .. }))
        .count();
    assert_eq!(
        usize::from(lost.live_attempt().is_some()),
        spawns,
        "what lives was started anew"
    );
}

/// Events in the past tense answer facts; intents answer commands and deadlines.
pub(super) fn check_event(input: &Input, before: &Session, event: &Event) {
    assert!(event.seq > before.last_seq());
    let truthful = match &event.body {
        Body::AttemptStarted { .. } => matches!(input, Input::Started { .. }),
        Body::SessionReady => {
            matches!(
                input,
                Input::Started { .. } | Input::OutputMatched | Input::DeadlinePassed
            )
        }
        Body::AttemptExited(AttemptEnd::Exited { .. }) => matches!(input, Input::Exited { .. }),
        Body::AttemptExited(AttemptEnd::StartFailed { .. }) => {
            matches!(input, Input::StartFailed { .. })
        }
        Body::AttemptExited(AttemptEnd::RuntimeReplaced) => {
            matches!(input, Input::Released | Input::RuntimeStarted(_))
        }
        Body::SessionPaused => matches!(input, Input::Frozen | Input::Released),
        Body::SessionResumed => matches!(input, Input::Thawed),
        Body::SessionUpdated(_) => matches!(input, Input::Update(_)),
        Body::DesiredState(_) => matches!(input, Input::SetDesiredState(_)),
        Body::InputAccepted { .. } => matches!(input, Input::Write { .. }),
        Body::SignalSent { .. } => matches!(input, Input::Signal { .. }),
        Body::TerminalResized { .. } => matches!(input, Input::Resize { .. }),
        Body::StopEscalated => {
            matches!(input, Input::DeadlinePassed)
                || (matches!(input, Input::Delete) && before.is_frozen())
        }
        Body::SessionStopped => matches!(input, Input::RuntimeStarted(_)),
        Body::SessionCreated(_) | Body::Output { .. } => false,
        Body::AttemptStarting(_)
        | Body::AttemptStopping(_)
        | Body::Backoff { .. }
        | Body::SessionFailed(_)
        | Body::SessionExpired(_)
        | Body::SessionDeleted => true,
    };
    assert!(truthful, "{:?} does not answer {input:?}", event.body);
}

/// Which phase may follow which, by one event.
pub(super) fn check_passage(before: Phase, after: Phase, event: &Event) {
    let lawful = before == after
        || match (before, after) {
            // What begins while frozen is paused from its beginning.
            (_, Phase::Paused) => matches!(
                event.body,
                Body::SessionPaused | Body::Backoff { .. } | Body::AttemptStarting(_)
            ),
            // What was paused is found in any phase, by the thaw or by what ended it.
            (Phase::Paused, _)
            | (Phase::Starting, Phase::Running)
            | (Phase::Exited, Phase::Backoff | Phase::Failed) => true,
            (_, Phase::Stopped) => matches!(
                event.body,
                Body::DesiredState(DesiredState::Stopped)
                    | Body::SessionUpdated(_)
                    | Body::AttemptExited(_)
                    | Body::SessionExpired(_)
                    | Body::SessionStopped
                    | Body::SessionDeleted
            ),
            (
                Phase::Pending
                | Phase::Backoff
                | Phase::Stopped
                | Phase::Exited
                | Phase::Failed
                | Phase::Suspended,
                Phase::Starting,
            ) => matches!(event.body, Body::AttemptStarting(_)),
            (Phase::Starting | Phase::Running, Phase::Stopping) => {
                matches!(event.body, Body::AttemptStopping(_))
            }
            (
                Phase::Starting | Phase::Running | Phase::Stopping,
                Phase::Exited | Phase::Suspended,
            ) => matches!(event.body, Body::AttemptExited(_)),
            _ => false,
        };
    assert!(lawful, "{before:?} to {after:?} by {:?}", event.body);
}
