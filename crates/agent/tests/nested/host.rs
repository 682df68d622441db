//! A host of the test's own: a network namespace in which launches happen, and behind it another
//! one that is the rest of the world.
//!
//! ```text
//!   sandboxes ── the host, 198.51.100.1 ── the world, 198.51.100.2
//! ```

use std::{
    fs::File,
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Command,
    sync::mpsc,
};

use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, gettid, move_into_link_name_space, unshare_unsafe,
};

/// The host's address towards the world.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Somebody out there.
pub(crate) const WORLD: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

/// While it lives, what this thread starts is on the test's host.
pub(crate) struct Host {
    before: File,
    /// Ends the world.
    _world: mpsc::Sender<()>,
    /// Two services of the world: each says who asked.
    pub(crate) services: [SocketAddr; 2],
}

/// Runs a program that must succeed, and returns what it said.
#[expect(clippy::disallowed_methods, reason = "test")]
pub(crate) fn tool(line: &str) -> String {
    let mut words = line.split_whitespace();
    let done = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{line}: {said}");
    String::from_utf8(done.stdout).unwrap()
}

/// Lays this program into a sandbox's disk, as `/escape`.
pub(crate) fn bring(directory: &str) {
    use std::os::unix::fs::PermissionsExt;

    let disk = std::path::Path::new(directory).join("upper/root");
    std::fs::create_dir_all(&disk).unwrap();
    let program = disk.join("escape");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

impl Host {
    pub(crate) fn new() -> Self {
        let before = File::open("/proc/thread-self/ns/net").unwrap();
        enter_new_network();
        let (world, services, thread) = world();
        tool(&format!(
            "ip link add up0 type veth peer name out0 netns {thread}"
        ));
        tool(&format!("ip address add {HOST}/24 dev up0"));
        tool("ip link set up0 up");
        let services = services.recv().unwrap();
        Self {
            before,
            _world: world,
            services,
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&self.before),
            Some(LinkNameSpaceType::Network),
        )
        .unwrap();
    }
}

#[expect(
    unsafe_code,
    reason = "a network namespace shares no memory with anybody"
)]
fn enter_new_network() {
    // SAFETY: only NEWNET: descriptors and memory stay as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
    tool("ip link set lo up");
}

type World = (mpsc::Sender<()>, mpsc::Receiver<[SocketAddr; 2]>, i32);

/// A thread on the other side. It answers until its sender is gone.
fn world() -> World {
    let (end, ended) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let (name, named) = mpsc::channel();
    std::thread::spawn(move || {
        enter_new_network();
        name.send(gettid().as_raw_nonzero().get()).unwrap();
        // The device comes from the other side.
        while !tool("ip -o link").contains("out0") {
            std::thread::yield_now();
        }
        tool(&format!("ip address add {WORLD}/24 dev out0"));
        tool("ip link set out0 up");
        let listeners = [(); 2].map(|()| TcpListener::bind((WORLD, 0)).unwrap());
        let services = listeners.each_ref().map(|l| l.local_addr().unwrap());
        for listener in listeners {
            std::thread::spawn(move || {
                for socket in listener.incoming() {
                    let mut socket = socket.unwrap();
                    let peer = socket.peer_addr().unwrap().ip();
                    // One that hangs up at once is fine.
                    drop(socket.write_all(format!("hello {peer}\n").as_bytes()));
                }
            });
        }
        tell.send(services).unwrap();
        assert!(ended.recv().is_err());
    });
    let thread = named.recv().unwrap();
    (end, told, thread)
}
