//! One live runtime: its keeper, and a link that is made anew while the supervisor restarts.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    path::PathBuf,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use outlive_api::agent::{Outcome, Request, Welcome};
use outlive_core::{
    id::{SandboxId, SessionId},
    session::Rejection,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    asked::{Asked, Memory},
    keeper::Keeper,
    link::{self, Link, LinkError, Lost},
    tails::Tails,
};
use crate::limits::{AGENT_WAIT_MAX, HANDSHAKE_MAX, RECONNECT_MAX, RECONNECT_MIN};

/// A call that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// The supervisor is away for longer than a call waits; the call was not carried out.
    #[error("the supervisor of the sandbox does not answer")]
    Away,
    /// The link broke under the call, and sending it again might carry it out twice.
    #[error("the supervisor was restarted during the call; whether it took effect is not known")]
    Unknown,
    /// The supervisor says nothing at all, and may carry the call out when it does again.
    #[error(
        "the supervisor of the sandbox does not answer; whether the call takes effect is not known"
    )]
    Silent,
    /// The runtime is gone.
    #[error("the runtime of the sandbox ended")]
    RuntimeGone {
        /// What became of the call.
        call: Lost,
    },
}

/// See the module. Dropping it ends its link, not the runtime.
#[derive(Debug)]
pub(crate) struct Agent {
    state: watch::Receiver<State>,
    keeper: Keeper,
    tails: Arc<Tails>,
    env: Env,
    _stop: DropGuard,
}

/// The sandbox's variables as they should be; every new link tells them first.
type Env = Arc<Mutex<BTreeMap<String, String>>>;

/// See [`Agent::changes`].
#[derive(Debug)]
pub(crate) struct Changes {
    state: watch::Receiver<State>,
}

impl Changes {
    /// Returns once something changed since this was made, or since the last time.
    pub(crate) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.state.changed().await
    }
}

#[derive(Debug, Clone)]
enum State {
    /// The supervisor is away.
    Away,
    /// The link stands.
    Up(Arc<Link>),
    /// It does, and nobody says anything at the other end: the supervisor was stopped, or hangs.
    Silent(Arc<Link>),
    /// The keeper is gone: nobody will ever answer again.
    Gone,
}

