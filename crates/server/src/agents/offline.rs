//! Sessions without a supervisor: what their journals say.
//!
//! A sandbox that was released, or whose supervisor is away for longer than a call waits, still
//! answers: the journal is the only truth, so the state is its checkpoint and the events after it.

use std::{fs, io, path::Path};

use outlive_api::{agent::SessionView, record};
use outlive_core::{
    event::{Body, Event},
    id::{Generation, SessionId},
    session::{Rejection, Session},
    time::Timestamp,
};
use outlive_journal::{KIND_GAP, OpenError, Reader, Record, Recovered, recover};

use super::tails::Tails;
use crate::{runtime::Place, sessions::CallError};

/// What became of the runtime that wrote the journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// It is there, and does not answer.
    Away,
    /// It is gone: what stood still in it will not go on.
    Gone,
}

/// All sessions of a sandbox, ordered by creation, then id. One that can't be read is left out
/// and logged: its damage must not hide the others.
pub(crate) async fn list(place: &Place, writer: Writer) -> Result<Vec<SessionView>, CallError> {
    let all = place.clone();
    let sessions = blocking(move || sessions(&all)).await?;
    list_of(place, sessions, writer).await
}

/// The same of these sessions; one that is not there any more is left out, too.
pub(crate) async fn list_of(
    place: &Place,
    sessions: Vec<SessionId>,
    writer: Writer,
) -> Result<Vec<SessionView>, CallError> {
    let place = place.clone();
    blocking(move || {
        let mut found = Vec::new();
        for session in sessions {
            match read(&place, &session, writer) {
                Ok(known) => found.push(known),
                Err(CallError::Rejected(Rejection::NotFound)) => {}
                Err(error) => tracing::error!(%session, %error, "a journal can't be read"),
            }
        }
        found.sort_by(|(one, _), (two, _)| order(one).cmp(&order(two)));
        Ok(found.into_iter().map(|(_, view)| view).collect())
    })
    .await
}

/// How many sessions a sandbox has; their journals are not read for it.
pub(crate) async fn count(place: &Place) -> Result<usize, CallError> {
    let place = place.clone();
    blocking(move || sessions(&place).map(|found| found.len())).await
}

/// One session of a sandbox.
pub(crate) async fn view(
    place: &Place,
    session: &SessionId,
    writer: Writer,
) -> Result<SessionView, CallError> {
    let (place, session) = (place.clone(), session.clone());
    blocking(move || read(&place, &session, writer).map(|(_, view)| view)).await
}

/// Moves the tails to where the files end: a runtime that left told nobody of its last events.
pub(crate) async fn refresh(place: &Place, tails: &Tails) {
    let (place, known) = (place.clone(), tails.sessions());
    let read = blocking(move || {
        let mut windows = Vec::new();
        for session in known {
            match Reader::open(&place.journal(&session)) {
                Ok(reader) => match reader.window() {
                    Ok(window) => windows.push((session, window)),
                    Err(error) => tracing::warn!(%session, %error, "a journal can't be read"),
                },
                Err(error) => tracing::warn!(%session, %error, "a journal can't be opened"),
            }
        }
        Ok(windows)
    })
    .await;
    match read {
        Ok(windows) => {
            for (session, (earliest, latest)) in windows {
                tails.moved(&session, earliest, latest);
            }
        }
        Err(error) => tracing::error!(%error, "journals can't be read"),
    }
}

/// Orders views by creation, then id.
pub(crate) fn sort(views: &mut [SessionView]) {
    views.sort_by_cached_key(|view| {
        // One that this build can't read is shown as such by its reader, at the end.
        match Session::restore(&view.checkpoint) {
            Ok(session) => (session.created_at(), session.id().to_string()),
            Err(_) => (Timestamp::from_unix_nanos(i64::MAX), String::new()),
        }
    });
}

fn order(session: &Session) -> (Timestamp, &SessionId) {
    (session.created_at(), session.id())
}

fn sessions(place: &Place) -> Result<Vec<SessionId>, CallError> {
    let dir = place.journals();
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&dir, &error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed(&dir, &error))?;
        if let Some(Ok(session)) = entry.file_name().to_str().map(SessionId::parse) {
            found.push(session);
        }
    }
    Ok(found)
}

fn read(
    place: &Place,
    id: &SessionId,
    writer: Writer,
) -> Result<(Session, SessionView), CallError> {
    let dir = place.journal(id);
    let recovered = match recover(&dir) {
        Ok(recovered) => recovered,
        Err(OpenError::Empty) => return Err(Rejection::NotFound.into()),
        Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Rejection::NotFound.into());
        }
        Err(error) => return Err(failed(&dir, &error)),
    };
    let mut session = replay(id, &recovered).map_err(|error| failed(&dir, &error))?;
    if writer == Writer::Gone {
        session = session.without_runtime();
    }
    if session.is_deleted() {
        return Err(Rejection::NotFound.into());
    }
    let view = SessionView {
        checkpoint: session.checkpoint(),
        earliest: recovered.earliest,
        latest: recovered.latest,
    };
    Ok((session, view))
}

/// The checkpoint and the events after it.
fn replay(id: &SessionId, recovered: &Recovered) -> Result<Session, String> {
    let mut session = if recovered.checkpoint.is_empty() {
        None
    } else {
        Some(Session::restore(&recovered.checkpoint).map_err(|error| error.to_string())?)
    };
    for entry in &recovered.records {
        if entry.kind == KIND_GAP {
            continue; // What it held is unknown; the machine goes on from the next event.
        }
        let event = event(entry)?;
        let generation = Generation(entry.generation);
        match &mut session {
            Some(session) => {
                session.enter_generation(generation);
                session.apply(&event);
            }
            None => session = Session::from_created(id.clone(), generation, &event),
        }
    }
    let mut session = session.ok_or("its checkpoint is lost")?;
    session.enter_generation(Generation(recovered.generation));
    Ok(session)
}

fn event(entry: &Record) -> Result<Event, String> {
    let (body, call) = if entry.kind == record::KIND_OUTPUT {
        let body = Body::Output {
            stream: record::stream_of(entry.stream).ok_or("output of an unknown stream")?,
            len: u32::try_from(entry.payload.len()).map_err(|error| error.to_string())?,
        };
        (body, None)
    } else {
        record::body_and_call(&entry.payload).map_err(|error| error.to_string())?
    };
    Ok(Event {
        seq: entry.seq,
        at: Timestamp::from_unix_nanos(entry.at_nanos),
        attempt: entry.attempt,
        body,
        call,
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(CallError::Failed {
                message: error.to_string(),
            })
        })
}

fn failed(path: &Path, error: &impl ToString) -> CallError {
    CallError::Failed {
        message: format!("{}: {}", path.display(), error.to_string()),
    }
}
