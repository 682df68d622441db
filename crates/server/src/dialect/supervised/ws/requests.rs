//! A client's messages: what they mean, and their answers in the order of the messages.

use std::fmt;

use bytes::BytesMut;
use outlive_api::{
    agent,
    error::{Action, ApiError, ErrorCode},
    limits::REQUEST_ID_CHARS_MAX,
    session::{InputRequest, ResizeRequest, SignalRequest},
    ws::ServerMessage,
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    super::{
        call::InSession,
        control::{parse_input, parse_resize, parse_signal},
    },
    frame::{Close, Opcode, append_frame},
    order::Marks,
};

/// A message that is at least JSON.
#[derive(Debug)]
pub(super) struct Request {
    /// What its answer names it.
    id: Option<String>,
    kind: Kind,
    message: BytesMut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Input,
    /// An input without `input_id`, for which the reference has its own words.
    Nameless,
    Signal,
    Resize,
    Unknown,
    /// Its `request_id` is no text, so its answer has none.
    Misnamed,
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

/// Reads a message. What is no JSON object, or names itself at too great length, ends the
/// connection; what only makes no sense is answered.
pub(super) fn read(message: BytesMut) -> Result<Request, Close> {
    let policy = |reason: &'static str| Close::new(Close::POLICY, reason);
    let head: Head = serde_json::from_slice(&message).map_err(|_| policy("message is not JSON"))?;
    if message.trim_ascii_start().first() != Some(&b'{') {
        return Err(policy("message is not a JSON object"));
    }
    let named = head.request_id != Word::Other;
    let request_id = match head.request_id {
        Word::Missing | Word::Other => None,
        Word::Text(text) if text.chars().count() <= REQUEST_ID_CHARS_MAX => Some(text),
        Word::Text(_) => return Err(policy("request_id is too long")),
    };
    let kind = match &head.kind {
        _ if !named => Kind::Misnamed,
        Word::Text(kind) if kind == "input" && head.input_id == Word::Missing => Kind::Nameless,
        Word::Text(kind) if kind == "input" => Kind::Input,
        Word::Text(kind) if kind == "signal" => Kind::Signal,
        Word::Text(kind) if kind == "resize" => Kind::Resize,
        Word::Text(_) | Word::Missing | Word::Other => Kind::Unknown,
    };
    Ok(Request {
        id: request_id.filter(|id| !id.is_empty()),
        kind,
        message,
    })
}

impl Request {
    /// Carries it out; the answer is whole frames.
    pub(super) async fn answer(self, at: &InSession, marks: &Marks, seen: u64) -> Vec<u8> {
        if self.kind != Kind::Input {
            let result = self.carry_out(at).await;
            return answer_frame(self.id, &result);
        }
        if let Err(behind) = marks.admit(seen) {
            return answer_frame(self.id, &Err(behind));
        }
        let result = self.carry_out(at).await;
        let mut answer = answer_frame(self.id, &result);
        marks.note(&result, &mut answer);
        answer
    }

    async fn carry_out(&self, at: &InSession) -> Result<(), ApiError> {
        let (action, request) = self.request(at)?;
        at.call(action, request).await.map(|_| ())
    }

    fn request(&self, at: &InSession) -> Result<(Action, agent::Request), ApiError> {
        let session = &at.session;
        match self.kind {
            Kind::Nameless => Err(ApiError::invalid("input_id is required")),
            Kind::Input => {
                let body: InputRequest = body(&self.message)?;
                let request = agent::Request::Write {
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
            Kind::Misnamed => Err(ApiError::invalid("request_id must be text")),
        }
    }
}

fn answer_frame(request_id: Option<String>, result: &Result<(), ApiError>) -> Vec<u8> {
    let message = match result {
        Ok(()) => ServerMessage::Ack { request_id },
        Err(error) => ServerMessage::Error {
            request_id,
            error: error.message.to_string(),
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