impl Agent {
    /// Starts to hold a link to the supervisor of this keeper, until `stop` or its own end.
    pub(crate) fn start(
        sandbox: SandboxId,
        state_dir: PathBuf,
        keeper: Keeper,
        tails: Arc<Tails>,
        env: BTreeMap<String, String>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (publish, state) = watch::channel(State::Away);
        let stop = stop.child_token();
        let env = Arc::new(Mutex::new(env));
        let holder = Holder {
            sandbox,
            state_dir,
            keeper: keeper.clone(),
            tails: Arc::clone(&tails),
            env: Arc::clone(&env),
            tasks: tasks.clone(),
            publish,
        };
        let stopped = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = holder.run() => {}
                () = stopped.cancelled() => holder.let_go(State::Away),
            }
        });
        Self {
            state,
            keeper,
            tails,
            env,
            _stop: stop.drop_guard(),
        }
    }

    /// Who answers, once somebody does.
    pub(crate) async fn welcome(&self, within: std::time::Duration) -> Result<Welcome, NoAnswer> {
        Ok(self.link(Instant::now() + within).await?.welcome().clone())
    }

    /// Whether it knows what it is to leave without its journals.
    pub(crate) fn discards(&self) -> bool {
        match &*self.state.borrow() {
            State::Up(link) | State::Silent(link) => link.welcome().discards,
            State::Away | State::Gone => false,
        }
    }

    /// Moves when the link is lost, and when there is another.
    pub(crate) fn changes(&self) -> Changes {
        let mut state = self.state.clone();
        state.mark_unchanged();
        Changes { state }
    }

    /// Its keeper.
    pub(crate) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Returns once the runtime is gone.
    pub(crate) async fn gone(&self) {
        let mut state = self.state.clone();
        let ended = state
            .wait_for(|state| matches!(state, State::Gone))
            .await
            .is_err();
        if ended {
            // The holder ended with the server, which says nothing about the runtime.
            std::future::pending::<()>().await;
        }
    }

    /// Whether the supervisor is there and says nothing.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(&*self.state.borrow(), State::Silent(_))
    }

    /// Whether a link stands now.
    #[cfg(test)]
    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(_))
    }

    /// Asks the supervisor and waits for its answer, across restarts of it.
    pub(crate) async fn call(&self, request: Request) -> Result<Outcome, NoAnswer> {
        self.ask(&mut Asked::new(request)).await
    }

    /// The same of a call that another runtime of the sandbox may have carried out.
    pub(crate) async fn ask(&self, asked: &mut Asked) -> Result<Outcome, NoAnswer> {
        if let Request::Configure { env } = asked.request() {
            // A link that is made meanwhile must not tell the old ones after the new ones.
            self.env
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone_from(env);
        }
        loop {
            let link = match self.link(Instant::now() + AGENT_WAIT_MAX).await {
                Ok(link) => link,
                Err(error) => return without_link(asked, error),
            };
            let memory = memory_of(&link);
            if !asked.may_go_to(memory) {
                return Err(NoAnswer::Unknown);
            }
            if asked.lost() == Lost::Unknown
                && let Some(outcome) = self.unless_silent(settled(&link, asked.request())).await?
            {
                self.learn(asked.request(), &outcome);
                return Ok(outcome);
            }
            let mark = asked.mark(|session| self.tails.latest(session));
            let answer = self.unless_silent(link.call(asked.request().clone(), mark));
            match answer.await? {
                Ok(Outcome::Forgotten) => return Err(NoAnswer::Unknown),
                Ok(outcome) => {
                    let outcome = read_again(asked.request(), outcome, asked.lost());
                    self.learn(asked.request(), &outcome);
                    return Ok(outcome);
                }
                Err(Lost::NotSent) => {}
                Err(Lost::Unknown) => {
                    asked.lose(memory);
                    // Whom it can't be sent to again in any case is not waited for.
                    if !asked.may_go_to(Memory::Remembers) {
                        return Err(NoAnswer::Unknown);
                    }
                }
            }
        }
    }

    /// What the supervisor answers, unless it falls silent.
    async fn unless_silent<T>(&self, answer: impl Future<Output = T>) -> Result<T, NoAnswer> {
        let mut state = self.state.clone();
        let silence = async {
            let silent = state.wait_for(|state| matches!(state, State::Silent(_)));
            if silent.await.is_err() {
                // The holder ended and closed the link, which the call learns by itself.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            answer = answer => Ok(answer),
            () = silence => Err(NoAnswer::Silent),
        }
    }

    /// What an answer says about a session's window is as good as the watch.
    fn learn(&self, request: &Request, outcome: &Outcome) {
        if let (Some(session), Outcome::Session(view)) = (subject(request), outcome) {
            self.tails.learn(session, view.earliest, view.latest);
        }
    }

    async fn link(&self, until: Instant) -> Result<Arc<Link>, NoAnswer> {
        let mut state = self.state.clone();
        let answers = |state: &State| !matches!(state, State::Away | State::Silent(_));
        match timeout_at(until, state.wait_for(answers)).await {
            Ok(Ok(state)) => match &*state {
                State::Up(link) => Ok(Arc::clone(link)),
                State::Gone | State::Away | State::Silent(_) => Err(NoAnswer::RuntimeGone {
                    call: Lost::NotSent,
                }),
            },
            Ok(Err(_)) | Err(_) => Err(NoAnswer::Away),
        }
    }
}

/// What a call hears when nobody is there to be asked.
fn without_link(asked: &Asked, error: NoAnswer) -> Result<Outcome, NoAnswer> {
    match (error, asked.lost()) {
        // Leaving is what it was asked for.
        (NoAnswer::RuntimeGone { .. }, Lost::Unknown)
            if matches!(asked.request(), Request::Release | Request::Discard) =>
        {
            Ok(Outcome::Done)
        }
        (NoAnswer::RuntimeGone { .. }, call) => Err(NoAnswer::RuntimeGone { call }),
        (NoAnswer::Away, Lost::Unknown) => Err(NoAnswer::Unknown),
        (other, _) => Err(other),
    }
}

fn memory_of(link: &Link) -> Memory {
    if link.welcome().remembers_calls {
        Memory::Remembers
    } else {
        Memory::Forgets
    }
}

/// Looks whether a creation that may have arrived did.
async fn settled(link: &Link, request: &Request) -> Option<Outcome> {
    let Request::Create { session, .. } = request else {
        return None;
    };
    match link.call(Request::Get(session.clone()), None).await {
        Ok(Outcome::Session(view)) => Some(Outcome::Session(view)),
        Ok(_) | Err(_) => None,
    }
}

/// The answer to a request that was sent a second time, read as the answer to the first.
fn read_again(request: &Request, outcome: Outcome, lost: Lost) -> Outcome {
    match (request, outcome, lost) {
        (Request::Delete(_), Outcome::Rejected(Rejection::NotFound), Lost::Unknown) => {
            Outcome::Done
        }
        (_, outcome, _) => outcome,
    }
}

