//! The doors of the host by which answers to sandboxes come in.
//!
//! A packet is passed on only where the device that it came in by forwards. The host's own
//! `ip_forward` would have every device forward, for everybody. So the sandboxes' devices forward
//! and, where the host forwards nothing else, the devices that its routes lead out by: its doors,
//! which the rules of [`super::rules`] close to all but sandboxes.
//!
//! Which devices we opened nobody could tell afterwards, so it is written down, with the network
//! namespace that they are in; where the host forwards by itself, none is a door.
//!
//! ```text
//!   choose ──► written down ──► ruled, and those dropped that are doors no more ──► settle ──► open
//!   close  ──────────────────► dropped ───────────────────────────────────────────► settle
//! ```
//! Whoever is killed in between has forgotten no door, and has opened none that isn't ruled.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
};

use super::rules::DEVICE_PREFIX;

/// Routes of the host, one a line, the device's name first.
const ROUTES: &str = "/proc/net/route";
/// The network namespace that we are in.
const NAMESPACE: &str = "/proc/self/ns/net";
/// Longest note, in bytes; a longer one is not ours.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Doors {
    /// Where they are written down; held by whoever changes them.
    file: File,
    /// Our network namespace.
    namespace: u64,
    /// What is written down of this namespace.
    noted: BTreeSet<String>,
    /// What the doors are to be.
    chosen: BTreeSet<String>,
    /// Lines of other namespaces, kept as they are.
    others: Vec<String>,
}

impl Doors {
    /// Those that are written down in a file.
    pub(super) fn noted_in(mut file: File) -> io::Result<Self> {
        let namespace = std::fs::metadata(NAMESPACE)?.ino();
        let mut text = String::new();
        (&mut file).take(NOTE_BYTES_MAX).read_to_string(&mut text)?;
        let (noted, others) = read_note(&text, namespace);
        Ok(Self {
            file,
            namespace,
            chosen: noted.clone(),
            noted,
            others,
        })
    }

    /// Where they are written down.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// The network namespace that they are in.
    pub(super) const fn namespace(&self) -> u64 {
        self.namespace
    }

    /// The devices.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.chosen.iter().map(String::as_str)
    }

    /// Devices that may be ruled as doors, and are to be none.
    pub(super) fn dropped(&self) -> impl Iterator<Item = &str> {
        self.noted.difference(&self.chosen).map(String::as_str)
    }

    /// Chooses which devices are doors now. Those that forward already are not: the host wants it
    /// so.
    pub(super) fn choose(&mut self) -> io::Result<()> {
        self.chosen.clear();
        if forwards("all")? == Some(true) {
            return Ok(());
        }
        for name in &self.noted {
            if forwards(name)?.is_some() {
                self.chosen.insert(name.clone());
            }
        }
        for name in devices_of(&std::fs::read_to_string(ROUTES)?) {
            if forwards(name)? == Some(false) {
                self.chosen.insert(name.to_owned());
            }
        }
        self.note(&(&self.noted | &self.chosen))
    }

    /// The rules say of these and no others that they are doors.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.note(&self.chosen.clone())
    }

    /// Opens them.
    pub(super) fn open(&self) -> io::Result<()> {
        self.names().try_for_each(|name| self.forward(name))
    }

    /// Has a device forward.
    #[expect(
        clippy::unused_self,
        reason = "only who holds the file changes devices"
    )]
    pub(super) fn forward(&self, name: &str) -> io::Result<()> {
        match forwards(name)? {
            Some(false) => set(name, "1"),
            Some(true) | None => Ok(()),
        }
    }

    /// Closes them; none is to be a door.
    pub(super) fn close(&mut self) -> io::Result<()> {
        // A host that forwards by itself meanwhile does so by them, too.
        if forwards("all")? == Some(false) {
            self.noted.iter().try_for_each(|name| set(name, "0"))?;
        }
        self.chosen.clear();
        Ok(())
    }

    /// Writes down what is not yet.
    fn note(&mut self, names: &BTreeSet<String>) -> io::Result<()> {
        if *names == self.noted {
            return Ok(());
        }
        let others = self.others.iter().map(|line| format!("{line}\n"));
        let ours = names.iter();
        let ours = ours.map(|name| format!("{} {name}\n", self.namespace));
        let text: String = others.chain(ours).collect();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(text.as_bytes())?;
        // Afterwards, so that whoever is killed in between has forgotten no door.
        self.file.set_len(text.len() as u64)?;
        self.noted.clone_from(names);
        Ok(())
    }
}

/// The names of this namespace, and the lines of the others.
fn read_note(text: &str, namespace: u64) -> (BTreeSet<String>, Vec<String>) {
    let (mut names, mut others) = (BTreeSet::new(), Vec::new());
    for line in text.lines() {
        match line.split_once(' ') {
            Some((number, name)) if number.parse() == Ok(namespace) => {
                names.insert(name.to_owned());
            }
            Some(_) => others.push(line.to_owned()),
            None => {} // A torn line.
        }
    }
    (names, others)
}

/// The devices that routes lead out by, sandboxes' apart.
fn devices_of(routes: &str) -> BTreeSet<&str> {
    let lines = routes.lines().skip(1);
    lines
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "lo" && !name.starts_with(DEVICE_PREFIX))
        .collect()
}

/// Whether a device passes on what comes in by it; `None`: there is no such device.
fn forwards(name: &str) -> io::Result<Option<bool>> {
    match std::fs::read_to_string(setting(name)) {
        Ok(text) => Ok(Some(text.trim() != "0")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn set(name: &str, value: &str) -> io::Result<()> {
    match std::fs::write(setting(name), value) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()), // The device is gone.
        Err(e) => Err(e),
    }
}

fn setting(name: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{name}/forwarding")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_noted_is_kept_and_torn_lines_are_not() {
        let (names, others) = read_note("7 eth0\n8 eth0\n7 wlan0\n7", 7);
        assert_eq!(names, ["eth0", "wlan0"].map(str::to_owned).into());
        assert_eq!(others, ["8 eth0"]);
    }

    #[test]
    fn doors_are_where_routes_lead_out_by_and_no_sandbox_is() {
        let routes = "Iface\tDestination\tGateway\neth0\t00000000\t0100A8C0\n\
                      eth0\t0000A8C0\t00000000\nolv1\t0700C90A\t00000000\nwg0\t1\t0\n";
        assert_eq!(devices_of(routes), ["eth0", "wg0"].into());
    }
}
