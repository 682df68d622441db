//! What a sandbox's task was asked and did not begin yet.
//!
//! While its disk is copied, which may take minutes, nothing else is begun: every command would
//! change what is copied, or the state that the copy goes back to. Those that come wait for a
//! moment, since most copies are short, and are then told why. Only a deletion is never sent away:
//! what is copied for a sandbox that is to go is given up, and it is carried out next.

use std::{collections::VecDeque, pin::pin, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Command, answer, seconds};
use crate::{
    limits::{BUSY_WAIT_MAX, SANDBOX_MAILBOX_MAX},
    sessions::CallError,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Mailbox {
    commands: mpsc::Receiver<Command>,
    /// Oldest first, each with the time when it waited long enough.
    waiting: VecDeque<(Instant, Command)>,
    patience: Duration,
}

/// What happened while the work went on.
enum Met<T> {
    Done(T),
    Asked(Option<Command>),
    Late,
}

impl Mailbox {
    pub(super) fn new(commands: mpsc::Receiver<Command>) -> Self {
        Self {
            commands,
            waiting: VecDeque::new(),
            patience: BUSY_WAIT_MAX,
        }
    }

    /// The next command; nothing when nobody can ask any more.
    pub(super) async fn next(&mut self) -> Option<Command> {
        match self.waiting.pop_front() {
            Some((_, command)) => Some(command),
            None => self.commands.recv().await,
        }
    }

    /// Does work that nothing may come between. Those who ask meanwhile hear within a bound that
    /// they have to come back. A deletion has waited for so long when `give_up` is cancelled: the
    /// work comes to its end soon, then.
    pub(super) async fn meanwhile<T>(
        &mut self,
        give_up: &CancellationToken,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        let mut may_be_asked = true;
        loop {
            // Behind a deletion that is due nobody waits for long.
            let late = match self.waiting.front() {
                Some((until, _)) if !give_up.is_cancelled() => Some(*until),
                Some(_) | None => None,
            };
            let met = tokio::select! {
                biased;
                done = &mut work => Met::Done(done),
                command = self.commands.recv(), if may_be_asked => Met::Asked(command),
                () = until(late) => Met::Late,
            };
            match met {
                Met::Done(done) => return done,
                Met::Asked(Some(command)) if self.waiting.len() < SANDBOX_MAILBOX_MAX => {
                    self.waiting
                        .push_back((Instant::now() + self.patience, command));
                }
                Met::Asked(Some(command)) => refuse(command),
                Met::Asked(None) => may_be_asked = false,
                Met::Late => match self.waiting.pop_front() {
                    Some(due @ (_, Command::Delete(_))) => {
                        self.waiting.push_front(due);
                        give_up.cancel();
                    }
                    Some((_, command)) => refuse(command),
                    None => {}
                },
            }
        }
    }
}

async fn until(late: Option<Instant>) {
    match late {
        Some(late) => sleep_until(late).await,
        None => std::future::pending().await,
    }
}

fn refuse(command: Command) {
    let busy = CallError::Unavailable {
        message: "the sandbox's files are being copied (fork, snapshot or restore), and it \
                  takes no other command meanwhile; try again in a moment"
            .to_owned(),
        retry_after: seconds(1),
    };
    answer(command.into_reply(), Err(busy));
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn ask(sender: &mpsc::Sender<Command>) -> oneshot::Receiver<Result<(), CallError>> {
        let (reply, heard) = oneshot::channel();
        sender.try_send(Command::Pause(reply)).unwrap();
        heard
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_during_a_long_copy_is_told_why_within_a_bound() {
        let (sender, commands) = mpsc::channel(4);
        let mut mailbox = Mailbox::new(commands);
        let (end, ends) = oneshot::channel();
        let begun = Instant::now();
        let heard = ask(&sender);
        let asking = async {
            let refused = heard.await.unwrap().unwrap_err();
            assert!(refused.to_string().contains("being copied"), "{refused}");
            assert_eq!(begun.elapsed(), BUSY_WAIT_MAX);
            // The copy went on all the while.
            end.send(7).unwrap();
        };
        let never = CancellationToken::new();
        let (done, ()) = tokio::join!(mailbox.meanwhile(&never, ends), asking);
        assert_eq!(done, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_during_a_short_copy_is_served_after_it_in_turn() {
        let (sender, commands) = mpsc::channel(4);
        let mut mailbox = Mailbox::new(commands);
        let mut first = ask(&sender);
        let short = tokio::time::sleep(BUSY_WAIT_MAX / 2);
        mailbox.meanwhile(&CancellationToken::new(), short).await;
        let second = ask(&sender);
        let Some(Command::Pause(reply)) = mailbox.next().await else {
            panic!("the command was lost");
        };
        assert!(first.try_recv().is_err(), "nobody answered it yet");
        answer(reply, Ok(()));
        first.await.unwrap().unwrap();
        let Some(Command::Pause(reply)) = mailbox.next().await else {
            panic!("the command was lost");
        };
        answer(reply, Ok(()));
        second.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_gives_a_long_copy_up_and_is_carried_out_next() {
        let (sender, commands) = mpsc::channel(4);
        let mut mailbox = Mailbox::new(commands);
        let refused = ask(&sender);
        let (reply, deleted) = oneshot::channel();
        sender.try_send(Command::Delete(reply)).unwrap();
        let mut behind = ask(&sender);
        let give_up = CancellationToken::new();
        mailbox.meanwhile(&give_up, give_up.cancelled()).await;
        refused.await.unwrap().unwrap_err();
        let Some(Command::Delete(reply)) = mailbox.next().await else {
            panic!("the deletion was lost, or is not next");
        };
        answer(reply, Ok(()));
        deleted.await.unwrap().unwrap();
        assert!(
            behind.try_recv().is_err(),
            "it is carried out, or refused, after that"
        );
    }
}
