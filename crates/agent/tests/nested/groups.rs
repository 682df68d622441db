//! Control groups that nobody sweeps any more: their data folder was removed by hand.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use outlive_api::launch::{LaunchConfig, RuntimeKind};
use outlive_core::{event::ExitStatus, id::SandboxId};
use rustix::fs::{FlockOperation, flock};

use crate::common::sandbox::{Sandbox, call, us};

fn tidy() {
    call(&us(), "tidy-groups", &());
}

/// Limited in every way that needs a group.
fn limited() -> Sandbox {
    Sandbox::launch_with(RuntimeKind::Namespace, |config: &mut LaunchConfig| {
        config.limits.memory_bytes_max = Some(256 << 20);
        config.limits.pids_max = Some(100);
    })
}

/// Where this machine has groups for the sandboxes of this test, one in each hierarchy.
fn folders(of: &Sandbox) -> Vec<PathBuf> {
    let places = Path::new(&of.config.directory).join("cgroups");
    let places = std::fs::read_to_string(places).unwrap();
    let folders = places.lines().map(|base| Path::new(base).join("outlive"));
    folders.collect()
}

/// Thousands of them lay on a machine whose tests had removed the data folders of their servers.
pub(crate) fn groups_that_nobody_holds_are_removed_and_no_others() {
    let living = limited();
    let folders = folders(&living);
    assert!(!folders.is_empty());
    let of = |id: &SandboxId| -> Vec<PathBuf> {
        let groups = folders.iter().map(|folder| folder.join(id.as_str()));
        groups.filter(|group| group.exists()).collect()
    };
    let its_own = of(&living.config.sandbox);
    assert_eq!(its_own.len(), folders.len());
    // Empty, as those of a sandbox of another server that has nothing to do right now.
    let bits = u64::from(std::process::id()) << 20;
    let (held, left) = (SandboxId::from_bits(bits), SandboxId::from_bits(bits + 1));
    for folder in &folders {
        for id in [&held, &left] {
            std::fs::create_dir_all(folder.join(id.as_str()).join("work/ses-1.1")).unwrap();
        }
    }
    let holds: Vec<File> = of(&held)
        .iter()
        .map(|group| {
            let kept = File::open(group.join("work")).unwrap();
            flock(&kept, FlockOperation::LockShared).unwrap();
            kept
        })
        .collect();
    tidy();
    assert_eq!(of(&left), Vec::<PathBuf>::new());
    assert_eq!(of(&held).len(), folders.len());
    assert_eq!(of(&living.config.sandbox), its_own);
    drop(holds);
    tidy();
    assert_eq!(of(&held), Vec::<PathBuf>::new());
    // Limits are in force as before.
    let (status, _) = living.run("ses-fine", &["true"]);
    assert_eq!(status, ExitStatus::Code(0));
    let (status, _) = living.run("ses-large", &["python3", "-c", "bytearray(600 << 20)"]);
    assert_ne!(status, ExitStatus::Code(0));
    assert!(living.kill_supervisor());
    tidy();
    let (status, _) = living.run("ses-again", &["true"]);
    assert_eq!(status, ExitStatus::Code(0));
}
