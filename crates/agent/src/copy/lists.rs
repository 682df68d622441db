//! Access lists of files (POSIX ACLs), as the kernel gives and takes them: a version, then entries
//! of eight bytes, all little-endian.
//!
//! The group bits of a file's mode are its list's mask: without its list, the file would give its
//! group what only somebody named in there has.

use std::ffi::CStr;

/// Attribute with who may do what with a file.
pub(super) const ACCESS: &CStr = c"system.posix_acl_access";
/// Attribute with the list that new files of a directory begin with.
pub(super) const DEFAULT: &CStr = c"system.posix_acl_default";

const VERSION: [u8; 4] = 2_u32.to_le_bytes();
const NAMED_USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;

#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u16,
    allowed: u16,
    id: u32,
}

#[derive(Debug)]
pub(super) struct List(Vec<Entry>);

impl List {
    /// Nothing where the layout is not the one that we know.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let (entries, rest) = value.strip_prefix(&VERSION)?.as_chunks::<8>();
        let entry = |[t0, t1, a0, a1, id @ ..]: [u8; 8]| Entry {
            tag: u16::from_le_bytes([t0, t1]),
            allowed: u16::from_le_bytes([a0, a1]),
            id: u32::from_le_bytes(id),
        };
        rest.is_empty()
            .then(|| Self(entries.iter().copied().map(entry).collect()))
    }

    /// The same for others; nothing where somebody in there has no counterpart.
    pub(super) fn moved(&self, id: impl Fn(u32) -> Option<u32>) -> Option<Vec<u8>> {
        let mut value = VERSION.to_vec();
        for entry in &self.0 {
            let id = match entry.tag {
                NAMED_USER | NAMED_GROUP => id(entry.id)?,
                _ => entry.id,
            };
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.allowed.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        Some(value)
    }

    /// What a mode may say of the group and of others, so that without this list nobody gets more
    /// than with it: no more than the least of anybody who is named.
    pub(super) fn bits_without(&self) -> u32 {
        let (mut group, mut others) = (0o7, 0o7);
        for entry in &self.0 {
            match entry.tag {
                NAMED_USER | NAMED_GROUP => {
                    group &= entry.allowed;
                    others &= entry.allowed;
                }
                GROUP | MASK => group &= entry.allowed,
                _ => {}
            }
        }
        u32::from(group) << 3 | u32::from(others)
    }
}
