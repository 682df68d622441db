//! As much of an executable's format as tells whether it needs a machine's libraries.

/// How an executable gets into memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Loading {
    /// By the kernel alone.
    Static,
    /// By this program, which brings libraries.
    By(String),
}

/// How this executable is loaded; `None` for what is no little-endian 64-bit ELF file.
pub(crate) fn loading(bytes: &[u8]) -> Option<Loading> {
    const INTERPRETER: usize = 3;
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size) = (number(bytes, 32, 8)?, number(bytes, 54, 2)?);
    for index in 0..number(bytes, 56, 2)? {
        let at = table.checked_add(index * size)?;
        if number(bytes, at, 4)? == INTERPRETER {
            let (from, length) = (number(bytes, at + 8, 8)?, number(bytes, at + 32, 8)?);
            let name = bytes.get(from..from.checked_add(length)?)?;
            let name = name.split(|byte| *byte == 0).next()?;
            return Some(Loading::By(String::from_utf8_lossy(name).into_owned()));
        }
    }
    Some(Loading::Static)
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    let mut wide = [0; 8];
    wide.get_mut(..length)?
        .copy_from_slice(bytes.get(at..at.checked_add(length)?)?);
    usize::try_from(u64::from_le_bytes(wide)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_machine_names_its_loader() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let Some(Loading::By(loader)) = loading(&bytes) else {
            panic!("it is built for libraries");
        };
        assert!(loader.contains("ld-linux"), "{loader}");
        assert_eq!(loading(b"#!/bin/sh\n"), None);
        assert_eq!(loading(bytes.get(..40).unwrap()), None);
    }
}