/// The session whose view a request answers with.
fn subject(request: &Request) -> Option<&SessionId> {
    match request {
        Request::Get(session)
        | Request::Create { session, .. }
        | Request::Update { session, .. }
        | Request::SetDesiredState { session, .. }
        | Request::NewAttempt { session, .. } => Some(session),
        Request::Configure { .. }
        | Request::List
        | Request::Write { .. }
        | Request::Signal { .. }
        | Request::Resize { .. }
        | Request::Delete(_)
        | Request::Watch
        | Request::Release
        | Request::Discard
        | Request::Freeze
        | Request::Thaw
        | Request::Upgrade { .. }
        | Request::Health => None,
    }
}

/// The task behind an [`Agent`].
struct Holder {
    sandbox: SandboxId,
    state_dir: PathBuf,
    keeper: Keeper,
    tails: Arc<Tails>,
    env: Env,
    tasks: TaskTracker,
    publish: watch::Sender<State>,
}

impl Holder {
    async fn run(&self) {
        tokio::select! {
            () = self.hold() => {}
            () = self.keeper.gone() => {}
        }
        self.let_go(State::Gone);
    }

    fn let_go(&self, state: State) {
        if let State::Up(link) | State::Silent(link) = self.publish.send_replace(state) {
            link.close();
        }
    }

    async fn hold(&self) {
        let mut pause = RECONNECT_MIN;
        loop {
            match self.connect().await {
                Ok(link) => {
                    pause = RECONNECT_MIN;
                    let link = Arc::new(link);
                    self.publish.send_replace(State::Up(Arc::clone(&link)));
                    tokio::select! {
                        () = link.closed() => {}
                        never = self.heed(&link) => match never {},
                    }
                    self.publish.send_replace(State::Away);
                }
                Err(error) => {
                    // No socket yet, or nobody behind it: the keeper is starting a supervisor.
                    if !is_starting(&error) {
                        tracing::warn!(sandbox = %self.sandbox, %error, "no link to a supervisor");
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(RECONNECT_MAX);
                }
            }
        }
    }

    /// Says when nobody answers, and when somebody does again. What was sent stays with the
    /// supervisor, so the link stays, too: another would carry the same calls a second time.
    async fn heed(&self, link: &Arc<Link>) -> Infallible {
        loop {
            let heard = link.quiet().await;
            let mut greeted = pin!(self.greeted());
            let in_time = timeout(HANDSHAKE_MAX, &mut greeted).await.is_ok();
            if in_time || link.heard() != heard {
                continue; // A call may take its time.
            }
            tracing::warn!(sandbox = %self.sandbox, "a supervisor does not answer");
            self.publish.send_replace(State::Silent(Arc::clone(link)));
            greeted.await;
            tracing::info!(sandbox = %self.sandbox, "a supervisor answers again");
            self.publish.send_replace(State::Up(Arc::clone(link)));
        }
    }

    /// Returns once the supervisor has a word for somebody new: its link may be full of calls that
    /// wait.
    async fn greeted(&self) {
        while let Err(error) = link::greeted(&self.state_dir, &self.sandbox).await {
            tracing::debug!(sandbox = %self.sandbox, %error, "a supervisor greets nobody");
            sleep(RECONNECT_MAX).await;
        }
    }

    async fn connect(&self) -> Result<Link, LinkError> {
        let link = Link::connect(
            &self.state_dir,
            &self.sandbox,
            Arc::clone(&self.tails),
            &self.tasks,
        );
        let link = timeout(HANDSHAKE_MAX, link)
            .await
            .unwrap_or_else(|_elapsed| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        match self.tell_env(&link).await {
            Ok(()) => Ok(link),
            Err(error) => {
                link.close();
                Err(error.into())
            }
        }
    }

    /// A supervisor that was started anew knows the variables of the launch, not what became of
    /// them since.
    async fn tell_env(&self, link: &Link) -> io::Result<()> {
        let env = self
            .env
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match timeout(HANDSHAKE_MAX, link.call(Request::Configure { env }, None)).await {
            Ok(Ok(Outcome::Done)) => Ok(()),
            // Its workload can still be reached.
            Ok(Ok(other)) => {
                tracing::error!(sandbox = %self.sandbox, ?other, "a supervisor does not take the sandbox's variables");
                Ok(())
            }
            Ok(Err(_lost)) => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
            Err(_elapsed) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }
}

fn is_starting(error: &LinkError) -> bool {
    matches!(error, LinkError::Io(error) if matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    ))
}
