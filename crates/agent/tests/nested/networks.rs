//! Stories about networks of sandboxes. They need root, `ip` and `nft`.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use outlive_api::launch::{
    Egress, EgressRule, LaunchConfig, Link, NetworkMode, RuntimeKind, Transport, Verdict, WayOut,
};

use crate::{
    common::sandbox::{Sandbox, call, us},
    host::{FORWARDS, HOST, Host, WORLD, bring, tool},
    servers::Server,
};

/// The pool of these tests.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);

pub(crate) fn bridged(preferred: u16, egress: Egress) -> Sandbox {
    linked(preferred, egress, Link::Open)
}

fn linked(preferred: u16, egress: Egress, link: Link) -> Sandbox {
    Sandbox::launch_with(RuntimeKind::Namespace, |config| {
        config.network = NetworkMode::Bridge;
        config.way_out = Some(WayOut {
            pool: "10.201.0.0/16".parse().unwrap(),
            preferred,
            egress,
            link,
        });
        bring(&config.directory);
    })
}

fn at(service: SocketAddr, verdict: Verdict, transport: Transport) -> EgressRule {
    EgressRule {
        cidr: format!("{WORLD}/32").parse().unwrap(),
        ports: vec![(service.port(), service.port())],
        verdict,
        transport,
    }
}

fn only(service: SocketAddr) -> Egress {
    Egress {
        default: Verdict::Deny,
        rules: vec![at(service, Verdict::Allow, Transport::Any)],
    }
}

/// What a service says to a program inside, or how that failed.
pub(crate) fn ask(sandbox: &Sandbox, name: &str, service: SocketAddr) -> String {
    let script = format!(
        "exec 3<>/dev/tcp/{}/{} && cat <&3",
        service.ip(),
        service.port()
    );
    let (_, output) = sandbox.run(name, &["timeout", "5", "bash", "-c", &script]);
    if output.is_empty() {
        sandbox.output(name, "err")
    } else {
        output
    }
}

/// The world sees the host, whatever the sandbox's address is.
pub(crate) fn a_bridge_leads_out_under_the_hosts_address() {
    let host = Host::new();
    let sandbox = bridged(5, Egress::default());
    let said = ask(&sandbox, "ses-out", host.services[0]);
    assert_eq!(said, format!("hello {HOST}\n"));
    let (_, address) = sandbox.run("ses-address", &["ip", "-4", "-br", "address"]);
    assert!(address.contains("10.201.0.7/32"), "{address}");
    let (_, six) = sandbox.run("ses-six", &["ip", "-6", "-br", "address", "show", "eth0"]);
    assert_eq!(six, "");
}

pub(crate) fn egress_rules_hold_and_change_under_way() {
    let host = Host::new();
    let [open, shut] = host.services;
    let mut sandbox = bridged(5, only(open));
    assert_eq!(ask(&sandbox, "ses-open", open), format!("hello {HOST}\n"));
    let refused = "No route to host";
    assert!(ask(&sandbox, "ses-shut", shut).contains(refused));
    // The other way round, for a sandbox that runs.
    sandbox.config.way_out.as_mut().unwrap().egress = only(shut);
    call(&us(), "egress", &sandbox.config);
    assert!(ask(&sandbox, "ses-open2", open).contains(refused));
    assert_eq!(ask(&sandbox, "ses-shut2", shut), format!("hello {HOST}\n"));
    // The first rule that matches counts, and one about UDP is none about TCP.
    sandbox.config.way_out.as_mut().unwrap().egress = Egress {
        default: Verdict::Allow,
        rules: vec![
            at(open, Verdict::Deny, Transport::Udp),
            at(open, Verdict::Allow, Transport::Tcp),
            at(open, Verdict::Deny, Transport::Any),
            at(shut, Verdict::Deny, Transport::Tcp),
            at(shut, Verdict::Allow, Transport::Any),
        ],
    };
    call(&us(), "egress", &sandbox.config);
    assert_eq!(ask(&sandbox, "ses-open4", open), format!("hello {HOST}\n"));
    assert!(ask(&sandbox, "ses-shut4", shut).contains(refused));
    // And nothing at all.
    let egress = Egress {
        default: Verdict::Deny,
        rules: Vec::new(),
    };
    sandbox.config.way_out.as_mut().unwrap().egress = egress;
    call(&us(), "egress", &sandbox.config);
    assert!(ask(&sandbox, "ses-shut3", shut).contains(refused));
}

