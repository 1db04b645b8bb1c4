//! TCP sockets as the kernel lists them, and who has them: for ends that shuntd does not know.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Side {
    /// Whether the connection has this address at either end.
    pub(super) fn has(&self, end: SocketAddr) -> bool {
        self.local == end || self.peer == end
    }
}

/// The processes that have an end that is `wanted`, in the network namespace of process `near` or
/// in ours, as far as we may look.
pub(super) fn holders(near: Option<u32>, wanted: impl Fn(&Side) -> bool) -> Vec<u32> {
    let process = near.map_or("self".to_owned(), |pid| pid.to_string());
    let mut inodes = HashSet::new();
    for file in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{process}/net/{file}")).unwrap_or_default();
        let entries = text.lines().skip(1).filter_map(entry);
        inodes.extend(entries.filter(|(side, _)| wanted(side)).map(|e| e.1));
    }
    inodes.remove(&0);
    if inodes.is_empty() {
        return Vec::new();
    }
    let all = fs::read_dir("/proc").into_iter().flatten();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.filter(|&pid| has_one(pid, &inodes)).collect();
    pids.sort_unstable();
    pids
}

fn has_one(pid: u32, inodes: &HashSet<u64>) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.any(|target| {
        let inode = target.as_os_str().as_bytes();
        let inode = inode
            .strip_prefix(b"socket:[")
            .and_then(|rest| rest.strip_suffix(b"]"));
        let number = inode.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
        number.is_some_and(|number| inodes.contains(&number))
    })
}

/// A line of `/proc/net/tcp` (`proc(5)`): both addresses and the inode.
fn entry(line: &str) -> Option<(Side, u64)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, peer) = (address(words.next()?)?, address(words.next()?)?);
    let inode = words.nth(6)?.parse().ok()?;
    Some((Side { local, peer }, inode))
}

/// `0100007F:1F90`: words of the address as this machine stores them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok();
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip = if ip.len() == 8 {
        IpAddr::from(word(0)?.to_ne_bytes())
    } else {
        let mut bytes = [0; 16];
        for (i, four) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *four = word(8 * i)?.to_ne_bytes();
        }
        IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_holder_of_a_connection_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let end = Side {
            local: far.local_addr().unwrap(),
            peer: near.local_addr().unwrap(),
        };
        let own = std::process::id();
        assert_eq!(holders(None, |side| *side == end), [own]);
        assert_eq!(holders(Some(own), |side| side.has(end.peer)), [own]);
        drop((near, far));
        assert_eq!(holders(None, |side| *side == end), [0; 0]);
    }

    #[test]
    fn lines_of_the_kernels_list_are_read() {
        let line = "   0: 0100007F:1F90 0200007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4711 1";
        let (side, inode) = entry(line).unwrap();
        assert_eq!(side.local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(side.peer, "127.0.0.2:40000".parse().unwrap());
        assert_eq!(inode, 4711);
        assert_eq!(
            address("00000000000000000000000001000000:0050"),
            Some("[::1]:80".parse().unwrap())
        );
        assert_eq!(
            address("0000000000000000FFFF00000100007F:0050"),
            Some("127.0.0.1:80".parse().unwrap())
        );
        for wrong in ["", "x", "0100007F", "0100007F:xyz", "01:1"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }
}
