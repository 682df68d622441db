//! What the rest of the supervisor sees of a session while its driver works.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use outlive_api::agent::SessionView;
use outlive_core::session::Session;
use tokio::sync::{Notify, watch};

use crate::journal::SessionJournal;

/// Whether a session can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its journal is being made or opened.
    Opening,
    /// It is there.
    Open,
    /// It is deleted, or was never made.
    Gone,
    /// Its journal can't be used; why.
    Broken(String),
}

/// What the rest of the supervisor sees of a session. Reading it never waits for the driver.
#[derive(Debug)]
pub(crate) struct Face {
    pub(crate) standing: watch::Sender<Standing>,
    shown: RefCell<Option<(Rc<Session>, SessionJournal)>>,
    /// The last event that the session on show may be told beside, while facts after it are on
    /// their way to the disk: whoever follows from there on sees those facts as events.
    latest_max: Cell<u64>,
    /// The last of the facts on their way to the disk, and the news that they are shown.
    pending: Cell<Option<u64>>,
    settled: Notify,
}

impl Face {
    /// Of a session that is being opened.
    pub(crate) fn new() -> Rc<Self> {
        let (standing, _) = watch::channel(Standing::Opening);
        Rc::new(Self {
            standing,
            shown: RefCell::new(None),
            latest_max: Cell::new(u64::MAX),
            pending: Cell::new(None),
            settled: Notify::new(),
        })
    }

    /// Returns once the session on show is what the journal has published. The thread that syncs
    /// publishes facts a moment before the driver shows them, and whoever saw them as events
    /// wants to see them here.
    pub(crate) async fn settled(&self) {
        while self.is_behind() {
            self.settled.notified().await;
        }
    }

    fn is_behind(&self) -> bool {
        let shown = self.shown.borrow();
        match (self.pending.get(), shown.as_ref()) {
            (Some(last), Some((_, journal))) => journal.window().1 >= last,
            (Some(_), None) | (None, _) => false,
        }
    }

    /// The session as it is now; `None` unless it is open.
    pub(crate) fn session(&self) -> Option<Rc<Session>> {
        self.shown
            .borrow()
            .as_ref()
            .map(|(session, _)| Rc::clone(session))
    }

    /// The session for the server; `None` unless it is open.
    pub(crate) fn view(&self) -> Option<SessionView> {
        let shown = self.shown.borrow();
        let (session, journal) = shown.as_ref()?;
        // Output is applied by the driver when it next acts; its activity is shown at once.
        let checkpoint = match journal.output_pending() {
            Some(output) => {
                let mut session = Session::clone(session);
                session.apply(&output);
                session.checkpoint()
            }
            None => session.checkpoint(),
        };
        let (earliest, latest) = journal.window();
        Some(SessionView {
            checkpoint,
            earliest,
            latest: latest.min(self.latest_max.get()),
        })
    }

    /// Whether its journal has nothing that its driver has yet to look at.
    pub(crate) fn is_settled(&self) -> bool {
        let shown = self.shown.borrow();
        shown
            .as_ref()
            .is_some_and(|(_, journal)| journal.is_settled())
    }

    /// Bytes of its journal that are retained.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.shown
            .borrow()
            .as_ref()
            .map_or(0, |(_, journal)| journal.retained_bytes())
    }

    /// Facts are on their way to the journal, whose last event is this one.
    pub(super) fn facts_begin(&self, latest: u64) {
        self.latest_max.set(latest);
    }

    /// The last of them is this one, and on its way to the disk.
    pub(super) fn facts_written(&self, last: u64) {
        self.pending.set(Some(last));
    }

    /// They are shown, or failed.
    pub(super) fn facts_done(&self) {
        self.latest_max.set(u64::MAX);
        self.pending.set(None);
        self.settled.notify_waiters();
    }

    pub(super) fn show(&self, session: &Rc<Session>, journal: &SessionJournal) {
        *self.shown.borrow_mut() = Some((Rc::clone(session), journal.clone()));
    }
}
