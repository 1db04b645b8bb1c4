//! TCP sockets as the kernel lists them, and who has them: for ends that shuntd does not know.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Side {
    /// Whether the connection has this address at either end.
    fn has(&self, end: SocketAddr) -> bool {
        self.local == end || self.peer == end
    }
}

/// The inodes of the sockets at each side, in one network namespace.
type Inodes = HashMap<Side, Vec<u64>>;

/// Sockets and the processes that have them. Each list of the kernel's is read once, when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// By network namespace.
    lists: HashMap<PathBuf, Inodes>,
    /// By inode, for all namespaces.
    holders: OnceCell<HashMap<u64, Vec<u32>>>,
}

impl Sockets {
    /// The processes that have this side of a connection, in the network namespace of process `near` or in ours, as
    /// far as we may look.
    pub(super) fn holders(&mut self, near: Option<u32>, side: &Side) -> Vec<u32> {
        let inodes = self.list(near).get(side).cloned().unwrap_or_default();
        self.having(&inodes)
    }

    /// The processes in our network namespace that have either end of a connection with this address.
    pub(super) fn holders_at(&mut self, end: SocketAddr) -> Vec<u32> {
        let sides = self.list(None).iter().filter(|(side, _)| side.has(end));
        let inodes: Vec<u64> = sides.flat_map(|(_, inodes)| inodes).copied().collect();
        self.having(&inodes)
    }

    fn list(&mut self, near: Option<u32>) -> &Inodes {
        let process = near.map_or("self".to_owned(), |pid| pid.to_string());
        let directory = Path::new("/proc").join(process);
        let link = directory.join("ns/net");
        // The link of a process that we may not look into stands for itself.
        let namespace = fs::read_link(&link).unwrap_or(link);
        self.lists
            .entry(namespace)
            .or_insert_with(|| inodes(&directory.join("net")))
    }

    fn having(&self, inodes: &[u64]) -> Vec<u32> {
        if inodes.is_empty() {
            return Vec::new();
        }
        let holders = self.holders.get_or_init(holders);
        let found = inodes.iter().filter_map(|inode| holders.get(inode));
        let mut pids: Vec<u32> = found.flatten().copied().collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}

/// What `/proc/PID/net` lists.
fn inodes(directory: &Path) -> Inodes {
    let mut found = Inodes::new();
    for file in ["tcp", "tcp6"] {
        let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
        // A socket that no process has any more has no inode.
        let entries = text.lines().skip(1).filter_map(entry);
        for (side, inode) in entries.filter(|(_, inode)| *inode != 0) {
            found.entry(side).or_default().push(inode);
        }
    }
    found
}

/// The processes that have each socket.
fn holders() -> HashMap<u64, Vec<u32>> {
    let mut found: HashMap<u64, Vec<u32>> = HashMap::new();
    let all = fs::read_dir("/proc").into_iter().flatten();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for pid in pids {
        for inode in sockets_of(pid) {
            found.entry(inode).or_default().push(pid);
        }
    }
    found
}

/// The inodes of a process's sockets.
fn sockets_of(pid: u32) -> impl Iterator<Item = u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    entries.filter_map(|entry| {
        let target = fs::read_link(entry.ok()?.path()).ok()?;
        let inode = target.as_os_str().as_bytes();
        let inode = inode.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
        str::from_utf8(inode).ok()?.parse().ok()
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
    fn the_holder_of_a_connection_is_found_in_what_was_read_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let end = Side {
            local: far.local_addr().unwrap(),
            peer: near.local_addr().unwrap(),
        };
        let own = std::process::id();
        let mut sockets = Sockets::default();
        assert_eq!(sockets.holders(None, &end), [own]);
        assert_eq!(sockets.holders(Some(own), &end), [own]);
        assert_eq!(sockets.holders_at(end.peer), [own]);
        drop((near, far));
        assert_eq!(sockets.holders(None, &end), [own]);
        assert_eq!(sockets.lists.len(), 1);
        assert_eq!(Sockets::default().holders(None, &end), [0; 0]);
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
