//! Limits and networks that change while a sandbox runs.

use outlive_api::network::{Network, NetworkMode};
use outlive_core::id::SandboxId;

use super::*;
use crate::{runtime::fake::asked_memory, sandboxes::config::Resources};

const MIB: u64 = 1 << 20;

fn memory(text: &str) -> ConfigChange {
    ConfigChange {
        resources: Some(Resources {
            memory: Some(text.to_owned()),
            ..Resources::default()
        }),
        ..ConfigChange::default()
    }
}

fn network(mode: NetworkMode) -> ConfigChange {
    ConfigChange {
        network: Some(Network {
            mode: Some(mode),
            ..Network::default()
        }),
        ..ConfigChange::default()
    }
}

/// What is shown of a sandbox, which is what holds.
fn shown(stage: &Stage, server: &Server, id: &SandboxId) -> Option<u64> {
    server.runtime.block_on(async {
        let sandbox = server.engine.get("acme", id).unwrap();
        // Its task has looked at what the server before left.
        sandbox.configure(ConfigChange::default()).await.unwrap();
        let shown = asked_memory(&sandbox.record().config);
        assert_eq!(shown, stage.host.memory(id));
        assert_eq!(sandbox.record().config.network, stage.host.network(id));
        shown
    })
}

// The answer showed the new limits, and the runtime went on with the old ones.
#[test]
fn a_server_killed_while_limits_change_never_shows_others_than_hold() {
    for fixed in [false, true] {
        let steps = killed_at_every_step_on(
            |engine, host| async move {
                let sandbox = engine.create(new_sandbox()).await.unwrap();
                sandbox.configure(memory("64Mi")).await.unwrap();
                host.fix_limits(fixed);
                let changed = sandbox.configure(memory("32Mi")).await;
                assert_eq!(changed.is_err(), fixed);
                let cut = network(NetworkMode::None);
                sandbox.configure(cut).await.unwrap();
            },
            |stage, server, _at| {
                for id in stage.host.live() {
                    shown(stage, server, &id);
                }
            },
        );
        assert!(steps >= 8, "{steps} steps");
    }
}

#[test]
fn a_limit_that_can_not_be_had_now_is_not_stored() {
    let stage = Stage::set();
    let first = Server::sound(&stage.host);
    let id = first
        .run(async {
            let sandbox = first.engine.create(new_sandbox()).await.unwrap();
            sandbox.configure(memory("64Mi")).await.unwrap();
            stage.host.fix_limits(true);
            let refused = sandbox.configure(memory("32Mi")).await.unwrap_err();
            let CallError::Conflict { reason, message } = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(reason, "limit_not_now");
            assert!(message.contains("pause the sandbox"), "{message}");
            sandbox.record().id.clone()
        })
        .unwrap();
    assert_eq!(shown(&stage, &first, &id), Some(64 * MIB));
    first.kill();
    let second = Server::sound(&stage.host);
    assert_eq!(shown(&stage, &second, &id), Some(64 * MIB));
    // One that does not run is asked nothing.
    second.run(async {
        let sandbox = second.engine.get("acme", &id).unwrap();
        sandbox.pause().await.unwrap();
        sandbox.configure(memory("32Mi")).await.unwrap();
        sandbox.resume().await.unwrap();
    });
    assert_eq!(shown(&stage, &second, &id), Some(32 * MIB));
    second.kill();
}

// Limits that changed at the same moment were written with the network of before: one that was
// taken away came back.
#[test]
fn limits_and_a_network_that_change_at_once_both_hold() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    let id = server
        .run(async {
            let sandbox = server.engine.create(new_sandbox()).await.unwrap();
            let id = sandbox.record().id.clone();
            let (bridge, none) = (network(NetworkMode::Bridge), network(NetworkMode::None));
            for changes in [
                [none.clone(), memory("32Mi")],
                [memory("16Mi"), none.clone()],
            ] {
                sandbox.configure(bridge.clone()).await.unwrap();
                stage.host.changes.hold();
                let [first, second] = changes.map(|change| sandbox.configure(change));
                // Both are asked for before one of them is made.
                let (first, second, ()) = tokio::join!(biased; first, second, async {
                    stage.host.changes.entered().await;
                    stage.host.changes.let_go();
                });
                first.unwrap();
                second.unwrap();
                assert_eq!(stage.host.network(&id), none.network);
            }
            id
        })
        .unwrap();
    assert_eq!(shown(&stage, &server, &id), Some(16 * MIB));
    server.kill();
}
