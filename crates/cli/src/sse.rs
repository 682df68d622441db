//! Server-sent events: bytes in, `data` out.
//!
//! The parser holds at most one unfinished line and one unfinished event, both bounded.

use crate::{
    error::{Failure, Result},
    limits::STREAM_LINE_BYTES_MAX,
};

/// What a stream brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    /// The data of one event.
    Data(String),
    /// A comment: the server is alive.
    Heartbeat,
}

/// The parser.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: Vec<u8>,
    /// Where the next line starts in `buffer`.
    start: usize,
    /// Up to where `buffer` was searched for a line's end.
    searched: usize,
    data: Option<String>,
}

impl Parser {
    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > STREAM_LINE_BYTES_MAX + bytes.len() {
            return Err(Failure::protocol(
                "a line of the event stream is absurdly long",
            ));
        }
        Ok(())
    }

    /// The next item that is complete.
    pub fn item(&mut self) -> Result<Option<Item>> {
        while let Some(line) = self.line()? {
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    return Ok(Some(Item::Data(data)));
                }
            } else if line.starts_with(':') {
                return Ok(Some(Item::Heartbeat));
            } else if let Some(value) = line.strip_prefix("data:") {
                let value = value.strip_prefix(' ').unwrap_or(value);
                match &mut self.data {
                    None => self.data = Some(value.to_owned()),
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                }
            }
            // `id` and `event` repeat what stands in the data.
        }
        Ok(None)
    }

    /// The next whole line, without its end.
    fn line(&mut self) -> Result<Option<String>> {
        let rest = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return Ok(None);
        };
        let end = self.searched + length;
        let line = self.buffer.get(self.start..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = std::str::from_utf8(line)
            .map_err(|_| Failure::protocol("the event stream is not UTF-8"))?
            .to_owned();
        self.start = end + 1;
        self.searched = self.start;
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::{Item, Parser};

    const STREAM: &[u8] =
        b"id: 6\nevent: output\ndata: {\"seq\":6}\n\n: heartbeat\n\ndata:a\r\ndata: b\r\n\r\n";

    fn all(parser: &mut Parser) -> Vec<Item> {
        std::iter::from_fn(|| parser.item().unwrap()).collect()
    }

    fn expected() -> Vec<Item> {
        vec![
            Item::Data("{\"seq\":6}".into()),
            Item::Heartbeat,
            Item::Data("a\nb".into()),
        ]
    }

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut() {
        for size in 1..=STREAM.len() {
            let mut parser = Parser::default();
            let mut items = Vec::new();
            for piece in STREAM.chunks(size) {
                parser.push(piece).unwrap();
                items.extend(all(&mut parser));
            }
            assert_eq!(items, expected(), "pieces of {size}");
        }
    }

    #[test]
    fn an_event_that_is_cut_off_is_not_delivered() {
        let mut parser = Parser::default();
        parser.push(b"data: {\"seq\":1}\n").unwrap();
        assert_eq!(all(&mut parser), []);
    }
}
