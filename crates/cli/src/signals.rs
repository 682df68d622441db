//! Signals that tell us to go. They are for this client, never for the session.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Failure, Result};

/// SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// From now on they are received here instead of ending this process.
    pub fn listen() -> Result<Self> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hangup.recv() => 1,
        }
    }
}

/// Listens for one kind.
pub fn listen(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Failure::new("signals", format!("listen for signals: {error}")))
}
