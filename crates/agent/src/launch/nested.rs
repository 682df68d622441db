//! The nested namespaces O, W and P; see the module above for the picture.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use outlive_api::launch::{IdRange, Image, Isolation, IsolationTier, LaunchFailure, NetworkMode};
use rustix::{
    fs::{CWD, Mode, OFlags, open},
    mount::{MountPropagationFlags, OpenTreeFlags, mount_change, open_tree},
    pipe::{PipeFlags, pipe_with},
};

use super::{
    Ground, StartedKeeper, image, names,
    network::{self, Inside},
    report_failure,
    root::{self, RootPlan},
    step::{Fail, Step, failure},
};
use crate::{
    keeper::Place,
    process::spawn::{INNER_INIT, INNER_ROOT, INNER_USER},
    sys::{self, Forked},
};

/// The namespaces of the agent, without the network's.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;
/// The launcher's word to go on.
const GO: u8 = b'g';
/// What is off where no name server is in reach.
const NO_NAMES: &str = "names: this host's name server listens on loopback only; \
                        a sandbox needs another one in its /etc/resolv.conf";
/// What is off where mounts can't be shown through other ids.
const FOREIGN_USR: &str = "image `host`: /usr belongs to nobody inside and can't be changed; it is \
                           the host's root's, whom no id here stands for";
/// What is off where the launcher has one id.
pub(crate) const ONE_ID: &str = "ids: one for everything; inside there is only root, who has the id of the \
                      server's user, and of all other sandboxes, should it ever get out";

/// Detached mounts that only the host's root can make.
pub(super) struct Layers {
    /// The sandbox's directory, for `upper` and `work`.
    pub(super) disk: OwnedFd,
    /// Read-only layers of the root, topmost first.
    pub(super) lowers: Vec<OwnedFd>,
    /// `/usr` of the image `host`.
    pub(super) usr: Option<OwnedFd>,
}

pub(super) fn start(ground: &Ground<'_>, sandbox: &OwnedFd) -> Step<StartedKeeper> {
    let config = ground.config;
    let ids = config
        .ids
        .ok_or_else(|| failure("starting the agent", "no range of ids was given"))?;
    let mut off = ground.cgroups.off().to_vec();
    let layers = layers(ground, sandbox, ids, &mut off)?;
    if config.network == NetworkMode::Bridge && names::of_host(config.network).is_none() {
        off.push(NO_NAMES.to_owned());
    }
    let isolation = Isolation {
        tier: IsolationTier::Nested,
        journal_protected: true,
        off,
    };
    let mut kinds = NAMESPACES;
    if config.network != NetworkMode::Host {
        kinds |= libc::CLONE_NEWNET;
    }
    let (go_read, go) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
    enter_cgroup_namespace(ground)?;
    match sys::fork_into(kinds, ground.cgroups.agent()).step("making the agent's namespaces")? {
        Forked::Child => {
            drop(go);
            let failure = match outer(ground, ids, &layers, &go_read, &isolation) {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            report_failure(ground.report.as_fd(), &failure)
        }
        Forked::Parent { pid, pidfd } => {
            map_ids(pid, ids.first, ids.count())?;
            let say = |word: &[u8]| {
                // So few bytes go into the pipe as one.
                rustix::io::write(&go, word)
                    .map(drop)
                    .step("letting the agent go on")
            };
            if config.network == NetworkMode::Bridge {
                let (inside, connecting) = network::connect(config, pid)?;
                say(&[&[GO], inside.to_bytes().as_slice()].concat())?;
                connecting.finish()?;
            }
            say(&[GO])?;
            Ok(StartedKeeper {
                pid,
                pidfd,
                isolation,
            })
        }
    }
}

/// Writes both maps of a user namespace: its 0 is `first` out here.
///
/// In two parts: what is mapped as one must be one in our own map, too, and in that of an ordinary
/// user the first id comes from elsewhere than the others.
fn map_ids(pid: u32, first: u32, count: u32) -> Step<()> {
    let text = match count {
        1 => format!("0 {first} 1\n"),
        _ => format!("0 {first} 1\n1 {} {}\n", first + 1, count - 1),
    };
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{pid}/{map}");
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .step(&format!("writing {map}"))?;
    }
    Ok(())
}

