//! What the launcher is told, made of what a sandbox was asked to be.

use std::{fs, io, path::Path};

use outlive_api::{
    launch::{
        Cidr, CopiedSessions, Egress, Image, LaunchConfig, Limits, Link,
        NetworkMode as LaunchNetwork, Quota, RuntimeKind, User, WayOut,
    },
    network::NetworkMode,
};

use super::super::{Place, RuntimeError, Start};
use crate::{
    ids,
    limits::PIDS_DEFAULT,
    sandboxes::{
        config::{SandboxConfig, bytes_of, millicores_of},
        network,
    },
};

/// One generation, as a launcher makes it.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) start: &'a Start<'a>,
    pub(super) kind: RuntimeKind,
    pub(super) image: Image,
    /// The network that it gets.
    pub(super) network: NetworkMode,
    /// Addresses of this server's sandboxes.
    pub(super) pool: Cidr,
    /// What its file system sees to.
    pub(super) quota: Option<Quota>,
    pub(super) place: &'a Place,
}

/// What the newest launch of this sandbox was told; nothing when there was none.
pub(super) fn newest(place: &Place) -> Result<Option<LaunchConfig>, RuntimeError> {
    let Some(message) = newest_message(place)? else {
        return Ok(None);
    };
    let config = minicbor::decode(&message).map_err(|error| RuntimeError::Launcher {
        message: format!("{}: {error}", place.launch_config().display()),
    })?;
    Ok(Some(config))
}

/// The same as it was written down, before the launch, and brought to the disk beside it. A power
/// loss in between ended that launch, and may have left zeros or a beginning of this: there was none.
pub(super) fn newest_message(place: &Place) -> Result<Option<Vec<u8>>, RuntimeError> {
    let kept = place.launch_config();
    match fs::read(&kept) {
        Ok(message) if is_cut(&message) => Ok(None),
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(super::file("reading", &kept)(error)),
    }
}

fn is_cut(message: &[u8]) -> bool {
    message.iter().all(|byte| *byte == 0)
        || minicbor::decode::<LaunchConfig>(message).is_err_and(|error| error.is_end_of_input())
}

/// The same of a sandbox that was launched.
pub(super) fn launched(place: &Place) -> Result<LaunchConfig, RuntimeError> {
    let missing = || {
        let kept = place.launch_config();
        super::file("reading", &kept)(io::ErrorKind::NotFound.into())
    };
    newest(place)?.ok_or_else(missing)
}

/// What the launcher is told of it.
pub(super) fn launch_config(plan: Plan<'_>) -> Result<LaunchConfig, RuntimeError> {
    let start = plan.start;
    let of_image = start.config.image.as_ref().map(|image| &image.settings);
    Ok(LaunchConfig {
        sandbox: start.sandbox.clone(),
        generation: start.generation,
        directory: path_text(plan.place.dir())?,
        runtime: plan.kind,
        ids: match plan.kind {
            RuntimeKind::Namespace | RuntimeKind::TwoUid => ids::of_slot(start.slot),
            RuntimeKind::Process => None,
        },
        image: plan.image,
        network: match plan.network {
            NetworkMode::None => LaunchNetwork::None,
            NetworkMode::Host => LaunchNetwork::Host,
            NetworkMode::Bridge => LaunchNetwork::Bridge,
        },
        hostname: start.sandbox.as_str().to_owned(),
        env: start.config.env(),
        user: user(start.config)?,
        cwd: of_image.and_then(|of| of.cwd.clone()).unwrap_or_default(),
        limits: limits(start.config)?,
        copied_sessions: CopiedSessions::Refuse,
        quota: plan.quota,
        way_out: match plan.network {
            NetworkMode::None | NetworkMode::Host => None,
            NetworkMode::Bridge => Some(WayOut {
                pool: plan.pool,
                preferred: start.slot,
                egress: egress(start.config)?,
                link: Link::Open,
            }),
        },
    })
}

/// What its workload may write.
pub(super) fn quota(config: &SandboxConfig) -> Result<Quota, RuntimeError> {
    let asked = config
        .resources
        .as_ref()
        .and_then(|asked| asked.disk.as_ref());
    let unreadable = || RuntimeError::Limits("resources.disk is unreadable".to_owned());
    let bytes = asked.map(|text| bytes_of(text).ok_or_else(unreadable));
    Ok(Quota {
        bytes_max: bytes.transpose()?,
    })
}

/// What its workload may use.
pub(super) fn limits(config: &SandboxConfig) -> Result<Limits, RuntimeError> {
    let asked = config.resources.clone().unwrap_or_default();
    let unreadable = |what: &str| RuntimeError::Limits(format!("resources.{what} is unreadable"));
    let memory = asked
        .memory
        .map(|text| bytes_of(&text).ok_or_else(|| unreadable("memory")))
        .transpose()?;
    let cpu = asked
        .cpu
        .map(|text| {
            millicores_of(&text)
                .and_then(|milli| u32::try_from(milli).ok())
                .ok_or_else(|| unreadable("cpu"))
        })
        .transpose()?;
    let pids = asked
        .pids
        .map(|pids| u32::try_from(pids).map_err(|_| unreadable("pids")))
        .transpose()?;
    Ok(Limits {
        memory_bytes_max: memory,
        pids_max: pids,
        cpu_millis_max: cpu,
        pids_wished: Some(PIDS_DEFAULT),
    })
}

pub(super) fn encoded<T: minicbor::Encode<()>>(message: &T) -> Result<Vec<u8>, RuntimeError> {
    minicbor::to_vec(message).map_err(|error| RuntimeError::Launcher {
        message: error.to_string(),
    })
}

/// Whom a sandbox's sessions run as that name nobody.
pub(super) fn user(config: &SandboxConfig) -> Result<User, RuntimeError> {
    let of_image = config.image.as_ref().and_then(|image| image.settings.user);
    let of_image = of_image.map(|ids| ids.to_string());
    match config.user.as_ref().or(of_image.as_ref()) {
        Some(text) => {
            User::parse(text).map_err(|problem| RuntimeError::Limits(format!("user {problem}")))
        }
        None => Ok(User::ROOT),
    }
}

/// The rules of a sandbox.
pub(super) fn egress(config: &SandboxConfig) -> Result<Egress, RuntimeError> {
    let rules = config.network.as_ref().map(network::rules).transpose();
    let rules = rules.map_err(|error| RuntimeError::Limits(error.message.to_string()))?;
    Ok(rules.unwrap_or_default())
}

pub(super) fn path_text(path: &Path) -> Result<String, RuntimeError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        RuntimeError::Limits("the data directory's path is not valid UTF-8".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use outlive_core::id::SandboxId;

    use super::*;
    use crate::runtime::Places;

    #[test]
    fn what_a_power_loss_left_of_a_launch_is_no_launch() {
        let data = tempfile::tempdir().unwrap();
        let place = Places::new(data.path()).of(&SandboxId::from_bits(1));
        fs::create_dir_all(place.dir()).unwrap();
        // The last one broke off in the sandbox's name.
        for left in [&b""[..], &[0; 186], b"\x8f\x70sbx-"] {
            fs::write(place.launch_config(), left).unwrap();
            assert!(newest(&place).unwrap().is_none());
            assert!(newest_message(&place).unwrap().is_none());
        }
        // Whatever else can't be read is a fault to be told of.
        fs::write(place.launch_config(), b"else").unwrap();
        newest(&place).unwrap_err();
    }
}