/// What most sandboxes have is written without `nft`, once the first one wrote what all share; it is
/// the same to the last letter.
pub(crate) fn rules_are_the_same_whoever_writes_them() {
    let _host = Host::new();
    let reach = |default, link| {
        let rules = Vec::new();
        (Egress { default, rules }, link)
    };
    let mut first = None;
    for (number, (egress, link)) in [
        reach(Verdict::Allow, Link::Open),
        reach(Verdict::Allow, Link::Open),
        reach(Verdict::Deny, Link::Open),
        reach(Verdict::Allow, Link::Cut),
        (only(SocketAddr::from(([192, 0, 2, 1], 7))), Link::Open),
    ]
    .into_iter()
    .enumerate()
    {
        let before = tool("nft list ruleset");
        let heard = Heard::begin();
        let preferred = u16::try_from(number).unwrap();
        let sandbox = linked(preferred, egress, link);
        let is_by_nft = number == 0 || number == 4;
        assert_eq!(heard.nft_wrote(), is_by_nft, "{number}");
        let written = tool("nft list ruleset");
        assert!(written.contains(&device_of(&sandbox)), "{written}");
        call(&us(), "egress", &sandbox.config);
        assert_eq!(tool("nft list ruleset"), written, "{number}");
        if number == 0 {
            first = Some(sandbox);
            continue;
        }
        let heard = Heard::begin();
        drop(sandbox);
        assert!(!heard.nft_wrote(), "{number}");
        assert_eq!(tool("nft list ruleset"), before, "{number}");
    }
    // With the last one all goes.
    drop(first);
    nothing_is_left();
}

/// What the kernel tells of changes to its rules.
pub(crate) struct Heard {
    monitor: Child,
    lines: mpsc::Receiver<String>,
}