fn layers(
    ground: &Ground<'_>,
    sandbox: &OwnedFd,
    ids: IdRange,
    off: &mut Vec<String>,
) -> Step<Layers> {
    let config = ground.config;
    let disk = detach(sandbox.as_fd(), "", OpenTreeFlags::AT_EMPTY_PATH)?;
    image::write_own(sandbox.as_fd(), config, ids)?;
    let mut lowers = vec![detach(sandbox.as_fd(), "own", OpenTreeFlags::empty())?];
    let usr = match &config.image {
        Image::Host { layer } => {
            lowers.push(detach(CWD, layer, OpenTreeFlags::empty())?);
            Some(detach(CWD, "/usr", OpenTreeFlags::empty())?)
        }
        Image::Layers(layers) => {
            for layer in layers {
                lowers.push(detach(CWD, layer, OpenTreeFlags::empty())?);
            }
            None
        }
    };
    let layers = Layers { disk, lowers, usr };
    match ids.of_namespace {
        None => show_as_own(&layers, ids, off)?,
        Some(count) => {
            off.extend(layers.usr.as_ref().map(|_| FOREIGN_USR.to_owned()));
            off.extend((count == 1).then(|| ONE_ID.to_owned()));
        }
    }
    Ok(layers)
}

/// Shows the layers, which are the host's root's, as the workload's root's.
fn show_as_own(layers: &Layers, ids: IdRange, off: &mut Vec<String>) -> Step<()> {
    let userns = user_namespace(ids.workload(), ids.workload_count())?;
    let mut said = false;
    for layer in layers.lowers.iter().chain(&layers.usr) {
        match sys::idmap_mount(layer.as_fd(), userns.as_fd()) {
            Ok(()) => {}
            Err(_) if said => {}
            Err(e) => {
                said = true;
                off.push(format!(
                    "idmapped mount: {e}; files of the image belong to nobody inside"
                ));
            }
        }
    }
    Ok(())
}

fn detach(dir: BorrowedFd<'_>, path: &str, flags: OpenTreeFlags) -> Step<OwnedFd> {
    open_tree(
        dir,
        path,
        flags | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .step("detaching a part of the image")
}

/// A user namespace of this one whose 0 is `first` here, held by its descriptor alone.
pub(crate) fn user_namespace(first: u32, count: u32) -> Step<OwnedFd> {
    let step = "making a user namespace";
    let take = |pid| {
        map_ids(pid, first, count)?;
        open_namespace(pid, "user").step(step)
    };
    from_short_lived(libc::CLONE_NEWUSER, None, || Ok(()), take).step(step)?
}

/// Has what is forked from here on see the sandbox's control group as the root of all.
///
/// Such a namespace begins at the group of the process that makes it, and the agent is born in
/// another one: moving it there later would wait for a grace period of the whole kernel, some
/// 10 ms.
fn enter_cgroup_namespace(ground: &Ground<'_>) -> Step<()> {
    let Some(sandbox) = ground.cgroups.sandbox() else {
        return Ok(());
    };
    let step = "making a namespace of control groups";
    let take = |pid| open_namespace(pid, "cgroup").step(step);
    let unshare = || sys::unshare(libc::CLONE_NEWCGROUP);
    let made = from_short_lived(0, Some(sandbox), unshare, take).step(step)?;
    sys::enter_cgroup_namespace(made?.as_fd()).step(step)
}

/// Forks a process that prepares something, and takes it from there before it ends.
fn from_short_lived<T>(
    kinds: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
    prepare: impl FnOnce() -> io::Result<()>,
    take: impl FnOnce(u32) -> T,
) -> io::Result<T> {
    let (ready_read, ready) = pipe_with(PipeFlags::CLOEXEC)?;
    let (gate, keep) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork_into(kinds, cgroup)? {
        Forked::Child => {
            drop((ready_read, keep));
            let errno = prepare().map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            match rustix::io::write(&ready, &errno.to_ne_bytes()) {
                Ok(_) | Err(_) => {} // A parent that is gone needs nothing.
            }
            // Ends when the parent has what it wants, or is gone.
            match rustix::io::read(&gate, &mut [0; 1]) {
                Ok(_) | Err(_) => sys::exit_now(0),
            }
        }
        Forked::Parent { pid, pidfd } => {
            drop(ready);
            let mut errno = [0; size_of::<i32>()];
            let prepared = std::fs::File::from(ready_read).read_exact(&mut errno);
            let taken = match (prepared, i32::from_ne_bytes(errno)) {
                (Ok(()), 0) => Ok(take(pid)),
                (Ok(()), errno) => Err(io::Error::from_raw_os_error(errno)),
                (Err(e), _) => Err(e),
            };
            drop(keep);
            rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            )?;
            taken
        }
    }
}

