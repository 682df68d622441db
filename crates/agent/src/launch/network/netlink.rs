//! Five requests to the kernel about network devices, written by hand: a launcher needs no more.

use std::{io, net::Ipv4Addr, os::fd::AsFd as _};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with};

use super::wire::{ACKNOWLEDGE, CREATE, EXCLUSIVE, Kernel, attribute, c, message};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;

const LINK_NAME: u16 = 3; // IFLA_IFNAME
const LINK_INFO: u16 = 18; // IFLA_LINKINFO
const LINK_KIND: u16 = 1; // IFLA_INFO_KIND
const LINK_DATA: u16 = 2; // IFLA_INFO_DATA
const LINK_NAMESPACE_OF: u16 = 19; // IFLA_NET_NS_PID
const VETH_PEER: u16 = 1; // VETH_INFO_PEER
const ADDRESS: u16 = 1; // IFA_ADDRESS
const ADDRESS_LOCAL: u16 = 2; // IFA_LOCAL
const ROUTE_TO: u16 = 1; // RTA_DST
const ROUTE_DEVICE: u16 = 4; // RTA_OIF
const ROUTE_GATEWAY: u16 = 5; // RTA_GATEWAY

const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;
/// The gateway is reached through the device, whatever other routes say.
const ON_LINK: u32 = 4;

/// A way to the kernel's network devices, those of the namespace that opened it.
pub(super) struct Links(Kernel);

impl Links {
    pub(super) fn open() -> io::Result<Self> {
        // The protocol 0: devices, addresses, routes.
        Kernel::open(None).map(Self)
    }

    /// Makes a pair of devices: `name` here, `peer` in the network namespace of a process.
    pub(super) fn make_pair(&self, name: &str, peer: &str, pid: u32) -> io::Result<()> {
        let mut far = link_header(0, 0, 0);
        attribute(&mut far, LINK_NAME, &c(peer));
        attribute(&mut far, LINK_NAMESPACE_OF, &pid.to_ne_bytes());
        let mut data = Vec::new();
        attribute(&mut data, VETH_PEER, &far);
        let mut info = Vec::new();
        attribute(&mut info, LINK_KIND, b"veth");
        attribute(&mut info, LINK_DATA, &data);
        let mut body = link_header(0, 0, 0);
        attribute(&mut body, LINK_NAME, &c(name));
        attribute(&mut body, LINK_INFO, &info);
        self.ask(NEW_LINK, CREATE | EXCLUSIVE, &body)
    }

    /// Removes a device, and with it the other end of its pair and every route over it.
    /// `false`: there was none.
    pub(super) fn remove(&self, name: &str) -> io::Result<bool> {
        let mut body = link_header(0, 0, 0);
        attribute(&mut body, LINK_NAME, &c(name));
        match self.ask(DELETE_LINK, 0, &body) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Starts a device; returns its number.
    pub(super) fn start(&self, name: &str) -> io::Result<u32> {
        let index = index_of(name)?;
        let up = libc::IFF_UP.cast_unsigned();
        self.ask(NEW_LINK, 0, &link_header(index, up, up))?;
        Ok(index)
    }

    /// Gives a device one address that it shares with no neighbour.
    pub(super) fn add_address(&self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        // ifaddrmsg: family, prefix length, flags, scope, device.
        let mut body = vec![inet(), 32, 0, SCOPE_UNIVERSE];
        body.extend(index.to_ne_bytes());
        attribute(&mut body, ADDRESS_LOCAL, &address.octets());
        attribute(&mut body, ADDRESS, &address.octets());
        self.ask(NEW_ADDRESS, CREATE | EXCLUSIVE, &body)
    }

    /// Sends what is for this address over a device. `false`: somebody has it already.
    pub(super) fn add_neighbour(&self, index: u32, address: Ipv4Addr) -> io::Result<bool> {
        let mut body = route_header(32, SCOPE_LINK, 0);
        attribute(&mut body, ROUTE_TO, &address.octets());
        attribute(&mut body, ROUTE_DEVICE, &index.to_ne_bytes());
        match self.ask(NEW_ROUTE, CREATE | EXCLUSIVE, &body) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sends everything else to a gateway behind a device.
    pub(super) fn add_default(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let mut body = route_header(0, SCOPE_UNIVERSE, ON_LINK);
        attribute(&mut body, ROUTE_GATEWAY, &gateway.octets());
        attribute(&mut body, ROUTE_DEVICE, &index.to_ne_bytes());
        self.ask(NEW_ROUTE, CREATE | EXCLUSIVE, &body)
    }

    /// Sends a request and takes the kernel's word on it.
    fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let mut request = Vec::new();
        message(&mut request, kind, ACKNOWLEDGE | flags, 0, body);
        self.0.ask(&request, 0)
    }
}

/// Whether there is such a device.
pub(super) fn device_exists(name: &str) -> io::Result<bool> {
    match index_of(name) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The number of a device.
fn index_of(name: &str) -> io::Result<u32> {
    let any = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok(name_to_index(any.as_fd(), name)?)
}

fn inet() -> u8 {
    2 // AF_INET
}

/// `ifinfomsg`: family, padding, type, device, flags, which flags to change.
fn link_header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(change.to_ne_bytes());
    body
}

/// `rtmsg`: family, lengths of destination and source, service, table, protocol, scope, type,
/// flags.
fn route_header(bits: u8, scope: u8, flags: u32) -> Vec<u8> {
    let mut body = vec![
        inet(),
        bits,
        0,
        0,
        TABLE_MAIN,
        PROTOCOL_STATIC,
        scope,
        UNICAST,
    ];
    body.extend(flags.to_ne_bytes());
    body
}
