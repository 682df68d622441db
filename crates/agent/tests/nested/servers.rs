//! Stories about what all sandboxes share, and how long it is there. They need root, `ip` and `nft`.

use std::{
    io::{Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdout, Stdio},
};

use outlive_api::launch::{Egress, HoldConfig};

use crate::{
    common::sandbox::{Sandbox, us},
    host::{FORWARDS, HOST, Host, tool},
    networks::{Heard, ask, bridged, forwards, nothing_is_left},
};

/// A server as the network's rules know it.
pub(crate) struct Server {
    hold: Child,
    answers: ChildStdout,
}

impl Server {
    /// One that has begun.
    pub(crate) fn start(sandboxes: &Path) -> Self {
        Self::begin(sandboxes).ready()
    }

    fn begin(sandboxes: &Path) -> Self {
        let mut hold = us()("hold")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let sandboxes = sandboxes.to_str().unwrap().to_owned();
        let message = minicbor::to_vec(HoldConfig { sandboxes }).unwrap();
        hold.stdin.take().unwrap().write_all(&message).unwrap();
        let answers = hold.stdout.take().unwrap();
        Self { hold, answers }
    }

    fn ready(mut self) -> Self {
        let mut answer = HoldConfig::READY.map(|_| 0);
        self.answers.read_exact(&mut answer).unwrap();
        assert_eq!(answer, HoldConfig::READY);
        self
    }

    /// Ends, in whichever way; to be waited for.
    fn end(self) -> Child {
        drop(self.answers);
        self.hold
    }

    /// Ends, and all that follows has happened.
    pub(crate) fn stop(self) {
        gone(self.end());
    }
}

fn gone(mut hold: Child) {
    assert!(hold.wait().unwrap().success());
}

fn rules() -> String {
    tool("nft list ruleset")
}

fn reaches_the_world(sandbox: &Sandbox, name: &str, host: &Host) {
    let said = ask(sandbox, name, host.services[0]);
    assert_eq!(said, format!("hello {HOST}\n"));
}

/// The first sandbox on a machine took four times as long as every other one: what all share went
/// with the last one, and came with the next.
pub(crate) fn what_sandboxes_share_is_there_while_a_server_runs() {
    let host = Host::new();
    let none = tempfile::tempdir().unwrap();
    let first = Server::start(none.path());
    let idle = rules();
    assert!(idle.contains("table inet outlive {"), "{idle}");
    for name in ["ses-first", "ses-next"] {
        let heard = Heard::begin();
        let sandbox = bridged(5, Egress::default());
        assert!(!heard.nft_wrote(), "{name}");
        reaches_the_world(&sandbox, name, &host);
        assert!(forwards("up0"));
        let heard = Heard::begin();
        drop(sandbox);
        assert!(!heard.nft_wrote(), "{name}");
        assert_eq!(rules(), idle, "{name}");
        assert!(!forwards("up0"), "{name}");
    }
    // A second server is there when the first one ends.
    let second = Server::start(none.path());
    first.stop();
    assert_eq!(rules(), idle);
    second.stop();
    nothing_is_left();
}

pub(crate) fn sandboxes_outlive_servers_with_their_rules() {
    let host = Host::new();
    let none = tempfile::tempdir().unwrap();
    let first = Server::start(none.path());
    let idle = rules();
    let sandbox = bridged(5, Egress::default());
    let busy = rules();
    first.stop();
    assert_eq!(rules(), busy);
    reaches_the_world(&sandbox, "ses-alone", &host);
    let second = Server::start(none.path());
    assert_eq!(rules(), busy);
    reaches_the_world(&sandbox, "ses-again", &host);
    drop(sandbox);
    assert_eq!(rules(), idle);
    // Who sees to it may be killed: then all goes with the last sandbox.
    let sandbox = bridged(5, Egress::default());
    let mut killed = second.hold;
    killed.kill().unwrap();
    killed.wait().unwrap();
    reaches_the_world(&sandbox, "ses-killed", &host);
    drop(sandbox);
    nothing_is_left();
}

/// A firewall of the host that is loaded anew takes all rules along.
pub(crate) fn a_sandbox_is_made_after_a_firewall_removed_all_rules() {
    let host = Host::new();
    let none = tempfile::tempdir().unwrap();
    let server = Server::start(none.path());
    let idle = rules();
    tool("nft flush ruleset");
    let sandbox = bridged(5, Egress::default());
    reaches_the_world(&sandbox, "ses-out", &host);
    assert!(!host.routes_for_the_world());
    drop(sandbox);
    assert_eq!(rules(), idle);
    tool("nft flush ruleset");
    server.stop();
    nothing_is_left();
}

/// What is there without a sandbox is in nobody's way.
pub(crate) fn a_host_becomes_a_router_beside_a_server() {
    let host = Host::new();
    let none = tempfile::tempdir().unwrap();
    let server = Server::start(none.path());
    drop(bridged(5, Egress::default()));
    assert!(!host.routes_for_the_world());
    std::fs::write(FORWARDS, "1").unwrap();
    assert!(host.routes_for_the_world());
    let sandbox = bridged(5, Egress::default());
    reaches_the_world(&sandbox, "ses-out", &host);
    assert!(host.routes_for_the_world());
    drop(sandbox);
    // It becomes one while a sandbox has the world answer: then the next sandbox learns of it.
    std::fs::write(FORWARDS, "0").unwrap();
    let sandbox = bridged(5, Egress::default());
    assert!(!host.routes_for_the_world());
    std::fs::write(FORWARDS, "1").unwrap();
    drop(bridged(9, Egress::default()));
    assert!(host.routes_for_the_world());
    reaches_the_world(&sandbox, "ses-still", &host);
    drop(sandbox);
    server.stop();
    assert!(host.routes_for_the_world());
    nothing_is_left();
}

/// Whichever is faster, rules are there while a server is, and not for longer.
pub(crate) fn servers_come_and_go_at_once() {
    let _host = Host::new();
    let none = tempfile::tempdir().unwrap();
    let mut idle = None;
    for _ in 0..12 {
        let leaving = [(); 2].map(|()| Server::start(none.path()));
        let idle = idle.get_or_insert_with(rules);
        let coming = Server::begin(none.path());
        let left = leaving.map(Server::end);
        let come = coming.ready();
        left.into_iter().for_each(gone);
        assert_eq!(rules(), *idle);
        // One is killed before it knows that the rules are there.
        let last = [come, Server::begin(none.path())].map(Server::end);
        last.into_iter().for_each(gone);
        nothing_is_left();
    }
}
