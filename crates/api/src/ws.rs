//! Messages of a session's WebSocket, both ways, as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    event::Event,
    session::{InputRequest, ResizeRequest, SignalRequest},
};

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ClientMessage {
    /// Write to the attempt.
    Input {
        /// Repeated in the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 256)]
        request_id: Option<String>,
        /// The write.
        #[serde(flatten)]
        input: InputRequest,
    },
    /// Signal the attempt.
    Signal {
        /// Repeated in the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 256)]
        request_id: Option<String>,
        /// The signal.
        #[serde(flatten)]
        signal: SignalRequest,
    },
    /// Resize the terminal.
    Resize {
        /// Repeated in the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 256)]
        request_id: Option<String>,
        /// The size.
        #[serde(flatten)]
        resize: ResizeRequest,
    },
}

/// What the server sends: one ack or error for each request, in order of the requests, and every
/// event once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServerMessage {
    /// A record of the journal.
    Event {
        /// It.
        event: Box<Event>,
    },
    /// A request was carried out.
    Ack {
        /// Its id; left out when it had none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    /// A request was refused; the connection goes on.
    Error {
        /// Its id; left out when it had none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// For people.
        error: String,
        /// For programs; the codes of the HTTP calls.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
}
