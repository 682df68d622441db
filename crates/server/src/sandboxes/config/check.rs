//! What a client asks for, checked.

use std::collections::BTreeMap;

use outlive_api::{error::ApiError, sandbox as wire};
use outlive_core::spec::User;

use super::{ConfigChange, IdleKind, IdleRule, Resources, bytes_of, millicores_of};
use crate::{
    limits::{
        DISK_BYTES_MIN, ENV_BYTES_MAX, ENV_STRING_BYTES_MAX, MEMORY_BYTES_MIN, TTL_SECONDS_MAX,
    },
    sandboxes::network,
};

/// Checks what a client asks for.
pub(crate) fn check(asked: wire::SandboxConfig) -> Result<ConfigChange, ApiError> {
    if asked.webhook.is_some_and(|value| !value.is_null()) {
        return Err(ApiError::not_implemented("webhooks"));
    }
    if asked.image.is_some() {
        return Err(ApiError::bad_request(
            "the image of a sandbox can't be changed; make another sandbox",
        ));
    }
    if asked.services.is_some_and(|services| !services.is_empty()) {
        return Err(ApiError::not_implemented("services"));
    }
    Ok(ConfigChange {
        env_vars: asked.env_vars.map(check_env).transpose()?,
        ttl: asked.ttl.map(|ttl| check_seconds("ttl", ttl)).transpose()?,
        hard_ttl: asked
            .hard_ttl
            .map(|ttl| check_seconds("hard_ttl", ttl))
            .transpose()?,
        auto_resume: asked.auto_resume,
        resources: asked.resources.map(check_resources).transpose()?,
        network: asked.network.map(network::check).transpose()?,
        user: asked.user.map(|user| check_user(&user)).transpose()?,
        idle: asked.idle.map(check_idle).transpose()?,
    })
}

fn check_idle(asked: wire::IdleRule) -> Result<IdleRule, ApiError> {
    let rule = IdleRule::default();
    let counts = match asked.counts {
        None => rule.counts,
        Some(words) => words
            .iter()
            .map(|word| idle_kind(word))
            .collect::<Result<_, _>>()?,
    };
    let after = asked
        .freeze_after_seconds
        .map(|seconds| check_seconds("idle.freeze_after_seconds", seconds))
        .transpose()?;
    Ok(IdleRule {
        freeze_after_seconds: after.filter(|seconds| *seconds > 0),
        counts,
    })
}

fn idle_kind(word: &str) -> Result<IdleKind, ApiError> {
    let found = IdleKind::ALL.into_iter().find(|kind| kind.word() == word);
    found.ok_or_else(|| {
        let known: Vec<_> = IdleKind::ALL.iter().map(|kind| kind.word()).collect();
        ApiError::bad_request(format!(
            "idle.counts: {word:?} is none of {}",
            known.join(", ")
        ))
    })
}

/// Whole seconds, bounded.
pub(crate) fn check_seconds(name: &str, seconds: i64) -> Result<u64, ApiError> {
    u64::try_from(seconds)
        .ok()
        .filter(|seconds| *seconds <= TTL_SECONDS_MAX)
        .ok_or_else(|| {
            ApiError::bad_request(format!("{name} must be 0 to {TTL_SECONDS_MAX} seconds"))
        })
}

fn check_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    let mut bytes = 0_usize;
    for (name, value) in &env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(ApiError::bad_request(
                "env_vars: a name is empty or holds '=', or a name or value holds a NUL",
            ));
        }
        if name.len() + value.len() + "=\0".len() > ENV_STRING_BYTES_MAX {
            return Err(ApiError::bad_request(format!(
                "env_vars: {} and its value are longer than the {ENV_STRING_BYTES_MAX} bytes with which \
                 a program can be started",
                name.get(..64).unwrap_or(name)
            )));
        }
        bytes = bytes.saturating_add(name.len() + value.len());
    }
    if bytes > ENV_BYTES_MAX {
        return Err(ApiError::bad_request(format!(
            "env_vars hold more than {ENV_BYTES_MAX} bytes"
        )));
    }
    Ok(env)
}

fn check_resources(asked: wire::Resources) -> Result<Resources, ApiError> {
    let quantity = |name: &str, text: Option<String>, read: fn(&str) -> Option<u64>| match text {
        Some(text) if read(&text).is_none_or(|value| value == 0) => {
            Err(ApiError::bad_request(format!(
                "resources.{name} must be {}",
                if name == "cpu" {
                    "a number of cores above 0, with three decimals at most, such as 0.5, or 500m"
                } else {
                    "a whole number above 0, with a unit (Ki Mi Gi Ti k M G T) or without, such as 512Mi"
                }
            )))
        }
        text => Ok(text),
    };
    let pids = match asked.pids {
        Some(pids) => Some(
            u64::try_from(pids)
                .ok()
                .filter(|pids| (1..=u64::from(u32::MAX)).contains(pids))
                .ok_or_else(|| {
                    ApiError::bad_request(format!(
                        "resources.pids must be a whole number from 1 to {}",
                        u32::MAX
                    ))
                })?,
        ),
        None => None,
    };
    let disk = quantity("disk", asked.disk, bytes_of)?;
    if disk
        .as_deref()
        .and_then(bytes_of)
        .is_some_and(|bytes| bytes < DISK_BYTES_MIN)
    {
        return Err(ApiError::bad_request("resources.disk must be 1Mi or more"));
    }
    let memory = asked.memory.as_deref().and_then(bytes_of);
    if memory.is_some_and(|bytes| (1..MEMORY_BYTES_MIN).contains(&bytes)) {
        return Err(ApiError::bad_request(format!(
            "resources.memory is bytes unless a unit such as Mi follows, and {} MiB at least: with \
             less hardly any program starts",
            MEMORY_BYTES_MIN >> 20
        )));
    }
    Ok(Resources {
        memory: quantity("memory", asked.memory, bytes_of)?,
        cpu: quantity("cpu", asked.cpu, millicores_of)?,
        pids,
        disk,
    })
}

/// `uid`, `uid:gid` or names.
fn check_user(text: &str) -> Result<String, ApiError> {
    match User::parse(text) {
        Ok(user) => Ok(user.to_string()),
        Err(problem) => Err(ApiError::bad_request(format!("user {problem}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 1.5Gi was no quantity such as 0.5, and so was 0.0001.
    #[test]
    fn what_is_no_quantity_is_told_how_it_is_written() {
        let (memory, cpu) = (Some("1.5Gi".to_owned()), Some("0.0001".to_owned()));
        let memory = wire::Resources {
            memory,
            ..wire::Resources::default()
        };
        let cpu = wire::Resources {
            cpu,
            ..wire::Resources::default()
        };
        for (asked, said) in [
            (memory, "memory must be a whole number"),
            (cpu, "three decimals"),
        ] {
            let message = check_resources(asked).unwrap_err().message;
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn a_memory_in_which_nothing_starts_is_refused_with_the_least() {
        let limited = |memory: &str| {
            let memory = Some(memory.to_owned());
            check_resources(wire::Resources {
                memory,
                ..wire::Resources::default()
            })
        };
        limited("4Mi").unwrap();
        for little in ["1", "512", "4095Ki"] {
            let message = limited(little).unwrap_err().message;
            assert!(message.contains("4 MiB at least"), "{message}");
        }
    }
}
