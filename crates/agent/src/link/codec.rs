//! Frames on a stream: 4 bytes little-endian length, then one CBOR message.

use std::io;

use minicbor::{Decode, Encode};
use outlive_api::agent::FRAME_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Reads the next frame; `None` when the other side closed between frames.
pub(crate) async fn read_frame<R: AsyncRead + Unpin>(from: &mut R) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(bad(format!(
            "a frame of {length} bytes is longer than {FRAME_BYTES_MAX}"
        )));
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame).await?;
    Ok(Some(frame))
}

/// The message in a frame.
pub(crate) fn decode<T: for<'b> Decode<'b, ()>>(frame: &[u8]) -> io::Result<T> {
    minicbor::decode(frame).map_err(|error| bad(format!("a frame makes no sense: {error}")))
}

/// The frame of a message.
pub(crate) fn encode<T: Encode<()>>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    // A vector takes every byte: what can fail is a value that has no encoding.
    minicbor::encode(message, &mut frame).map_err(|error| bad(error.to_string()))?;
    let length = frame.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(bad(format!(
            "a message of {length} bytes is longer than {FRAME_BYTES_MAX}"
        )));
    }
    let length = u32::try_from(length).map_err(|error| bad(error.to_string()))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

fn bad(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
