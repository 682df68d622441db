//! Which backend a start takes: none that keeps the sandbox's processes apart less than the ones
//! that it had before. A workload that was written for a place of its own must not wake up as the
//! host's own user, whatever became of the host meanwhile.
//!
//! | sandbox \ server | it has as much | `auto`, and it has less | told to use less |
//! |---|---|---|---|
//! | a new one | what it has | what it has | what it has |
//! | had more before | that | that is tried, and nothing else | refused |

use outlive_api::launch::{IsolationTier, RuntimeKind};

use super::{RuntimeChoice, RuntimeError};

/// What a backend reaches.
pub(super) const fn reached_by(kind: RuntimeKind) -> IsolationTier {
    match kind {
        RuntimeKind::Namespace => IsolationTier::Nested,
        RuntimeKind::TwoUid => IsolationTier::TwoUid,
        RuntimeKind::Process => IsolationTier::None,
    }
}

const fn reaching(tier: IsolationTier) -> RuntimeKind {
    match tier {
        IsolationTier::Nested => RuntimeKind::Namespace,
        IsolationTier::TwoUid => RuntimeKind::TwoUid,
        IsolationTier::None => RuntimeKind::Process,
    }
}

/// The word for the backend that a sandbox of this tier has.
pub(crate) const fn backend_of(tier: IsolationTier) -> &'static str {
    reaching(tier).name()
}

/// What is done where a start turns out to be impossible on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Otherwise {
    /// It fails.
    Fail,
    /// It is tried with what new sandboxes get then.
    FallBack,
}

/// The backend of a start; `usual` is what new sandboxes get, and `next` what they get once that
/// turned out to be impossible.
pub(super) fn backend(
    choice: RuntimeChoice,
    usual: RuntimeKind,
    next: RuntimeKind,
    made: Option<IsolationTier>,
) -> Result<(RuntimeKind, Otherwise), RuntimeError> {
    let auto = choice == RuntimeChoice::Auto;
    match made.filter(|made| reached_by(usual).is_weaker_than(*made)) {
        None if auto && usual == RuntimeKind::Namespace => {
            let falls_back = enough(made, reached_by(next)).is_ok();
            let otherwise = if falls_back {
                Otherwise::FallBack
            } else {
                Otherwise::Fail
            };
            Ok((usual, otherwise))
        }
        None => Ok((usual, Otherwise::Fail)),
        Some(made) if auto => Ok((reaching(made), Otherwise::Fail)),
        Some(made) => Err(weaker(
            made,
            format!("it was started to use the runtime `{}`", usual.name()),
        )),
    }
}

/// Refuses less than what the sandbox had.
pub(super) fn enough(
    made: Option<IsolationTier>,
    reached: IsolationTier,
) -> Result<(), RuntimeError> {
    match made {
        Some(made) if reached.is_weaker_than(made) => {
            Err(weaker(made, format!("it reached {} only", reached.name())))
        }
        Some(_) | None => Ok(()),
    }
}

/// What whoever asked for a start is told.
pub(super) fn weaker(made: IsolationTier, why: String) -> RuntimeError {
    RuntimeError::Weaker {
        made: made.name(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [IsolationTier; 3] = [
        IsolationTier::Nested,
        IsolationTier::TwoUid,
        IsolationTier::None,
    ];

    const KINDS: [RuntimeKind; 3] = [
        RuntimeKind::Namespace,
        RuntimeKind::TwoUid,
        RuntimeKind::Process,
    ];

    #[test]
    fn no_server_starts_a_sandbox_with_less_than_it_had() {
        for usual in KINDS {
            for next in KINDS {
                for made in TIERS {
                    let auto = backend(RuntimeChoice::Auto, usual, next, Some(made));
                    let told = backend(RuntimeChoice::Process, usual, next, Some(made));
                    for (kind, otherwise) in [auto.unwrap()].into_iter().chain(told) {
                        enough(Some(made), reached_by(kind)).unwrap();
                        if otherwise == Otherwise::FallBack {
                            enough(Some(made), reached_by(next)).unwrap();
                        }
                    }
                }
                let (kind, _) = backend(RuntimeChoice::Auto, usual, next, None).unwrap();
                assert_eq!(kind, usual, "new ones get what the server has");
            }
        }
    }

    #[test]
    fn whoever_is_refused_reads_what_to_do() {
        let process = RuntimeKind::Process;
        for (choice, made) in [
            (RuntimeChoice::Process, IsolationTier::Nested),
            (RuntimeChoice::TwoUid, IsolationTier::TwoUid),
        ] {
            let message = backend(choice, process, process, Some(made))
                .unwrap_err()
                .to_string();
            assert!(message.contains(made.name()), "{message}");
            for part in ["made with isolation", "`process`", "outlive doctor"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }

    #[test]
    fn tiers_have_one_order() {
        for (place, tier) in TIERS.into_iter().enumerate() {
            for (other_place, other) in TIERS.into_iter().enumerate() {
                assert_eq!(tier.is_weaker_than(other), place > other_place);
            }
            assert_eq!(IsolationTier::from_name(tier.name()), Some(tier));
        }
        assert_eq!(IsolationTier::from_name("strong"), None);
    }
}
