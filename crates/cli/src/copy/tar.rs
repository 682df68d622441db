//! Archives: what `sandbox cp` writes and reads, in the form that every `tar` understands.
//!
//! Written are ustar headers, with GNU records for long names. Read are those, GNU's and POSIX's
//! (`pax`) records for long names and large files; anything else is an error, never a guess.

/// Bytes of a block: headers and padding are made of whole ones.
pub(super) const BLOCK_BYTES: usize = 512;
/// Longest name that is taken from an archive, bytes.
const NAME_BYTES_MAX: usize = 4096;
/// Longest record of names, bytes.
const RECORD_BYTES_MAX: u64 = 64 * 1024;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file with its size.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// Another name of an entry before.
    Hardlink(Vec<u8>),
    /// A device, a pipe, a socket.
    Special,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name in the archive.
    pub(super) name: Vec<u8>,
    /// Permission bits.
    pub(super) mode: u32,
    /// Seconds since 1970.
    pub(super) modified: u64,
    /// What it is.
    pub(super) kind: Kind,
}

/// An archive that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the archive can't be read: {0}")]
pub(super) struct BadArchive(pub(super) &'static str);

/// The header of an entry, with records for what does not fit.
pub(super) fn header(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    let link = match &entry.kind {
        Kind::Symlink(target) | Kind::Hardlink(target) => target.as_slice(),
        Kind::File(_) | Kind::Directory | Kind::Special => &[],
    };
    for (flag, text) in [(b'K', link), (b'L', entry.name.as_slice())] {
        if text.len() > 100 {
            let mut text = text.to_vec();
            text.push(0);
            let long = block(b"././@LongLink", 0, text.len() as u64, 0, flag, b"");
            out.extend_from_slice(&long);
            out.extend_from_slice(&text);
            out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
        }
    }
    let (flag, size) = match entry.kind {
        Kind::File(size) => (b'0', size),
        Kind::Directory => (b'5', 0),
        Kind::Symlink(_) => (b'2', 0),
        Kind::Hardlink(_) => (b'1', 0),
        Kind::Special => (b'6', 0),
    };
    let last = block(&entry.name, entry.mode, size, entry.modified, flag, link);
    out.extend_from_slice(&last);
    out
}

fn block(
    name: &[u8],
    mode: u32,
    size: u64,
    modified: u64,
    flag: u8,
    link: &[u8],
) -> [u8; BLOCK_BYTES] {
    let mut out = [0; BLOCK_BYTES];
    let mut put = |at: usize, room: usize, bytes: &[u8]| {
        let len = bytes.len().min(room);
        out[at..at + len].copy_from_slice(&bytes[..len]);
    };
    put(0, 100, name);
    put(100, 8, format!("{mode:07o}\0").as_bytes());
    put(108, 8, b"0000000\0");
    put(116, 8, b"0000000\0");
    put(124, 12, &number(size));
    put(136, 12, &number(modified));
    put(148, 8, b"        ");
    put(156, 1, &[flag]);
    put(157, 100, link);
    put(257, 8, b"ustar  \0");
    let sum: u32 = out.iter().map(|byte| u32::from(*byte)).sum();
    out[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out
}

/// Twelve bytes: octal, or binary when that is too long.
fn number(value: u64) -> [u8; 12] {
    let mut out = [0; 12];
    if value < 1 << 33 {
        out[..11].copy_from_slice(format!("{value:011o}").as_bytes());
    } else {
        out[0] = 0x80;
        out[4..].copy_from_slice(&value.to_be_bytes());
    }
    out
}

/// What comes next out of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// An entry begins.
    Entry(Entry),
    /// Bytes of the file that began.
    Data(&'a [u8]),
    /// The archive is over; what follows is padding.
    End,
}

/// Takes an archive apart as it comes.
#[derive(Debug, Default)]
pub(super) struct Reader {
    block: Vec<u8>,
    state: State,
    /// Names that apply to the next entry.
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Header,
    /// Bytes of a file, then padding.
    Data {
        left: u64,
        padding: u64,
    },
    /// A record about the next entry.
    Record {
        flag: u8,
        left: u64,
        padding: u64,
        bytes: Vec<u8>,
    },
    Padding(u64),
    End,
}

impl Reader {
    /// Takes from the front of `bytes`; none when it needs more.
    pub(super) fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<Item<'a>>, BadArchive> {
        loop {
            match &mut self.state {
                State::End => {
                    *bytes = &[];
                    return Ok(None);
                }
                State::Padding(left) => {
                    *left -= take(bytes, *left).len() as u64;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Header;
                }
                State::Data { left, padding } => {
                    if *left == 0 {
                        self.state = State::Padding(*padding);
                        continue;
                    }
                    let data = take(bytes, *left);
                    *left -= data.len() as u64;
                    return Ok((!data.is_empty()).then_some(Item::Data(data)));
                }
                State::Record {
                    flag,
                    left,
                    padding,
                    bytes: record,
                } => {
                    let data = take(bytes, *left);
                    *left -= data.len() as u64;
                    record.extend_from_slice(data);
                    if *left > 0 {
                        return Ok(None);
                    }
                    let (flag, record) = (*flag, std::mem::take(record));
                    self.state = State::Padding(*padding);
                    self.remember(flag, record)?;
                }
                State::Header => {
                    let missing = (BLOCK_BYTES - self.block.len()) as u64;
                    self.block.extend_from_slice(take(bytes, missing));
                    if self.block.len() < BLOCK_BYTES {
                        return Ok(None);
                    }
                    let block = std::mem::take(&mut self.block);
                    if let Some(item) = self.header(&block)? {
                        return Ok(Some(item));
                    }
                }
            }
        }
    }

    /// Whether the archive came to its end.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::End)
    }

    fn remember(&mut self, flag: u8, mut record: Vec<u8>) -> Result<(), BadArchive> {
        if flag == b'x' {
            return self.pax(&record);
        }
        if let Some(end) = record.iter().position(|byte| *byte == 0) {
            record.truncate(end);
        }
        match flag {
            b'L' => self.name = Some(record),
            _ => self.link = Some(record),
        }
        Ok(())
    }

    /// `LENGTH KEY=VALUE\n`, again and again.
    fn pax(&mut self, mut rest: &[u8]) -> Result<(), BadArchive> {
        const BAD: BadArchive = BadArchive("a pax record makes no sense");
        while !rest.is_empty() {
            let space = rest.iter().position(|byte| *byte == b' ').ok_or(BAD)?;
            let len = std::str::from_utf8(&rest[..space]).ok();
            let len: usize = len.and_then(|len| len.parse().ok()).ok_or(BAD)?;
            let line = rest.get(space + 1..len).ok_or(BAD)?;
            rest = rest.get(len..).ok_or(BAD)?;
            let line = line.strip_suffix(b"\n").ok_or(BAD)?;
            let equals = line.iter().position(|byte| *byte == b'=').ok_or(BAD)?;
            let value = &line[equals + 1..];
            match &line[..equals] {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => {
                    let text = std::str::from_utf8(value).ok();
                    self.size = Some(text.and_then(|text| text.parse().ok()).ok_or(BAD)?);
                }
                _ => {} // Times, owners and attributes that are not kept.
            }
        }
        Ok(())
    }

    fn header(&mut self, block: &[u8]) -> Result<Option<Item<'static>>, BadArchive> {
        if block.iter().all(|byte| *byte == 0) {
            self.state = State::End;
            return Ok(Some(Item::End));
        }
        let given = parse(&block[148..156]).ok_or(BadArchive("a header has no checksum"))?;
        let sum: u64 = block[..148]
            .iter()
            .chain(&block[156..])
            .map(|byte| u64::from(*byte))
            .sum();
        if sum + 8 * u64::from(b' ') != given {
            return Err(BadArchive("a header is damaged"));
        }
        let flag = block[156];
        let size = parse(&block[124..136]).ok_or(BadArchive("an entry has no size"))?;
        if matches!(flag, b'L' | b'K' | b'x' | b'g') {
            if size > RECORD_BYTES_MAX {
                return Err(BadArchive("a record is too long"));
            }
            self.state = if flag == b'g' {
                State::Padding(padded(size))
            } else {
                let padding = padded(size) - size;
                State::Record {
                    flag,
                    left: size,
                    padding,
                    bytes: Vec::new(),
                }
            };
            return Ok(None);
        }
        let size = self.size.take().unwrap_or(size);
        let name = self.name.take().unwrap_or_else(|| name(block));
        let link = self.link.take().unwrap_or_else(|| text(&block[157..257]));
        if name.len() > NAME_BYTES_MAX || link.len() > NAME_BYTES_MAX {
            return Err(BadArchive("a name is too long"));
        }
        let kind = match flag {
            b'0' | 0 | b'7' => Kind::File(size),
            b'5' => Kind::Directory,
            b'2' => Kind::Symlink(link),
            b'1' => Kind::Hardlink(link),
            b'3' | b'4' | b'6' => Kind::Special,
            _ => return Err(BadArchive("an entry is of an unknown kind")),
        };
        self.state = match kind {
            Kind::File(size) => State::Data {
                left: size,
                padding: padded(size) - size,
            },
            Kind::Directory | Kind::Symlink(_) | Kind::Hardlink(_) | Kind::Special => State::Header,
        };
        Ok(Some(Item::Entry(Entry {
            name,
            mode: u32::try_from(parse(&block[100..108]).unwrap_or(0o644)).unwrap_or(0) & 0o7777,
            modified: parse(&block[136..148]).unwrap_or(0),
            kind,
        })))
    }
}

