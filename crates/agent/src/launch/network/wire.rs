//! Messages between a launcher and the kernel's networking, written by hand.
//!
//! Every number is in the machine's own byte order unless said otherwise, every attribute is padded
//! to four bytes:
//!
//! ```text
//!   nlmsghdr   length u32 · type u16 · flags u16 · sequence u32 · sender u32
//!   ...msg     depends on the type
//!   nlattr     length u16 · type u16 · payload, again and again; may nest
//! ```

use std::{io, os::fd::OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send,
    socket_with, sockopt,
};

use crate::limits::KERNEL_ANSWER_MAX;

const REQUEST: u16 = 1;
pub(super) const ACKNOWLEDGE: u16 = 4;
pub(super) const EXCLUSIVE: u16 = 0x200;
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;

/// Bytes of a `nlmsghdr`.
const HEADER_BYTES: usize = 16;
const ERROR: u16 = 2;
/// The type of an attribute whose payload are attributes.
const NESTED: u16 = 0x8000;

/// A socket to the kernel.
pub(super) struct Kernel(OwnedFd);

impl Kernel {
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(KERNEL_ANSWER_MAX))?;
        Ok(Self(socket))
    }

    /// Sends requests, and waits until the one with this sequence number is acknowledged, or any is
    /// refused.
    pub(super) fn ask(&self, requests: &[u8], awaited: u32) -> io::Result<()> {
        send(&self.0, requests, SendFlags::empty())?;
        loop {
            let mut answers = [0; 8192];
            let (length, _) = recv(&self.0, &mut answers, RecvFlags::empty())?;
            if read_answers(answers.get(..length).unwrap_or_default(), awaited)? {
                return Ok(());
            }
        }
    }
}

/// Whether the awaited request is acknowledged; an error is what the kernel said of any.
fn read_answers(mut answers: &[u8], awaited: u32) -> io::Result<bool> {
    let unreadable = || io::Error::other("the kernel's answer is unreadable");
    loop {
        let word = |at: usize| -> io::Result<[u8; 4]> {
            let bytes = answers.get(at..at + 4).ok_or_else(unreadable)?;
            <[u8; 4]>::try_from(bytes).map_err(|_| unreadable())
        };
        let length = usize::try_from(u32::from_ne_bytes(word(0)?)).map_err(io::Error::other)?;
        let [low, high, ..] = word(4)?;
        let sequence = u32::from_ne_bytes(word(8)?);
        if length < HEADER_BYTES || u16::from_ne_bytes([low, high]) != ERROR {
            return Err(unreadable());
        }
        match i32::from_ne_bytes(word(HEADER_BYTES)?) {
            0 if sequence == awaited => return Ok(true),
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error.wrapping_neg())),
        }
        let next = length.next_multiple_of(4).min(answers.len());
        answers = answers.get(next..).unwrap_or_default();
        if answers.is_empty() {
            return Ok(false);
        }
    }
}

/// Appends a request.
pub(super) fn message(requests: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, body: &[u8]) {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    requests.extend(length.to_ne_bytes());
    requests.extend(kind.to_ne_bytes());
    requests.extend((REQUEST | flags).to_ne_bytes());
    requests.extend(sequence.to_ne_bytes());
    requests.extend([0; 4]);
    requests.extend(body);
}

/// Appends an attribute.
pub(super) fn attribute(body: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    let length = u16::try_from(4 + payload.len()).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(payload);
    let padding = payload.len().next_multiple_of(4) - payload.len();
    body.extend(std::iter::repeat_n(0, padding));
}

/// One attribute with others in it, each made by one of these functions.
pub(super) fn nest(kind: u16, inner: &[Vec<u8>]) -> Vec<u8> {
    attr(NESTED | kind, &inner.concat())
}

/// One attribute.
pub(super) fn attr(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut one = Vec::new();
    attribute(&mut one, kind, payload);
    one
}

/// A name as the kernel takes it.
pub(super) fn c(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of a request.
    fn answer(sequence: u32, error: i32) -> Vec<u8> {
        let mut answer = Vec::new();
        message(&mut answer, ERROR, 0, sequence, &error.to_ne_bytes());
        answer
    }

    #[test]
    fn attributes_are_padded_and_their_length_is_not() {
        let mut body = Vec::new();
        attribute(&mut body, 3, &c("lo"));
        attribute(&mut body, 1, b"veth");
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
    fn the_awaited_yes_is_one_and_any_no_is_a_no() {
        assert!(!read_answers(&answer(6, 0), 7).unwrap());
        let both = [answer(6, 0), answer(7, 0)].concat();
        assert!(read_answers(&both, 7).unwrap());
        let refused = [answer(3, 0), answer(4, -libc::ENOENT), answer(7, 0)].concat();
        let error = read_answers(&refused, 7).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn what_is_no_answer_is_no_yes() {
        read_answers(&[], 0).unwrap_err();
        read_answers(&[0; 20], 0).unwrap_err();
        let whole = answer(7, 0);
        for length in 1..whole.len() {
            read_answers(whole.get(..length).unwrap(), 7).unwrap_err();
        }
    }
}
