//! Stories about networks of sandboxes. They need root, `ip` and `nft`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use outlive_api::launch::{Egress, EgressDefault, EgressRule, NetworkMode, RuntimeKind, WayOut};

use crate::{
    common::sandbox::{Sandbox, call, us},
    host::{HOST, Host, WORLD, bring, tool},
};

/// The pool of these tests.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);

fn bridged(preferred: u16, egress: Egress) -> Sandbox {
    Sandbox::launch_with(RuntimeKind::Namespace, |config| {
        config.network = NetworkMode::Bridge;
        config.way_out = Some(WayOut {
            pool: "10.201.0.0/16".parse().unwrap(),
            preferred,
            egress,
        });
        bring(&config.directory);
    })
}

fn only(service: SocketAddr) -> Egress {
    Egress {
        default: EgressDefault::Deny,
        allow: vec![EgressRule {
            cidr: format!("{WORLD}/32").parse().unwrap(),
            ports: vec![(service.port(), service.port())],
        }],
    }
}

/// What a service says to a program inside, or how that failed.
fn ask(sandbox: &Sandbox, name: &str, service: SocketAddr) -> String {
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
    // And nothing at all.
    let egress = Egress {
        default: EgressDefault::Deny,
        allow: Vec::new(),
    };
    sandbox.config.way_out.as_mut().unwrap().egress = egress;
    call(&us(), "egress", &sandbox.config);
    assert!(ask(&sandbox, "ses-shut3", shut).contains(refused));
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
    let config = first.config.clone();
    let pid = rustix::process::Pid::from_raw(first.launched.keeper_pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    call(&us(), "sweep", &config);
    let rules = tool("nft list table inet outlive");
    assert!(!rules.contains("10.201.0."), "{rules}");
    assert!(!rules.contains("jump olv"), "{rules}");
    let links = tool("ip -o link");
    assert!(!links.contains("olv"), "{links}");
    let routes = tool("ip route");
    assert!(!routes.contains("10.201."), "{routes}");
}