fn take<'a>(bytes: &mut &'a [u8], most: u64) -> &'a [u8] {
    let len = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
    let (front, rest) = bytes.split_at(len);
    *bytes = rest;
    front
}

fn padded(size: u64) -> u64 {
    size.saturating_add(511) / 512 * 512
}

fn text(field: &[u8]) -> Vec<u8> {
    let end = field.iter().position(|byte| *byte == 0);
    field[..end.unwrap_or(field.len())].to_vec()
}

fn name(block: &[u8]) -> Vec<u8> {
    let name = text(&block[..100]);
    // Only POSIX's own form has a prefix there; GNU's has times.
    if &block[257..263] != b"ustar\0" || block[345] == 0 {
        return name;
    }
    [text(&block[345..500]), name].join(&b'/')
}

/// An octal number, or a binary one.
fn parse(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let fits = high[0] == 0x80 && high[1..].iter().all(|byte| *byte == 0);
        return fits.then(|| low.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    }
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches(['\0', ' ']);
    if digits.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(archive: &[u8], cut: usize) -> Result<(Vec<Entry>, Vec<u8>), BadArchive> {
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        let mut reader = Reader::default();
        for mut part in archive.chunks(cut) {
            while let Some(item) = reader.next(&mut part)? {
                match item {
                    Item::Entry(entry) => entries.push(entry),
                    Item::Data(bytes) => data.extend_from_slice(bytes),
                    Item::End => {}
                }
            }
        }
        assert!(reader.is_over());
        Ok((entries, data))
    }

    fn file(name: &str, size: u64) -> Entry {
        Entry {
            name: name.into(),
            mode: 0o640,
            modified: 7,
            kind: Kind::File(size),
        }
    }

    #[test]
    fn what_is_written_is_read_again_however_it_is_cut() {
        let entries = [
            file("a b\nc", 3),
            Entry {
                kind: Kind::Directory,
                ..file(&"long/".repeat(60), 0)
            },
            Entry {
                kind: Kind::Symlink(vec![b't'; 300]),
                ..file("link", 0)
            },
            Entry {
                kind: Kind::Hardlink(b"a b\nc".to_vec()),
                ..file("again", 0)
            },
        ];
        let mut archive = Vec::new();
        for entry in &entries {
            archive.extend(header(entry));
            if matches!(entry.kind, Kind::File(_)) {
                archive.extend(b"xyz");
                archive.resize(archive.len().next_multiple_of(BLOCK_BYTES), 0);
            }
        }
        archive.extend([0; 2 * BLOCK_BYTES]);
        for cut in [1, 7, 512, 100_000] {
            let (told, data) = read(&archive, cut).unwrap();
            assert_eq!(
                (told.as_slice(), data.as_slice()),
                (&entries[..], &b"xyz"[..])
            );
        }
    }

    #[test]
    fn large_sizes_are_kept() {
        let entry = file("large", 1 << 40);
        let head = header(&entry);
        let mut bytes = head.as_slice();
        let item = Reader::default().next(&mut bytes).unwrap();
        assert_eq!(item, Some(Item::Entry(entry)));
    }

    #[test]
    fn a_damaged_archive_is_refused() {
        let mut archive = header(&file("a", 0));
        archive[3] ^= 1;
        read(&archive, 512).unwrap_err();
        let mut bytes = &[b'x'; BLOCK_BYTES][..];
        Reader::default().next(&mut bytes).unwrap_err();
    }
}