impl Heard {
    #[expect(clippy::disallowed_methods, reason = "test")]
    pub(crate) fn begin() -> Self {
        let mut command = Command::new("nft");
        let mut monitor = command
            .arg("monitor")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(monitor.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in said.lines() {
                if tell.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        let heard = Self { monitor, lines };
        // It listens when it has told something.
        while heard.lines.try_recv().is_err() {
            Self::mark();
        }
        heard
    }

    /// Tells it something that nobody else would.
    fn mark() {
        tool("nft add table inet heard");
        tool("nft delete table inet heard");
    }

    /// Whether `nft` changed anything since, but for the marks.
    pub(crate) fn nft_wrote(mut self) -> bool {
        tool("nft add table inet done");
        let (mut is_mark, mut wrote) = (true, false);
        for line in self
            .lines
            .iter()
            .take_while(|line| !line.contains("inet done"))
        {
            if line.starts_with('#') {
                wrote |= !is_mark && line.contains("(nft)");
            } else {
                is_mark = line.contains("inet heard");
            }
        }
        tool("nft delete table inet done");
        self.monitor.kill().unwrap();
        self.monitor.wait().unwrap();
        wrote
    }
}

/// The network of a sandbox that runs is taken away: it says nothing to anybody, and nobody to it,
/// the host neither. What it had open goes on once it is given back.
pub(crate) fn a_link_that_is_cut_carries_nothing() {
    let host = Host::new();
    let mut sandbox = bridged(5, Egress::default());
    let echo = "import socket; s = socket.create_server(('', 7777)); print('up', flush=True)\n\
                while True:\n c, _ = s.accept()\n c.sendall(b'accepted')\n c.sendall(c.recv(9))";
    sandbox.start("ses-echo", &["python3", "-c", echo]);
    while sandbox.output("ses-echo", "out") != "up\n" {
        std::thread::yield_now();
    }
    let inside = SocketAddr::from((Ipv4Addr::new(10, 201, 0, 7), 7777));
    let mut open = dialled(inside).unwrap();
    let mut heard = [0; 8];
    open.read_exact(&mut heard).unwrap();
    assert_eq!(
        ask(&sandbox, "ses-out", host.services[0]),
        format!("hello {HOST}\n")
    );
    // No rule says what is reached now, and no rule used to mean everything.
    let way_out = sandbox.config.way_out.as_mut().unwrap();
    way_out.link = Link::Cut;
    call(&us(), "egress", &sandbox.config);
    let nothing_passes = |sandbox: &Sandbox, name: &str| {
        let said = ask(sandbox, name, host.services[0]);
        assert!(said.contains("No route to host"), "{said}");
        dialled(inside).unwrap_err();
    };
    nothing_passes(&sandbox, "ses-cut");
    open.write_all(b"still on?").unwrap();
    open.read_exact(&mut heard).unwrap_err();
    // A server that starts meanwhile leaves it cut, also where a firewall was loaded anew.
    let sandboxes = tempfile::tempdir().unwrap();
    keep(&sandbox, sandboxes.path(), "cut");
    tool("nft flush ruleset");
    Server::start(sandboxes.path()).stop();
    nothing_passes(&sandbox, "ses-still-cut");
    let way_out = sandbox.config.way_out.as_mut().unwrap();
    way_out.link = Link::Open;
    call(&us(), "egress", &sandbox.config);
    assert_eq!(
        ask(&sandbox, "ses-again", host.services[0]),
        format!("hello {HOST}\n")
    );
    open.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    open.read_exact(&mut heard).unwrap();
    drop(sandbox);
    nothing_is_left();
}

/// A connection on which answers are waited for so long that one would have come.
fn dialled(to: SocketAddr) -> std::io::Result<TcpStream> {
    let answer_max = Duration::from_secs(1);
    let stream = TcpStream::connect_timeout(&to, answer_max)?;
    stream.set_read_timeout(Some(answer_max))?;
    Ok(stream)
}

/// Keeps what a sandbox was launched with, as a server does, among others.
fn keep(sandbox: &Sandbox, sandboxes: &Path, name: &str) {
    let directory = Path::new(&sandbox.config.directory);
    let message = minicbor::to_vec(&sandbox.config).unwrap();
    std::fs::write(directory.join(LaunchConfig::FILE), message).unwrap();
    std::os::unix::fs::symlink(directory, sandboxes.join(name)).unwrap();
}

/// The host's services, on whatever address, and other sandboxes are out of reach, and root
/// inside can't change that.
pub(crate) fn a_bridge_reaches_neither_the_host_nor_a_neighbour() {
    let host = Host::new();
    let neighbour = bridged(9, Egress::default());
    let sandbox = bridged(5, Egress::default());
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    neighbour.start(
        "ses-listen",
        &["python3", "-c", "import socket; s = socket.create_server(('', 7777)); print('up', flush=True); s.accept()"],
    );
    while neighbour.output("ses-listen", "out") != "up\n" {
        std::thread::yield_now();
    }
    let mut arguments = Vec::new();
    for address in [Ipv4Addr::LOCALHOST, HOST, GATEWAY] {
        arguments.push(format!("port={address}:{port}"));
    }
    arguments.push("port=10.201.0.11:7777".to_owned());
    let through = sandbox.escape("/escape", "nested", &arguments);
    assert_eq!(through, Vec::<String>::new());
    let script = "nft flush ruleset && echo flushed; ip address add 10.201.0.99/32 dev eth0 && echo moved; \
                  ip route del default && echo cut; ip link set eth0 down && echo down; true";
    let (_, output) = sandbox.run("ses-flush", &["sh", "-c", script]);
    assert_eq!(output, "");
    // Nor from a namespace of its own.
    let own = format!("unshare --user --map-root-user --net sh -c '{script}'");
    let (_, output) = sandbox.run("ses-own", &["sh", "-c", &own]);
    assert!(
        !output.contains("moved") && !output.contains("cut"),
        "{output}"
    );
    assert_eq!(
        ask(&sandbox, "ses-after", host.services[0]),
        format!("hello {HOST}\n")
    );
}

/// A second server of this host may have had the address; whoever is killed leaves nothing.
pub(crate) fn addresses_are_taken_once_and_given_back() {
    let _host = Host::new();
    let first = bridged(5, Egress::default());
    let second = bridged(5, Egress::default());
    let (_, address) = second.run("ses-address", &["ip", "-4", "-br", "address"]);
    assert!(address.contains("10.201.0.8/32"), "{address}");
    let rules = tool("nft list table inet outlive");
    assert_eq!(rules.matches(" . 10.201.0.").count(), 2, "{rules}");
    drop(second);
    // A keeper that is killed takes its devices along; the sweep takes the rest.
    kill_keeper(&first);
    call(&us(), "sweep", &first.config);
    nothing_is_left();
}

fn kill_keeper(sandbox: &Sandbox) {
    let pid = sandbox.launched.keeper_pid.cast_signed();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while tool("ip -o link").contains(&device_of(sandbox)) {
        std::thread::yield_now();
    }
}

/// The sandbox's end on the host.
fn device_of(sandbox: &Sandbox) -> String {
    let id = sandbox.config.sandbox.as_str();
    format!("olv{}", id.trim_start_matches("sbx-").replace('-', ""))
}

pub(crate) fn nothing_is_left() {
    assert_eq!(tool("nft list ruleset"), "");
    let links = tool("ip -o link");
    assert!(!links.contains("olv"), "{links}");
    let routes = tool("ip route");
    assert!(!routes.contains("10.201."), "{routes}");
}

/// Whether a device passes on what comes in by it.
pub(crate) fn forwards(device: &str) -> bool {
    let path = format!("/proc/sys/net/ipv4/conf/{device}/forwarding");
    std::fs::read_to_string(path).unwrap() == "1\n"
}

/// The first sandbox used to turn the whole host into a router for whoever sent it something.
pub(crate) fn a_host_forwards_for_its_sandboxes_and_for_nobody_else() {
    let host = Host::new();
    std::fs::write(FORWARDS, "1").unwrap();
    assert!(host.routes_for_the_world());
    std::fs::write(FORWARDS, "0").unwrap();
    let sandbox = bridged(5, Egress::default());
    for (name, service) in [
        ("ses-world", host.services[0]),
        ("ses-near", host.service_inside()),
    ] {
        assert!(ask(&sandbox, name, service).starts_with("hello "), "{name}");
    }
    assert!(!host.routes_for_the_world());
    assert_eq!(std::fs::read_to_string(FORWARDS).unwrap(), "0\n");
    assert!(forwards("up0"));
    drop(sandbox);
    assert!(!forwards("up0"));
    nothing_is_left();
    // One that is a router stays one.
    std::fs::write(FORWARDS, "1").unwrap();
    let sandbox = bridged(5, Egress::default());
    assert_eq!(
        ask(&sandbox, "ses-out", host.services[0]),
        format!("hello {HOST}\n")
    );
    assert!(host.routes_for_the_world());
    drop(sandbox);
    assert!(forwards("up0"));
}

/// IPv6 is off inside, and were it on, the rules would drop it: no way round the egress rules.
pub(crate) fn ipv6_is_no_way_round_the_rules() {
    let _host = Host::new();
    let sandbox = bridged(5, Egress::default());
    let listener = TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let switch = "/proc/sys/net/ipv6/conf/eth0/disable_ipv6";
    let script = format!("cat {switch}; echo 0 > {switch} && echo on");
    let (_, output) = sandbox.run("ses-on", &["sh", "-c", &script]);
    assert_eq!(output, "1\n");
    // Somebody with power over both ends turns it on.
    let device = device_of(&sandbox);
    std::fs::write(
        format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"),
        "0",
    )
    .unwrap();
    tool(&format!("ip -6 address add fd00::1/64 dev {device} nodad"));
    let inside = format!("nsenter --net=/proc/{}/ns/net", sandbox.launched.keeper_pid);
    tool(&format!(
        "{inside} sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0"
    ));
    tool(&format!(
        "{inside} ip -6 address add fd00::2/64 dev eth0 nodad"
    ));
    let script = format!("exec 3<>/dev/tcp/fd00::1/{port} && echo reached");
    let reach = |seconds| ["timeout", seconds, "bash", "-c", &script];
    assert_eq!(sandbox.run("ses-reach", &reach("1")).1, "");
    // It is the rules that drop it.
    tool("nft delete table inet outlive");
    assert_eq!(sandbox.run("ses-reach2", &reach("20")).1, "reached\n");
}

/// Sandboxes whose directory is gone, or whose server never came back, are swept by nobody.
pub(crate) fn a_server_that_starts_tidies_up_after_everybody() {
    let host = Host::new();
    let [open, shut] = host.services;
    let living = bridged(5, only(open));
    let dead = bridged(9, Egress::default());
    let sandboxes = tempfile::tempdir().unwrap();
    for (name, sandbox) in [("living", &living), ("dead", &dead)] {
        keep(sandbox, sandboxes.path(), name);
    }
    let tidy = || Server::start(sandboxes.path()).stop();
    kill_keeper(&dead);
    assert!(tool("nft list ruleset").contains(&device_of(&dead)));
    tidy();
    let rules = tool("nft list ruleset");
    assert!(!rules.contains(&device_of(&dead)), "{rules}");
    // A firewall of the host that is loaded anew takes all rules along.
    tool("nft flush ruleset");
    tidy();
    assert_eq!(ask(&living, "ses-open", open), format!("hello {HOST}\n"));
    assert!(ask(&living, "ses-shut", shut).contains("No route to host"));
    kill_keeper(&living);
    tidy();
    nothing_is_left();
}
