//! Where programs of a sandbox ask for names: what of the host's `/etc/resolv.conf` holds there.

use std::{io::Read, net::IpAddr};

use outlive_api::launch::NetworkMode;

/// Largest file of the host that is taken over.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Where the host's name servers stand; the second is where one keeps them that itself listens on
/// loopback.
const HOST_FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
/// What a sandbox with this network is told of the host's name servers.
///
/// `None`: they can't be reached from there.
pub(super) fn of_host(network: NetworkMode) -> Option<String> {
    // A file that isn't there, or isn't text, says nothing.
    let texts = HOST_FILES.iter().filter_map(|path| {
        let mut text = String::new();
        let file = std::fs::File::open(path).ok()?;
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.is_ok().then_some(text)
    });
    match network {
        NetworkMode::None => None,
        NetworkMode::Host => texts.into_iter().next(),
        NetworkMode::Bridge => texts.into_iter().find_map(|text| reachable(&text)),
    }
}

/// The lines that hold outside of the host; `None` when no name server is left.
fn reachable(text: &str) -> Option<String> {
    let mut servers = 0;
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next().map(str::parse)) {
                (Some("nameserver"), Some(Ok(IpAddr::V4(address)))) if !address.is_loopback() => {
                    servers += 1;
                    true
                }
                (Some("search" | "domain" | "options"), _) => true,
                _ => false,
            }
        })
        .collect();
    (servers > 0).then(|| kept.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_on_loopback_are_of_no_use_elsewhere() {
        let text = "# by a tool\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver ::1\n\
                    search lan\noptions edns0\n";
        let kept = "nameserver 192.0.2.1\nsearch lan\noptions edns0\n";
        assert_eq!(reachable(text).as_deref(), Some(kept));
        assert_eq!(reachable("nameserver 127.0.0.1\nsearch lan\n"), None);
        assert_eq!(reachable(""), None);
    }
}