fn open_namespace(pid: u32, kind: &str) -> rustix::io::Result<OwnedFd> {
    open(
        format!("/proc/{pid}/ns/{kind}"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// In O, as its PID 1: makes the rest, then becomes the keeper.
fn outer(
    ground: &Ground<'_>,
    ids: IdRange,
    layers: &Layers,
    go: &OwnedFd,
    isolation: &Isolation,
) -> Step<std::convert::Infallible> {
    let inside = hear_of_network(go)?;
    approach_state(ground)?;
    become_root(ids)?;
    enter_state(ground)?;
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM,
    )
    .step("leaving the host's mounts")?;
    root::mount_proc("/proc")?;
    rustix::system::sethostname(ground.config.hostname.as_bytes()).step("naming the host")?;
    if ground.config.network != NetworkMode::Host {
        prepare_network(ids)?;
    }
    if let Some(inside) = inside {
        network::settle(inside)?;
    }
    ground.settle()?;
    let user = user_namespace(ids.workload_offset(), ids.workload_count())?;
    let (init_pid, init) = start_init(ground, ids, layers)?;
    let root = open(
        format!("/proc/{init_pid}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("opening the workload's root")?;
    let mut handover = ground.handover(Place::Init);
    handover.init_pid = Some(init_pid);
    Err(ground.become_keeper(
        handover,
        isolation,
        &[
            (INNER_INIT, init.as_fd()),
            (INNER_USER, user.as_fd()),
            (INNER_ROOT, root.as_fd()),
        ],
    ))
}

/// Waits for the launcher's word, and what it says about the network.
fn hear_of_network(go: &OwnedFd) -> Step<Option<Inside>> {
    let mut word = [0; 1 + Inside::BYTES];
    let length = wait_for_launcher(go, &mut word)?;
    let [_, inside @ ..] = word;
    Ok((length > 1).then(|| Inside::from_bytes(inside)))
}

fn wait_for_launcher(go: &OwnedFd, word: &mut [u8]) -> Step<usize> {
    match rustix::io::read(go, word).step("waiting for the launcher")? {
        0 => Err(failure("starting the agent", "the launcher is gone")),
        length => Ok(length),
    }
}

/// Enters the directory above the sandbox's, which may be closed to the agent, while we still
/// are who we were on the host.
///
/// By path, not by descriptor: a descriptor leads into the host's mount namespace, where the
/// agent's own directory would have no name.
fn approach_state(ground: &Ground<'_>) -> Step<()> {
    let above = Path::new(&ground.config.directory).parent();
    rustix::process::chdir(above.unwrap_or_else(|| Path::new("/")))
        .step("entering the directory above the sandbox's")
}

/// Goes on, as the agent, to whom the rest of the way belongs.
fn enter_state(ground: &Ground<'_>) -> Step<()> {
    let name = Path::new(&ground.config.directory)
        .file_name()
        .ok_or_else(|| failure("entering the state directory", "the directory has no name"))?;
    rustix::process::chdir(Path::new(name).join("state")).step("entering the state directory")
}

/// Takes the ids of O's root, and keeps `/proc/self` ours: it is O's root that opens the maps
/// of namespaces below.
fn become_root(ids: IdRange) -> Step<()> {
    let step = "becoming root of the agent's namespace";
    if ids.of_namespace != Some(1) {
        // Who has one id only must keep the groups.
        rustix::thread::set_thread_groups(&[]).step(step)?;
    }
    let (uid, gid) = (rustix::fs::Uid::ROOT, rustix::fs::Gid::ROOT);
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(step)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(step)?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).step(step)
}

/// Loopback, and what an unprivileged program of today expects to be allowed.
fn prepare_network(ids: IdRange) -> Step<()> {
    sys::loopback_up().step("starting the loopback device")?;
    for (path, text) in [
        (
            "/proc/sys/net/ipv4/ip_unprivileged_port_start",
            "0".to_owned(),
        ),
        (
            "/proc/sys/net/ipv4/ping_group_range",
            format!("0 {}", ids.count() - 1),
        ),
    ] {
        std::fs::OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .step(&format!("writing {path}"))?;
    }
    Ok(())
}

/// Forks PID 1 of P and waits until its root stands.
fn start_init(ground: &Ground<'_>, ids: IdRange, layers: &Layers) -> Step<(u32, OwnedFd)> {
    let step = "making the workload's namespaces";
    let kinds = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let (reports, report) = pipe_with(PipeFlags::CLOEXEC).step(step)?;
    match sys::fork_into(kinds, None).step(step)? {
        Forked::Child => {
            let plan = RootPlan {
                ids,
                layers,
                network: ground.config.network,
                memory_max: ground.config.limits.memory_bytes_max,
            };
            match root::build(&plan).and_then(|()| become_init(ground, &report)) {
                Ok(never) => match never {},
                Err(failure) => complain(&report, &failure),
            }
        }
        Forked::Parent { pid, pidfd } => {
            drop(report);
            // End of file without a word: `sbx-init` stands in its root and closed the pipe.
            hear(reports, step)?;
            Ok((pid, pidfd))
        }
    }
}

/// In a forked child: says what failed, and ends.
fn complain(report: &OwnedFd, failure: &LaunchFailure) -> ! {
    let mut bytes = Vec::new();
    match minicbor::encode(failure, &mut bytes) {
        Ok(()) | Err(_) => {} // Then the report is cut, which says enough.
    }
    match rustix::io::write(report, &bytes) {
        Ok(_) | Err(_) => sys::exit_now(1),
    }
}

/// Listens to a forked child up to the end; no word is a good one.
fn hear(reports: OwnedFd, step: &str) -> Step<()> {
    let mut bytes = Vec::new();
    std::fs::File::from(reports)
        .read_to_end(&mut bytes)
        .step(step)?;
    if bytes.is_empty() {
        return Ok(());
    }
    Err(minicbor::decode::<LaunchFailure>(&bytes)
        .unwrap_or_else(|_| failure(step, "failed, and its report was cut")))
}

/// Tries what a launch does in the agent's namespaces and a machine may forbid there, without a
/// sandbox. Needs a mount namespace of our own.
pub(crate) fn rehearse(ids: IdRange) -> Step<()> {
    let step = "making a sandbox's namespaces";
    let usr = detach(CWD, "/usr", OpenTreeFlags::empty())?;
    let (go_read, go) = pipe_with(PipeFlags::CLOEXEC).step(step)?;
    let (reports, report) = pipe_with(PipeFlags::CLOEXEC).step(step)?;
    match sys::fork_into(NAMESPACES | libc::CLONE_NEWNET, None).step(step)? {
        Forked::Child => {
            drop((go, reports));
            let tried = wait_for_launcher(&go_read, &mut [0])
                .and_then(|_none| become_root(ids))
                .and_then(|()| root::mount_proc("/proc"))
                .and_then(|()| prepare_network(ids))
                .and_then(|()| root::rehearse(ids, &usr));
            match tried {
                Ok(()) => sys::exit_now(0),
                Err(failure) => complain(&report, &failure),
            }
        }
        Forked::Parent { pid, pidfd } => {
            drop((go_read, report));
            let mapped = map_ids(pid, ids.first, ids.count())
                .and_then(|()| rustix::io::write(&go, &[GO]).step(step).map(drop));
            drop(go);
            let tried = hear(reports, step);
            rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            )
            .step(step)?;
            mapped.and(tried)
        }
    }
}

/// Becomes `sbx-init` while the host's root is still ours: an agent that isn't static needs the
/// host's loader and libraries, which an image need not have. `sbx-init` then moves into the root
/// and closes its standard input, which is `report`, or writes into it why it can't.
fn become_init(ground: &Ground<'_>, report: &OwnedFd) -> Step<std::convert::Infallible> {
    let step = "becoming sbx-init";
    rustix::stdio::dup2_stdin(report).step(step)?;
    let title = super::c_string(crate::init::INIT_TITLE)?;
    Err(sys::exec_fd(ground.exe.as_fd(), &[title], &[])).step(step)
}
