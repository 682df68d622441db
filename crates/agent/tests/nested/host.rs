//! A host of the test's own: a network namespace in which launches happen, and behind it others
//! that are the rest of the world.
//!
//! ```text
//!   sandboxes ── the host, 198.51.100.1 ── the world, 198.51.100.2
//!                          203.0.113.1  ── a neighbour of the host, 203.0.113.2
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

/// The host's address towards its neighbour.
const HOST_INSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The neighbour.
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// While it lives, what this thread starts is on the test's host.
pub(crate) struct Host {
    before: File,
    world: Place,
    neighbour: Place,
    /// Two services of the world: each says who asked.
    pub(crate) services: [SocketAddr; 2],
}

/// A network namespace of its own, with services.
struct Place {
    /// Ends it.
    _end: mpsc::Sender<()>,
    /// The thread that is there.
    thread: i32,
    services: [SocketAddr; 2],
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
        // A new namespace begins with what the machine has.
        std::fs::write(FORWARDS, "0").unwrap();
        let world = Place::new("up0", HOST, WORLD);
        let neighbour = Place::new("lan0", HOST_INSIDE, NEIGHBOUR);
        world.tool(&format!("ip route add {NEIGHBOUR} via {HOST}"));
        neighbour.tool(&format!("ip route add default via {HOST_INSIDE}"));
        Self {
            before,
            services: world.services,
            world,
            neighbour,
        }
    }

    /// A service of the host's neighbour, which nobody but the host and its sandboxes reaches.
    pub(crate) fn service_inside(&self) -> SocketAddr {
        self.neighbour.services[0]
    }

    /// Whether the world reaches the host's neighbour.
    pub(crate) fn routes_for_the_world(&self) -> bool {
        let script = format!(
            "exec 3<>/dev/tcp/{NEIGHBOUR}/{}",
            self.service_inside().port()
        );
        self.world
            .succeeds(&["timeout", "1", "bash", "-c", &script])
    }
}

/// Whether the test's host passes on what isn't for itself.
pub(crate) const FORWARDS: &str = "/proc/sys/net/ipv4/ip_forward";

impl Place {
    /// Behind a device of this host, with an address at either end.
    fn new(device: &str, here: Ipv4Addr, there: Ipv4Addr) -> Self {
        let (end, services, thread) = place(there);
        tool(&format!(
            "ip link add {device} type veth peer name out0 netns {thread}"
        ));
        tool(&format!("ip address add {here}/24 dev {device}"));
        tool(&format!("ip link set {device} up"));
        Self {
            _end: end,
            thread,
            services: services.recv().unwrap(),
        }
    }

    fn tool(&self, line: &str) {
        let words: Vec<_> = line.split_whitespace().collect();
        assert!(self.succeeds(&words), "{line}");
    }

    #[expect(clippy::disallowed_methods, reason = "test")]
    fn succeeds(&self, words: &[&str]) -> bool {
        let namespace = format!(
            "--net=/proc/{}/task/{}/ns/net",
            std::process::id(),
            self.thread
        );
        let done = Command::new("nsenter").arg(namespace).args(words).output();
        done.unwrap().status.success()
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

type Made = (mpsc::Sender<()>, mpsc::Receiver<[SocketAddr; 2]>, i32);

/// A thread on the other side. It answers until its sender is gone.
fn place(address: Ipv4Addr) -> Made {
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
        tool(&format!("ip address add {address}/24 dev out0"));
        tool("ip link set out0 up");
        let listeners = [(); 2].map(|()| TcpListener::bind((address, 0)).unwrap());
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
