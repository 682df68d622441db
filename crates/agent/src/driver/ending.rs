//! How an attempt's end is seen: when its first process is gone, its output drained and, where a
//! stop or the rule for descendants asks for it, its tree empty.
//!
//! ```text
//!   leader gone ─► drained (EOF, or idle) ─► status
//!        │ stop under way, or descendants: kill
//!        └───────► tree gone, or given up after the kill ─► drained ─► status
//!   killed, and the leader still there after a while ─► drained ─► status unknown
//! ```

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
};

use outlive_core::{event::ExitStatus, limits::KILL_WAIT, spec::Descendants};
use tokio::sync::Notify;

use crate::{
    log,
    machine::{Attempt, Ended},
};

/// Watches one attempt until it is over.
pub(super) struct Ending {
    future: RefCell<Pin<Box<dyn Future<Output = Ended>>>>,
    wish: Rc<Wish>,
}

#[derive(Debug, Default)]
struct Wish {
    tree_must_go: Cell<bool>,
    killed: Cell<bool>,
    changed: Notify,
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending")
            .field("wish", &self.wish)
            .finish_non_exhaustive()
    }
}

impl Ending {
    /// Starts to watch.
    pub(super) fn of<A: Attempt>(attempt: &Rc<A>, descendants: Descendants) -> Self {
        let wish = Rc::new(Wish::default());
        let future = Box::pin(end(Rc::clone(attempt), descendants, Rc::clone(&wish)));
        Self {
            future: RefCell::new(future),
            wish,
        }
    }

    /// A stop is under way: the end waits until the whole tree is gone.
    pub(super) fn tree_must_go(&self) {
        self.wish.tree_must_go.set(true);
        self.wish.changed.notify_waiters();
    }

    /// The tree was killed: the end waits no longer than [`KILL_WAIT`] for it.
    pub(super) fn killed(&self) {
        self.wish.killed.set(true);
        self.tree_must_go();
    }

    /// Resolves when the attempt is over. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Ended {
        self.future.get_mut().as_mut().await
    }
}

impl Wish {
    async fn until(&self, flag: &Cell<bool>) {
        while !flag.get() {
            self.changed.notified().await;
        }
    }
}

async fn end<A: Attempt>(attempt: Rc<A>, descendants: Descendants, wish: Rc<Wish>) -> Ended {
    let is_gone = tokio::select! {
        () = attempt.leader_gone() => true,
        () = given_up(&wish) => false,
    };
    if !is_gone {
        // It hangs in the kernel, on a disk that doesn't answer for example. Nobody waits for it
        // any longer, and how it will end is not known.
        log::warn(format_args!(
            "a killed process is still there: its end is unknown"
        ));
        attempt.drained().await;
        return Ended {
            status: ExitStatus::Unknown,
            ..attempt.status()
        };
    }
    tokio::select! {
        () = attempt.drained() => {}
        () = wish.until(&wish.tree_must_go) => {}
    }
    if descendants == Descendants::Kill && !wish.killed.get() {
        if let Err(error) = attempt.kill() {
            log::warn(format_args!("descendants could not be killed: {error}"));
        }
        wish.tree_must_go.set(true);
        wish.killed.set(true);
    }
    if wish.tree_must_go.get() {
        tokio::select! {
            () = attempt.tree_gone() => {}
            () = given_up(&wish) => log::warn(format_args!("a killed tree is still there")),
        }
        attempt.drained().await;
    }
    attempt.status()
}

/// Resolves when the tree was killed and had its time to go.
async fn given_up(wish: &Wish) {
    wish.until(&wish.killed).await;
    tokio::time::sleep(KILL_WAIT).await;
}
