//! Contexts as JSON: one command, or an interpreter that is given chunks of code.
//!
//! Text fields carry output as UTF-8, with U+FFFD for what is none; when that loses something,
//! the field of the same name with `_base64` has the bytes. Those fields are not in the vendor's
//! API, nor is `truncated`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a context is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProcessType {
    /// An interpreter.
    Repl,
    /// A command.
    Cmd,
}

/// Body of `POST …/contexts`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CreateContextRequest {
    /// What it is; left out, it follows from `cmd` or `repl`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ProcessType>,
    /// For `repl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repl: Option<CreateReplContextRequest>,
    /// For `cmd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<CreateCmdContextRequest>,
    /// Answer when the command is over, or the interpreter's `input` is done. The command then
    /// sees end of input at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_until_done: Option<bool>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables on top of the sandbox's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Run on a terminal of this size; left out, on pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty_size: Option<PtySize>,
    /// Stop after this many seconds without activity; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub idle_timeout_sec: Option<i64>,
    /// Stop this many seconds after the creation; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub ttl_sec: Option<i64>,
}

/// The command of a `cmd` context.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CreateCmdContextRequest {
    /// Program and arguments; no shell, looked up in `PATH`.
    #[schema(min_items = 1, max_items = 4096)]
    pub command: Vec<String>,
}

/// The interpreter of a `repl` context.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CreateReplContextRequest {
    /// `python` (default), `node`, `bash`, `sh`, or the name of `repl_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// A first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// An interpreter that this server does not know by its alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repl_config: Option<ReplConfig>,
}

/// An interpreter by its program and its prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReplConfig {
    /// Its name.
    pub name: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Programs that may be it: the first that the sandbox has is started.
    pub candidates: Vec<ExecCandidate>,
    /// Variables for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<ReplEnvVar>>,
    /// Value of `TERM` with a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_term: Option<String>,
    /// Its prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<ReplPrompt>,
    /// How it says that it waits for a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReplReady>,
}

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ExecCandidate {
    /// The program.
    pub name: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
}

/// A variable of an interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReplEnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Another variable of the request whose value it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<String>,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReplPrompt {
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_prompt: Option<String>,
}

/// How an interpreter says that it waits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReplReady {
    /// The way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ReplReadyMode>,
    /// The prompt, for `prompt_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The delay, for `startup_delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub startup_delay_ms: Option<i64>,
}

/// The ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplReadyMode {
    /// It writes a prompt before each line.
    PromptToken,
    /// It is ready a while after its start; where a chunk ends nobody can tell.
    StartupDelay,
}

/// Size of a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PtySize {
    /// Lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 1, maximum = 65535)]
    pub rows: Option<i64>,
    /// Columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 1, maximum = 65535)]
    pub cols: Option<i64>,
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Context {
    /// Its id.
    pub id: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: ProcessType,
    /// Name of the interpreter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The command, for `cmd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Working directory; empty is the sandbox's.
    pub cwd: String,
    /// Variables it was given.
    pub env_vars: BTreeMap<String, String>,
    /// Its process runs.
    pub running: bool,
    /// Its process stands still, or went with its runtime.
    pub paused: bool,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// What its process wrote and how it ended; in lists only the end.
    #[serde(flatten)]
    pub output: ContextOutput,
}

/// What was written, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ContextOutput {
    /// All of it in the order of the journal, the last 1 MiB at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_raw: Option<String>,
    /// The bytes of `output_raw` where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_raw_base64: Option<String>,
    /// Standard output without a terminal, the last 1 MiB at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// The bytes of `stdout` where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Standard error without a terminal, the last 1 MiB at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// The bytes of `stderr` where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// True when the beginning is missing; the events have it as long as it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    /// Of the process that ended, -1 after a death by signal; of a chunk, what its interpreter
    /// says. Left out when there is none or nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why the process ended; left out while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// All contexts of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextList {
    /// Ordered by creation, then id.
    pub contexts: Vec<Context>,
}

/// Body of `POST …/input` and `POST …/exec`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ContextInputRequest {
    /// What to write, exactly; or the chunk to carry out.
    pub data: String,
}

/// Body of `POST …/resize`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ResizeContextRequest {
    /// Lines.
    #[schema(format = Int32, minimum = 1, maximum = 65535)]
    pub rows: i64,
    /// Columns.
    #[schema(format = Int32, minimum = 1, maximum = 65535)]
    pub cols: i64,
}

/// Body of `POST …/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SignalContextRequest {
    /// HUP INT QUIT KILL TERM USR1 USR2 STOP CONT WINCH, any case, `SIG` optional; or 1 to 64.
    pub signal: String,
}

/// `{"written":true}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Written {
    /// Always true.
    pub written: bool,
}

/// `{"signaled":true}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Signaled {
    /// Always true.
    pub signaled: bool,
}

/// What a client sends over a context's WebSocket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContextClientMessage {
    /// Write to its input, exactly.
    Input {
        /// Repeated in the answer.
        #[serde(default, alias = "requestId", skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 256)]
        request_id: Option<String>,
        /// Text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<String>,
        /// Bytes, standard base64, instead of text. Not in the vendor's API.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data_base64: Option<String>,
        /// Close its input after that. Not in the vendor's API.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        eof: Option<bool>,
    },
    /// Signal it.
    Signal {
        /// Repeated in the answer.
        #[serde(default, alias = "requestId", skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 256)]
        request_id: Option<String>,
        /// The signal.
        signal: String,
    },
    /// Resize its terminal.
    Resize {
        /// Repeated in the answer.
        #[serde(default, alias = "requestId", skip_serializing_if = "Option::is_none")]
        #[schema(max_length = 256)]
        request_id: Option<String>,
        /// Lines.
        #[schema(format = Int32, minimum = 1, maximum = 65535)]
        rows: i64,
        /// Columns.
        #[schema(format = Int32, minimum = 1, maximum = 65535)]
        cols: i64,
    },
}

/// What the server sends over a context's WebSocket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContextServerMessage {
    /// It wrote.
    Output {
        /// `stdout`, `stderr` or `pty`.
        source: String,
        /// As text; a character is never cut in two.
        data: String,
        /// The bytes where they are not UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data_base64: Option<String>,
        /// Number of the last event it is from: `?after=` goes on there.
        seq: u64,
    },
    /// With `exit_code` or `state`: the process ended, and the connection does. Without them: the
    /// interpreter is ready for more after this input.
    Done {
        /// The input's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The code, -1 after a death by signal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// Why it ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<String>,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
    },
    /// A request was carried out. Not in the vendor's API.
    Ack {
        /// Its id; left out when it had none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    /// A request was refused; the connection goes on. Not in the vendor's API.
    Error {
        /// Its id; left out when it had none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// For people.
        error: String,
        /// For programs; the codes of the HTTP calls.
        code: String,
    },
}
