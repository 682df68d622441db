//! A client of the link: one call at a time, as a test reads.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use outlive_api::agent::{Call, Hello, LINK_VERSION, Outcome, Reply, Request, Welcome};
use outlive_core::{id::SandboxId, session::CallMark};

/// A connection to a supervisor.
pub(crate) struct Link {
    stream: UnixStream,
    number: u64,
    /// The supervisor said that its workload stands still.
    pub(crate) frozen: bool,
}

impl Link {
    pub(crate) fn connect(socket: &Path, sandbox: &SandboxId) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        let hello = Hello {
            versions: vec![LINK_VERSION],
            sandbox: sandbox.clone(),
        };
        send(&mut stream, &hello)?;
        let welcome: Welcome = receive(&mut stream)?;
        if welcome.version != LINK_VERSION {
            return Err(io::Error::other("the supervisor speaks another version"));
        }
        Ok(Self {
            stream,
            number: 0,
            frozen: welcome.frozen,
        })
    }

    /// Sends a call and leaves its answer for [`Link::answer`].
    pub(crate) fn ask(&mut self, request: Request) -> io::Result<u64> {
        self.ask_as(None, request)
    }

    /// The same of a call that may be sent again.
    pub(crate) fn ask_as(&mut self, mark: Option<CallMark>, request: Request) -> io::Result<u64> {
        self.number += 1;
        send(
            &mut self.stream,
            &Call {
                number: self.number,
                request,
                mark,
            },
        )?;
        Ok(self.number)
    }

    /// The next answer, to whatever call.
    pub(crate) fn answer(&mut self) -> io::Result<Reply> {
        receive(&mut self.stream)
    }

    /// Calls and waits.
    pub(crate) fn call(&mut self, request: Request) -> io::Result<Outcome> {
        self.call_as(None, request)
    }

    /// The same of a call that may be sent again.
    pub(crate) fn call_as(
        &mut self,
        mark: Option<CallMark>,
        request: Request,
    ) -> io::Result<Outcome> {
        let number = self.ask_as(mark, request)?;
        let reply = self.answer()?;
        assert_eq!(reply.number, number);
        Ok(reply.outcome)
    }
}

fn send<M: minicbor::Encode<()>>(stream: &mut UnixStream, message: &M) -> io::Result<()> {
    let mut frame = vec![0; 4];
    minicbor::encode(message, &mut frame).map_err(io::Error::other)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&frame)
}

fn receive<M: for<'b> minicbor::Decode<'b, ()>>(stream: &mut UnixStream) -> io::Result<M> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    minicbor::decode(&frame).map_err(io::Error::other)
}
