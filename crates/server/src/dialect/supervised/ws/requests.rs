//! A client's messages: what they mean, and their answers in the order of the messages.

use std::{fmt, sync::Arc};

use bytes::BytesMut;
use outlive_api::{
    agent::Request,
    error::{Action, ApiError, ErrorCode},
    limits::REQUEST_ID_CHARS_MAX,
    session::{InputRequest, ResizeRequest, SignalRequest},
    ws::ServerMessage,
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    super::{
        call::InSession,
        control::{parse_input, parse_resize, parse_signal},
    },
    frame::{Close, Opcode, append_frame},
};

/// A message that is at least JSON.
#[derive(Debug)]
pub(super) struct Asked {
    request_id: Option<String>,
    kind: Kind,
    message: BytesMut,
    /// Its share of the bytes that may wait.
    _budget: OwnedSemaphorePermit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Input,
    /// An input without `input_id`, for which the reference has its own words.
    Nameless,
    Signal,
    Resize,
    Unknown,
}

/// What every message has in common. Whatever else it holds is passed over, not kept.
#[derive(Debug, Deserialize)]
struct Head {
    #[serde(rename = "type", default)]
    kind: Word,
    #[serde(default)]
    request_id: Word,
    #[serde(default)]
    input_id: Word,
}

/// Why a message is not carried out.
#[derive(Debug)]
pub(super) enum Unread {
    /// It ends the connection.
    Close(Close),
    /// Too much waits already; the answer says so, and it may be sent again.
    Full(Vec<u8>),
}

/// Reads a message. What is no JSON object, or names itself at too great length, ends the
/// connection; what only makes no sense is answered.
pub(super) fn read(message: BytesMut, budget: &Arc<Semaphore>) -> Result<Asked, Unread> {
    let policy = |reason: &'static str| Unread::Close(Close::new(Close::POLICY, reason));
    let head: Head = serde_json::from_slice(&message).map_err(|_| policy("message is not JSON"))?;
    if message.trim_ascii_start().first() != Some(&b'{') {
        return Err(policy("message is not a JSON object"));
    }
    let request_id = match head.request_id {
        Word::Missing => None,
        Word::Text(text) if text.chars().count() <= REQUEST_ID_CHARS_MAX => Some(text),
        Word::Text(_) => return Err(policy("request_id is too long")),
        Word::Other => return Err(policy("request_id is not text")),
    };
    let kind = match &head.kind {
        Word::Text(kind) if kind == "input" && head.input_id == Word::Missing => Kind::Nameless,
        Word::Text(kind) if kind == "input" => Kind::Input,
        Word::Text(kind) if kind == "signal" => Kind::Signal,
        Word::Text(kind) if kind == "resize" => Kind::Resize,
        Word::Text(_) | Word::Missing | Word::Other => Kind::Unknown,
    };
    let request_id = request_id.filter(|id| !id.is_empty());
    let bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
    match Arc::clone(budget).try_acquire_many_owned(bytes) {
        Ok(permit) => Ok(Asked {
            request_id,
            kind,
            message,
            _budget: permit,
        }),
        Err(_) => Err(Unread::Full(answer_frame(request_id, Err(full())))),
    }
}

impl Asked {
    /// Carries it out; the answer is a whole frame.
    pub(super) async fn answer(self, at: &InSession) -> Vec<u8> {
        let request_id = self.request_id.clone();
        answer_frame(request_id, self.carry_out(at).await)
    }

    /// The answer when too many others wait already.
    pub(super) fn too_many(self) -> Vec<u8> {
        answer_frame(self.request_id, Err(full()))
    }

    async fn carry_out(self, at: &InSession) -> Result<(), ApiError> {
        let (action, request) = self.request(at)?;
        at.call(action, request).await.map(|_| ())
    }

    fn request(&self, at: &InSession) -> Result<(Action, Request), ApiError> {
        let session = &at.session;
        match self.kind {
            Kind::Nameless => Err(ApiError::invalid("input_id is required")),
            Kind::Input => {
                let body: InputRequest = body(&self.message)?;
                let request = Request::Write {
                    session: session.clone(),
                    write: parse_input(session, body, false)?,
                };
                Ok((Action::WriteSessionInput, request))
            }
            Kind::Signal => {
                let body: SignalRequest = body(&self.message)?;
                Ok((Action::SignalSession, parse_signal(session, &body)?))
            }
            Kind::Resize => {
                let body: ResizeRequest = body(&self.message)?;
                Ok((Action::ResizeSessionTerminal, parse_resize(session, &body)?))
            }
            Kind::Unknown => Err(ApiError::new(
                ErrorCode::InvalidRequest,
                "unsupported websocket message type",
            )),
        }
    }
}

fn full() -> ApiError {
    ApiError::new(
        ErrorCode::InputBufferFull,
        "too many requests of this connection wait",
    )
}

fn answer_frame(request_id: Option<String>, result: Result<(), ApiError>) -> Vec<u8> {
    let message = match result {
        Ok(()) => ServerMessage::Ack { request_id },
        Err(error) => ServerMessage::Error {
            request_id,
            error: error.message.into_owned(),
            code: Some(error.code.as_str().to_owned()),
        },
    };
    let mut frame = Vec::new();
    // Texts only, which always can be written.
    let text = serde_json::to_vec(&message).unwrap_or_default();
    append_frame(Opcode::Text, &text, &mut frame);
    frame
}

fn body<T: DeserializeOwned>(message: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(message)
        .map_err(|error| ApiError::invalid(format!("invalid message: {error}")))
}

/// A value that should be text. Anything else is noticed and not kept, however large it is.
#[derive(Debug, Default, PartialEq, Eq)]
enum Word {
    #[default]
    Missing,
    Text(String),
    Other,
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordVisitor)
    }
}

struct WordVisitor;

impl<'de> Visitor<'de> for WordVisitor {
    type Value = Word;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Word, E> {
        Ok(Word::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Word, E> {
        Ok(Word::Missing)
    }

    fn visit_bool<E>(self, _value: bool) -> Result<Word, E> {
        Ok(Word::Other)
    }

    fn visit_i64<E>(self, _value: i64) -> Result<Word, E> {
        Ok(Word::Other)
    }

    fn visit_u64<E>(self, _value: u64) -> Result<Word, E> {
        Ok(Word::Other)
    }

    fn visit_f64<E>(self, _value: f64) -> Result<Word, E> {
        Ok(Word::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Word, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Word::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Word, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Word::Other)
    }
}
