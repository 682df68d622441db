//! What a new runtime makes of ends that only the keeper of the one before saw.

use outlive_core::{event::Oom, session::Attempt};

use super::*;
use crate::machine::Ended;

impl World {
    /// The next runtime of the same sandbox; this one, its keeper and its processes are gone.
    fn next_runtime(&self) -> Self {
        self.machine.alive.borrow_mut().clear();
        Self::on(
            Rc::clone(&self.machine),
            Rc::clone(&self.directory),
            self.generation.next(),
        )
    }

    /// Its keeper saw the first attempt end like this, when no supervisor lived.
    fn note_end(&self, id: &SessionId, code: u8) {
        let ended = Ended {
            status: ExitStatus::Code(code),
            oom: Oom::Unknown,
            rusage: None,
        };
        self.machine
            .past
            .borrow_mut()
            .insert((id.clone(), 1), ended);
    }
}

fn ends(session: &Session) -> Vec<Option<AttemptEnd>> {
    let end = |attempt: &Attempt| attempt.end.clone();
    session.attempts().iter().map(end).collect()
}

fn exited(code: u8) -> AttemptEnd {
    AttemptEnd::Exited {
        status: ExitStatus::Code(code),
        stop: None,
        oom: Oom::Unknown,
        rusage: None,
    }
}

// A program ended after its supervisor was killed, and then its keeper was killed too: the next
// runtime did not know and ran the program again, though it had done its work.
#[test]
fn a_program_that_had_ended_is_not_run_again_by_the_next_runtime() {
    tell(async {
        let world = World::new();
        let id = world.create(raw()).await.id().clone();
        world.note_end(&id, 0);
        let next = world.next_runtime();
        let session = next.wait_for(&id, Phase::Exited).await;
        assert_eq!(ends(&session), [Some(exited(0))]);
        assert_eq!(world.machine.take_calls(), ["spawn 1"]);
        assert!(world.machine.past.borrow().is_empty(), "it is remembered");
    });
}

#[test]
fn a_program_that_had_failed_is_started_again_if_its_rule_says_so() {
    tell(async {
        let world = World::new();
        let mut spec = raw();
        spec.lifecycle.restart.policy = Some(RestartPolicy::OnFailure);
        let id = world.create(spec).await.id().clone();
        world.note_end(&id, 7);
        let next = world.next_runtime();
        let session = next.wait_for(&id, Phase::Running).await;
        assert_eq!(ends(&session), [Some(exited(7)), None]);
    });
}

#[test]
fn an_end_that_nobody_saw_stays_unknown() {
    tell(async {
        let world = World::new();
        let id = world.create(raw()).await.id().clone();
        let next = world.next_runtime();
        let session = next.wait_for(&id, Phase::Running).await;
        assert_eq!(ends(&session), [Some(AttemptEnd::RuntimeReplaced), None]);
    });
}

// Only a child that was released can have run: one that found its gate shut ends with 126, which
// is no exit code of the program.
#[test]
fn the_end_of_a_child_that_was_never_released_is_no_exit_code() {
    tell(async {
        let world = World::new();
        world.script(|it| it.start_after = Duration::from_mins(1));
        let creation = world.create(raw());
        let killed = tokio::time::timeout(Duration::from_secs(1), creation).await;
        assert!(killed.is_err(), "it was started");
        let id = SessionId::from_bits(1);
        world.note_end(&id, 126);
        world.script(|it| it.start_after = Duration::ZERO);
        let next = world.next_runtime();
        let session = next.wait_for(&id, Phase::Running).await;
        assert_eq!(ends(&session), [Some(AttemptEnd::RuntimeReplaced), None]);
    });
}
