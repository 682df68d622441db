//! The nested namespaces O, W and P; see the module above for the picture.

use std::{
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use outlive_api::launch::{
    IdRange, Image, Isolation, IsolationTier, LaunchConfig, LaunchFailure, NetworkMode,
};
use rustix::{
    fs::{CWD, Mode, OFlags, open},
    mount::{MountPropagationFlags, OpenTreeFlags, mount_change, open_tree},
    pipe::{PipeFlags, pipe_with},
};

use super::{
    Ground, await_readable, image, names,
    namespaces::{UserNamespace, fork_below, map_ids},
    network::{self, Inside},
    quota, report_failure,
    root::{self, RootPlan},
    shares::Shares,
    start::{GO, StartedKeeper, say, wait_for_launcher},
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
/// What starting `sbx-init` is called when it fails.
const INIT_STEP: &str = "making the workload's namespaces";
/// The agent's word that the root stands.
const STANDS: u8 = b's';
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
    /// The directory that `upper` and `work` lie in.
    pub(super) disk: OwnedFd,
    /// Read-only layers of the root, topmost first.
    pub(super) lowers: Vec<OwnedFd>,
    /// `/usr` of the image `host`.
    pub(super) usr: Option<OwnedFd>,
}

pub(super) fn start(ground: &Ground<'_>, sandbox: &OwnedFd, disk: &OwnedFd) -> Step<StartedKeeper> {
    let config = ground.config;
    let ids = config
        .ids
        .ok_or_else(|| failure("starting the agent", "no range of ids was given"))?;
    let mut off = ground.cgroups.off().to_vec();
    let layers = layers(ground, (sandbox, disk), ids, &mut off)?;
    if config.network == NetworkMode::Bridge && names::of_host(config.network).is_none() {
        off.push(NO_NAMES.to_owned());
    }
    let shares = Shares::read(&mut off);
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
    let (standing, stands) = limited_pipe(ground.config, disk)?;
    let forked = match (ground.cgroups.sandbox(), ground.cgroups.agent()) {
        (Some(sandbox), Some(agent)) => fork_below(kinds, sandbox, agent),
        (None, _) | (_, None) => sys::fork_into(kinds, None),
    };
    match forked.step("making the agent's namespaces")? {
        Forked::Child => {
            drop((go, standing));
            let launcher = Launcher {
                go: &go_read,
                stands: stands.as_ref(),
            };
            let failure = match outer(ground, ids, &layers, &launcher, &shares, isolation) {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            report_failure(ground.report.as_fd(), &failure)
        }
        Forked::Parent { pid, pidfd } => {
            drop(stands);
            // While `go` is open: else it is we who end the agent.
            let divided = ground.cgroups.divide();
            let accompanied = divided.and_then(|()| accompany(ground, ids, pid, &go));
            let told = accompanied.and_then(|start_ticks| {
                if let Some(standing) = &standing {
                    limit_disk(ground, (sandbox, disk), standing, &go)?;
                }
                Ok(start_ticks)
            });
            ground.started(pid, pidfd, isolation, told)
        }
    }
}

/// Where the agent says that the root stands, if the disk has a limit that is lifted until then.
fn limited_pipe(config: &LaunchConfig, disk: &OwnedFd) -> Step<(Option<OwnedFd>, Option<OwnedFd>)> {
    if !quota::is_limited(config, disk.as_fd())? {
        return Ok((None, None));
    }
    let (standing, stands) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
    Ok((Some(standing), Some(stands)))
}

/// The launcher's part, while the agent makes the rest. When the agent was started.
fn accompany(ground: &Ground<'_>, ids: IdRange, pid: u32, go: &OwnedFd) -> Step<u64> {
    map_ids(pid, ids.first, ids.count())?;
    let start_ticks = ground.write_down(pid)?;
    say(go, &[GO])?;
    if ground.config.network == NetworkMode::Bridge {
        let (inside, connecting) = network::connect(ground.config, pid)?;
        let said = say(go, &inside.to_bytes());
        // Also when nobody listens any more: what comes late, no sweep would remove.
        connecting.finish()?;
        said?;
    }
    Ok(start_ticks)
}

/// Limits the disk as soon as the root stands, then has the agent go on, which starts no session
/// before. Should we end instead, it does, too.
fn limit_disk(
    ground: &Ground<'_>,
    (sandbox, disk): (&OwnedFd, &OwnedFd),
    standing: &OwnedFd,
    go: &OwnedFd,
) -> Step<()> {
    await_readable(standing, ground.ready_until)?;
    if rustix::io::read(standing, &mut [0]).step(INIT_STEP)? == 0 {
        return Err(failure(INIT_STEP, "the agent ended meanwhile"));
    }
    quota::tighten(ground.config, sandbox.as_fd(), disk.as_fd())?;
    say(go, &[GO])
}

fn layers(
    ground: &Ground<'_>,
    (sandbox, disk): (&OwnedFd, &OwnedFd),
    ids: IdRange,
    off: &mut Vec<String>,
) -> Step<Layers> {
    let config = ground.config;
    let owners = match ids.of_namespace {
        None => Some(UserNamespace::begin(ids.workload(), ids.workload_count())?),
        Some(_) => None,
    };
    let disk = detach(disk.as_fd(), "", OpenTreeFlags::AT_EMPTY_PATH)?;
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
    if let Some(owners) = owners {
        show_as_own(&layers, &owners.finish()?, off);
    }
    if let Some(count) = ids.of_namespace {
        off.extend(layers.usr.as_ref().map(|_| FOREIGN_USR.to_owned()));
        off.extend((count == 1).then(|| ONE_ID.to_owned()));
    }
    Ok(layers)
}

/// Shows the layers, which are the host's root's, as the workload's root's.
fn show_as_own(layers: &Layers, owners: &OwnedFd, off: &mut Vec<String>) {
    let mut said = false;
    for layer in layers.lowers.iter().chain(&layers.usr) {
        match sys::idmap_mount(layer.as_fd(), owners.as_fd()) {
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
}

fn detach(dir: BorrowedFd<'_>, path: &str, flags: OpenTreeFlags) -> Step<OwnedFd> {
    open_tree(
        dir,
        path,
        flags | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .step("detaching a part of the image")
}

/// In O, as its PID 1: makes the rest, then becomes the keeper.
fn outer(
    ground: &Ground<'_>,
    ids: IdRange,
    layers: &Layers,
    launcher: &Launcher<'_>,
    shares: &Shares,
    mut isolation: Isolation,
) -> Step<std::convert::Infallible> {
    launcher.hear(&mut [0])?;
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
    ground.settle()?;
    let (init_pid, init, standing) = start_init(ground, ids, layers)?;
    let supervisor = ground.begin_supervisor()?;
    // While the root is built, and the supervisor becomes its program.
    let user = UserNamespace::begin(ids.workload_offset(), ids.workload_count())?;
    shares.set(&mut isolation.off);
    if ground.config.network != NetworkMode::Host {
        prepare_network(ids)?;
    }
    let user = user.finish()?;
    if ground.config.network == NetworkMode::Bridge {
        network::settle(launcher.hear_of_network()?)?;
    }
    // End of file without a word: `sbx-init` stands in its root and closed the pipe.
    hear(standing, INIT_STEP)?;
    launcher.tell_standing()?;
    let root = open(
        format!("/proc/{init_pid}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("opening the workload's root")?;
    launcher.await_limit()?;
    let mut handover = ground.handover(Place::Init);
    handover.init_pid = Some(init_pid);
    Err(ground.become_keeper(
        handover,
        &supervisor,
        &isolation,
        &[
            (INNER_INIT, init.as_fd()),
            (INNER_USER, user.as_fd()),
            (INNER_ROOT, root.as_fd()),
        ],
    ))
}

/// What the agent-to-be has of its launcher.
struct Launcher<'p> {
    /// Where its words come from; their end is its end, and ours.
    go: &'p OwnedFd,
    /// Where it waits for the root, if the disk has a limit that is lifted until then.
    stands: Option<&'p OwnedFd>,
}

impl Launcher<'_> {
    /// Waits for a word.
    fn hear(&self, word: &mut [u8]) -> Step<()> {
        wait_for_launcher(self.go, word)
    }

    /// Waits for what it says about the network.
    fn hear_of_network(&self) -> Step<Inside> {
        let mut word = [0; Inside::BYTES];
        self.hear(&mut word)?;
        Ok(Inside::from_bytes(word))
    }

    /// From here on the disk needs no more room than it has.
    fn tell_standing(&self) -> Step<()> {
        self.stands.map_or(Ok(()), |stands| {
            rustix::io::write(stands, &[STANDS])
                .map(drop)
                .step("telling the launcher that the root stands")
        })
    }

    /// No session may start before the disk has its limit again.
    fn await_limit(&self) -> Step<()> {
        self.stands.map_or(Ok(()), |_| self.hear(&mut [0]))
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

/// Forks PID 1 of P, which builds its root; where it tells what hinders it.
fn start_init(ground: &Ground<'_>, ids: IdRange, layers: &Layers) -> Step<(u32, OwnedFd, OwnedFd)> {
    let step = INIT_STEP;
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
        Forked::Parent { pid, pidfd } => Ok((pid, pidfd, reports)),
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
                .and_then(|()| become_root(ids))
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
