//! Connected to a session by its event stream: output to our streams, input by calls.

use tokio::{
    io::{Stderr, Stdout},
    task::JoinHandle,
};

use super::{Attachment, Exits, Outcome, Stdin, input::Sender, standstill::Standstill};
use crate::{
    error::{Failure, Result},
    event::Event,
    follow::{Follow, Step},
    limits::WRITE_GRACE,
    output::{is_about_output, note, pass_on},
    signals::Signals,
    terminal::read_stdin,
};

/// Stays connected until the command has ended or we are told to go.
pub async fn attach(attachment: &Attachment<'_>) -> Result<Outcome> {
    let mut signals = Signals::listen()?;
    let mut input = Input::start(attachment)?;
    let mut follow = Follow::new(
        attachment.client,
        &attachment.path(),
        Some(attachment.after),
        attachment.patience,
    );
    let mut exits = Exits::default();
    let mut standstill = Standstill::new(attachment);
    let mut out = Output {
        stdout: tokio::io::stdout(),
        stderr: tokio::io::stderr(),
    };
    loop {
        let seq = follow.cursor().unwrap_or(attachment.after);
        let step = tokio::select! {
            biased;
            signal = signals.next() => return Ok(Outcome::Interrupted(seq, signal)),
            step = follow.next() => step,
            failure = input.failed() => {
                note(&format!("the input can't be sent on: {failure}"));
                continue;
            }
        };
        let event = match step? {
            Step::Deleted => return Ok(Outcome::Deleted(seq)),
            Step::Event(event, _) => event,
        };
        match interrupted(&mut signals, out.write(&event)).await {
            Ok(None) => {}
            Ok(Some(signal)) => {
                let seen = signal.seen(seq, event.seq);
                return Ok(Outcome::Interrupted(seen, signal.number));
            }
            Err(failure) if is_about_output(&failure) => {
                return Ok(Outcome::OutputLost(seq, failure));
            }
            Err(failure) => return Err(failure),
        }
        let said = tokio::select! {
            biased;
            signal = signals.next() => return Ok(Outcome::Interrupted(event.seq, signal)),
            said = standstill.look(attachment, &event) => said,
        };
        if let Some(said) = said {
            note(&said);
        }
        if let Some(outcome) = exits.look(attachment, *event).await? {
            return Ok(outcome);
        }
    }
}

/// A signal that came while output was being written.
struct WhileWriting {
    number: u8,
    written: bool,
}

impl WhileWriting {
    /// The last event that was written whole.
    fn seen(&self, before: u64, this: u64) -> u64 {
        if self.written { this } else { before }
    }
}

/// Writes; a signal gives the write a moment to end, then leaves it.
async fn interrupted(
    signals: &mut Signals,
    write: impl Future<Output = Result<()>>,
) -> Result<Option<WhileWriting>> {
    let mut write = std::pin::pin!(write);
    let number = tokio::select! {
        biased;
        written = &mut write => return written.map(|()| None),
        signal = signals.next() => signal,
    };
    let written = matches!(tokio::time::timeout(WRITE_GRACE, write).await, Ok(Ok(())));
    Ok(Some(WhileWriting { number, written }))
}

struct Output {
    stdout: Stdout,
    stderr: Stderr,
}

impl Output {
    async fn write(&mut self, event: &Event) -> Result<()> {
        if event.kind == "journal.gap" {
            note(&format!(
                "output is missing: {}",
                event.reason.as_deref().unwrap_or("a gap")
            ));
        }
        let Some(bytes) = event.bytes()? else {
            return Ok(());
        };
        match event.stream.as_deref() {
            Some("stderr") => pass_on(&mut self.stderr, &bytes).await,
            _ => pass_on(&mut self.stdout, &bytes).await,
        }
    }
}

/// The task that sends input.
struct Input(Option<JoinHandle<Result<()>>>);

impl Input {
    fn start(attachment: &Attachment<'_>) -> Result<Self> {
        let sender = || Sender::new(attachment.client, &attachment.path(), attachment.view);
        Ok(Self(match attachment.stdin {
            Stdin::Untouched => None,
            Stdin::Closed => Some(spawn(sender()?.close())),
            Stdin::Forward => Some(spawn(sender()?.forward(read_stdin()))),
        }))
    }

    /// Waits for the input to fail; an input that has ended well never does.
    async fn failed(&mut self) -> Failure {
        if let Some(task) = &mut self.0 {
            let result = task.await;
            self.0 = None;
            match result {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => return failure,
                Err(error) => return Failure::new("internal", format!("input task: {error}")),
            }
        }
        std::future::pending().await
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "its owner awaits or aborts it")]
fn spawn(task: impl Future<Output = Result<()>> + Send + 'static) -> JoinHandle<Result<()>> {
    tokio::spawn(task)
}
