//! What the sandbox calls show of a sandbox.

use outlive_api::{
    network::{Network, NetworkMode},
    policy::NetworkPolicy,
    sandbox::{
        CreatedSandbox, RuntimeInfo, Sandbox as SandboxAnswer, SandboxList, SandboxStatus,
        SandboxSummary,
    },
    time,
};
use outlive_core::{sandbox::Observed, time::Timestamp};

use crate::{
    runtime::backend_of,
    sandboxes::{Engine, network, snapshot_rest::image_name},
    store::SandboxRecord,
};

pub(in crate::sandboxes) fn status_of(observed: Observed) -> SandboxStatus {
    match observed {
        Observed::Starting => SandboxStatus::Starting,
        // Whoever waits for a new generation must not wait for one that only stands still.
        Observed::Running
        | Observed::Freezing
        | Observed::Frozen
        | Observed::Thawing
        | Observed::Releasing => SandboxStatus::Running,
        Observed::Released => SandboxStatus::Paused,
        Observed::Failed => SandboxStatus::Failed,
        Observed::Deleting => SandboxStatus::Terminating,
    }
}

pub(super) fn created(record: &SandboxRecord) -> CreatedSandbox {
    let runtime_id = runtime_id(record);
    CreatedSandbox {
        sandbox_id: record.id.to_string(),
        status: status_of(record.state.observed),
        template: record.template.clone(),
        pod_name: runtime_id.clone(),
        runtime_id,
    }
}

pub(super) fn page(records: &[SandboxRecord], has_more: bool) -> SandboxList {
    SandboxList {
        sandboxes: records.iter().map(summary).collect(),
        count: records.len() as u64,
        has_more,
    }
}

fn summary(record: &SandboxRecord) -> SandboxSummary {
    SandboxSummary {
        id: record.id.to_string(),
        template_id: record.template.clone(),
        status: status_of(record.state.observed),
        paused: record.state.observed == Observed::Released,
        state: record.state.observed.word().to_owned(),
        runtime_generation: record.state.generation.0,
        created_at: time::text(record.created_at),
        updated_at: time::text(record.updated_at),
        expires_at: deadline(record.state.expires_at),
        hard_expires_at: deadline(record.state.hard_expires_at),
    }
}

pub(super) fn full(engine: &Engine, record: &SandboxRecord) -> SandboxAnswer {
    let runtime_id = runtime_id(record);
    SandboxAnswer {
        summary: summary(record),
        team_id: record.owner.to_string(),
        auto_resume: record.config.auto_resume,
        pod_name: runtime_id.clone(),
        runtime_id,
        claimed_at: time::text(record.state.claimed_at),
        resources: record.config.resources.clone().map(Into::into),
        network: Some(shown_network(engine, record)),
        image: Some(image_of(record)),
        disk: engine.disk(record),
        runtime: Some(runtime_of(engine, record)),
    }
}

/// The image a sandbox was made from.
pub(crate) fn image_of(record: &SandboxRecord) -> String {
    image_name(record.config.image.as_ref()).to_owned()
}

pub(super) fn runtime_id(record: &SandboxRecord) -> String {
    format!("{}-g{}", record.id, record.state.generation.0)
}

/// What it had when it ran last, and has at least when it runs again.
fn runtime_of(engine: &Engine, record: &SandboxRecord) -> RuntimeInfo {
    let (kind, isolation) = if let Some(tier) = record.isolation {
        (backend_of(tier), tier.name())
    } else {
        let usual = engine.capabilities();
        (usual.runtime, usual.isolation)
    };
    RuntimeInfo {
        kind: kind.to_owned(),
        isolation: isolation.to_owned(),
        silent: engine.is_silent(&record.id),
    }
}

/// The network in our words, with the mode that holds, or will with the next start.
fn shown_network(engine: &Engine, record: &SandboxRecord) -> Network {
    let mode = engine.network(&record.config, record.isolation);
    let asked = record.config.network.clone().unwrap_or_default();
    Network {
        mode: Some(mode),
        egress: (mode == NetworkMode::Bridge && asked.policy.is_none())
            .then(|| asked.egress.unwrap_or_default()),
        policy: asked.policy,
        in_force: engine.connected(record).filter(|now| *now != mode),
    }
}

/// In the words of the vendor's clients, who send back what they were shown: nothing else is in it.
pub(super) fn network_of(engine: &Engine, record: &SandboxRecord) -> NetworkPolicy {
    let connected = engine.network(&record.config, record.isolation);
    network::policy_of(record.config.network.as_ref(), connected)
}

pub(super) fn deadline(at: Option<Timestamp>) -> String {
    at.map_or_else(|| time::NOT_SET.to_owned(), time::text)
}
