//! Five requests to the kernel about network devices, written by hand: a launcher needs no more.
//!
//! Every number is in the machine's own byte order, every attribute is padded to four bytes:
//!
//! ```text
//!   nlmsghdr   length u32 · type u16 · flags u16 · sequence u32 · sender u32
//!   ...msg     depends on the type
//!   rtattr     length u16 · type u16 · payload, again and again; may nest
//! ```

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice::name_to_index, recv,
    send, socket_with,
};

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;

const ERROR: u16 = 2;
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
pub(super) struct Links {
    socket: OwnedFd,
}

impl Links {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // The protocol 0: devices, addresses, routes.
        )?;
        Ok(Self { socket })
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
        let length = u32::try_from(16 + body.len()).map_err(io::Error::other)?;
        let mut message = Vec::new();
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((REQUEST | ACKNOWLEDGE | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        send(&self.socket, &message, SendFlags::empty())?;
        let mut answer = [0; 1024];
        let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
        read_answer(answer.get(..length).unwrap_or_default())
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

/// An `NLMSG_ERROR` with 0 is a yes; anything else isn't an answer to these requests.
fn read_answer(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|b| <[u8; 2]>::try_from(b).ok());
    let error = answer.get(16..20).and_then(|b| <[u8; 4]>::try_from(b).ok());
    match (kind.map(u16::from_ne_bytes), error.map(i32::from_ne_bytes)) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(error)) => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(io::Error::other("the kernel's answer is unreadable")),
    }
}

fn inet() -> u8 {
    2 // AF_INET
}

fn c(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
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

fn attribute(body: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    let length = u16::try_from(4 + payload.len()).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(payload);
    let padding = payload.len().next_multiple_of(4) - payload.len();
    body.extend(std::iter::repeat_n(0, padding));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_their_length_is_not() {
        let mut body = Vec::new();
        attribute(&mut body, LINK_NAME, &c("lo"));
        attribute(&mut body, LINK_KIND, b"veth");
        let mut expected = Vec::new();
        expected.extend(7_u16.to_ne_bytes());
        expected.extend(3_u16.to_ne_bytes());
        expected.extend(b"lo\0\0");
        expected.extend(8_u16.to_ne_bytes());
        expected.extend(1_u16.to_ne_bytes());
        expected.extend(b"veth");
        assert_eq!(body, expected);
    }

    #[test]
    fn what_is_no_answer_is_no_yes() {
        assert!(read_answer(&[]).is_err());
        assert!(read_answer(&[0; 20]).is_err());
        let mut refused = vec![0; 20];
        refused[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        read_answer(&refused).unwrap();
        refused[16..20].copy_from_slice(&(-libc::EEXIST).to_ne_bytes());
        let error = read_answer(&refused).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    }
}
