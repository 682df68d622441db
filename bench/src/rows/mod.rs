//! The rows of the page, a file for each kind of work.

use std::{cell::OnceCell, path::Path};

use anyhow::Result;

use crate::{host::Host, report::Row};

mod append;
mod create;
mod echo;
mod follow;
mod idle;
mod ingest;
mod logger;
mod replay;
mod sandboxes;

/// What a row needs.
pub(crate) struct Bench<'a> {
    /// The measured server, once a row asked for it.
    pub(crate) host: OnceCell<Host>,
    /// A directory on the disk that the journals are on.
    pub(crate) scratch: &'a Path,
    /// How often each side is measured; odd.
    pub(crate) rounds: usize,
    /// Divides the amounts of work, for a quick look.
    pub(crate) shrink: u64,
}

impl Bench<'_> {
    /// The measured server, started by the first row that needs it.
    pub(crate) fn host(&self) -> Result<&Host> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let host = Host::start(self.scratch)?;
        Ok(self.host.get_or_init(|| host))
    }
}

type Measure = fn(&Bench<'_>) -> Result<Vec<Row>>;

/// Every group of rows by its name.
pub(crate) const GROUPS: &[(&str, Measure)] = &[
    // Before any other makes one.
    ("sandbox", sandboxes::create),
    ("ingest", ingest::streams),
    ("pty", ingest::terminal),
    ("retention", ingest::retention),
    ("logger", logger::conmon),
    ("sse", replay::one_follower),
    ("follow", follow::fan_out),
    ("replay", replay::whole),
    ("resume", replay::near_the_end),
    ("create", create::first_byte),
    ("exit", create::exit_seen),
    ("echo", echo::keystroke),
    ("inputs", echo::many_inputs),
    ("append", append::frames),
    ("reopen", append::reopen),
    ("agent", idle::agent),
    ("idle", idle::idle),
    ("freeze", sandboxes::freeze),
    ("replace", sandboxes::replace),
    ("fork", sandboxes::fork),
    ("asleep", sandboxes::asleep),
    ("take-up", sandboxes::take_up),
];

/// Runs `ours` and `floor` in turns and answers the median of each.
pub(crate) fn in_turns(
    rounds: usize,
    mut ours: impl FnMut() -> Result<f64>,
    mut floor: impl FnMut() -> Result<f64>,
) -> Result<(f64, f64)> {
    let (mut of_ours, mut of_floor) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            of_floor.push(floor()?);
            of_ours.push(ours()?);
        } else {
            of_ours.push(ours()?);
            of_floor.push(floor()?);
        }
    }
    Ok((
        crate::report::median(of_ours),
        crate::report::median(of_floor),
    ))
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn real(value: u64) -> f64 {
    value as f64
}
