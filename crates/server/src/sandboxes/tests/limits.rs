//! Limits that change while a sandbox runs.

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

/// What is shown of a sandbox, which is what holds.
fn shown(stage: &Stage, server: &Server, id: &SandboxId) -> Option<u64> {
    server.runtime.block_on(async {
        let sandbox = server.engine.get("acme", id).unwrap();
        // Its task has looked at what the server before left.
        sandbox.configure(ConfigChange::default()).await.unwrap();
        let shown = asked_memory(&sandbox.record().config);
        assert_eq!(shown, stage.host.memory(id));
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
