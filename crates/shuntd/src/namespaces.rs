//! Where the other ends of connections are, as `/proc` says (`proc(5)`): the socket with the
//! mirrored addresses is in the same network namespace, and some user's, or in another one.
//!
//! ```text
//!  the holder's namespace   /proc/PID/net/tcp, tcp6     both ends, or this end
//!  each other one           /proc/PID/net/fib_trie      has it the other end's address?
//!                           /proc/PID/net/tcp, tcp6     only then: the other end
//! ```
//!
//! A namespace is told from others by its file `tcp`, which is another inode in each: so that
//! namespaces of other users' processes are known, too, whose `ns/net` only root may read.
//! Namespaces that no visible process lives in are not seen, nor ends whose addresses
//! something on the way translates (NAT).

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::diag::table;
use crate::tuple::Tuple;

/// The longest that a look uses a processor; what it has not found by then stays unknown.
const LONGEST: Duration = Duration::from_millis(500);
/// Rows between two looks at the clock.
const ROWS: u32 = 256;
/// Bytes that are read of a namespace's addresses. One with more is looked through.
const ADDRESSES: u64 = 1 << 20;
/// Buffer for tables. (The kernel gives a page at a time.)
const BUFFER: usize = 16 << 10;

/// The addresses of a connection as one of its ends sees them: its own, the other's.
pub(crate) type Ends = [(IpAddr, u16); 2];

/// The addresses of an end that is known by its [`Tuple`].
pub(crate) fn ends(tuple: Tuple) -> Ends {
    [tuple.local, tuple.peer]
}

/// Where a connection's other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the same network namespace. Some process of this user has it.
    Here(u32),
    /// On this host, in another network namespace.
    Elsewhere,
}

/// What a look has found.
pub(crate) type Places = HashMap<Ends, Place>;

/// Ends whose other ends are wanted, each with the process that has it.
pub(crate) type Wanted = HashMap<Ends, u32>;

/// Looks for the other ends of these. Those that are not found are not in the answer.
pub(crate) fn look(wanted: Wanted) -> Places {
    look_in(Path::new("/proc"), wanted, LONGEST)
}

fn look_in(proc: &Path, wanted: Wanted, longest: Duration) -> Places {
    let mut look = Look {
        proc,
        until: busy() + longest,
        wanted,
        known: HashSet::new(),
        homes: HashMap::new(),
        found: HashMap::new(),
    };
    // Without all of these, an end that is here might be taken for one elsewhere.
    if look.at_home().is_some() {
        look.abroad();
    }
    look.places()
}

/// For how long this thread has used a processor.
fn busy() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A network namespace: device and inode number of its file `tcp`.
type Namespace = (u64, u64);

/// An end, as some namespace lists it.
#[derive(Clone, Copy, Debug)]
struct Found {
    namespace: Namespace,
    /// The user whose process has it, if one does.
    owner: Option<u32>,
}

#[derive(Debug)]
struct Look<'a> {
    proc: &'a Path,
    /// When the thread's own time is up.
    until: Duration,
    wanted: Wanted,
    /// Namespaces that have been looked at.
    known: HashSet<Namespace>,
    /// Where the wanted ends are, one way or the other.
    homes: HashMap<Ends, Vec<Namespace>>,
    /// Their other ends.
    found: HashMap<Ends, Vec<Found>>,
}

impl Look<'_> {
    /// Looks through the namespaces of those who hold the wanted ends, and our own. `None`:
    /// there was no time for all.
    fn at_home(&mut self) -> Option<()> {
        let holders: HashSet<u32> = self.wanted.values().copied().collect();
        let mut namespaces = HashMap::new();
        for pid in holders {
            namespaces.insert(pid, self.namespace(OsStr::new(&pid.to_string())));
        }
        for (&ends, pid) in &self.wanted {
            if let Some(home) = namespaces.get(pid).copied().flatten() {
                self.homes.insert(ends, vec![home]);
            }
        }
        let holders = namespaces.into_keys().map(|pid| pid.to_string());
        for process in holders.chain(["self".to_owned()]) {
            self.visit(OsStr::new(&process), |_| true)?;
        }
        Some(())
    }

    /// Looks through the other namespaces that may have an end whose addresses leave its own.
    fn abroad(&mut self) -> Option<()> {
        let peers: HashSet<IpAddr> = self.wanted.keys().copied().filter_map(leaves).collect();
        if peers.is_empty() {
            return Some(());
        }
        for process in fs::read_dir(self.proc).ok()?.flatten() {
            let name = process.file_name();
            if name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                self.visit(&name, |net| has_any(net, &peers))?;
            }
        }
        Some(())
    }

    /// Looks through the namespace of a process, unless it has been seen or `may_have` says
    /// that nothing of it is wanted. `None`: there was no time.
    fn visit(&mut self, process: &OsStr, may_have: impl FnOnce(&Path) -> bool) -> Option<()> {
        if busy() >= self.until {
            return None;
        }
        let Some(namespace) = self.namespace(process) else {
            return Some(());
        };
        let net = self.proc.join(process).join("net");
        if !self.known.insert(namespace) || !may_have(&net) {
            return Some(());
        }
        let has_v4 = self.wanted.keys().any(|ends| ends[0].0.is_ipv4());
        for (name, needed) in [("tcp", has_v4), ("tcp6", true)] {
            if needed && let Ok(table) = File::open(net.join(name)) {
                // The process may have ended, and another have its number.
                if name == "tcp" && id(&table) != Some(namespace) {
                    return Some(());
                }
                self.read(namespace, table)?;
            }
        }
        Some(())
    }

    fn namespace(&self, process: &OsStr) -> Option<Namespace> {
        let path: PathBuf = [self.proc.as_os_str(), process, OsStr::new("net/tcp")]
            .iter()
            .collect();
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    }

    /// Notes what is wanted of a table. `None`: there was no time for all of it.
    fn read(&mut self, namespace: Namespace, table: File) -> Option<()> {
        let (mut rows, mut in_time) = (0_u32, true);
        let table = BufReader::with_capacity(BUFFER, table);
        let _ = table::rows(table, |row| {
            if self.wanted.contains_key(&[row.local, row.peer]) {
                let homes = self.homes.entry([row.local, row.peer]).or_default();
                if !homes.contains(&namespace) {
                    homes.push(namespace);
                }
            }
            if self.wanted.contains_key(&[row.peer, row.local]) {
                let found = self.found.entry([row.peer, row.local]).or_default();
                found.push(Found {
                    namespace,
                    owner: (row.inode != 0).then_some(row.uid),
                });
            }
            rows += 1;
            in_time = !rows.is_multiple_of(ROWS) || busy() < self.until;
            in_time
        });
        in_time.then_some(())
    }

    fn places(self) -> Places {
        let place = |ends, found: &[Found]| {
            // Without a home, nobody knows what is elsewhere.
            let homes = self.homes.get(&ends)?;
            let is_here = |found: &&Found| homes.contains(&found.namespace);
            if found.iter().any(|found| is_here(&found)) {
                let here = found.iter().filter(is_here);
                return here.filter_map(|found| found.owner).next().map(Place::Here);
            }
            leaves(ends).map(|_| Place::Elsewhere)
        };
        let found = self.found.iter();
        found
            .filter_map(|(&ends, found)| Some((ends, place(ends, found)?)))
            .collect()
    }
}

fn id(file: &File) -> Option<Namespace> {
    let found = file.metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// The other end's address, if it need not be of the same namespace.
pub(crate) fn leaves([own, other]: Ends) -> Option<IpAddr> {
    let stays = own.0 == other.0 || own.0.is_loopback() || other.0.is_loopback();
    (!stays).then_some(other.0)
}

/// Whether one of these addresses is a namespace's own, or nobody can tell.
fn has_any(net: &Path, addresses: &HashSet<IpAddr>) -> bool {
    let has = |file: &str, is_own: fn(&str, &HashSet<IpAddr>) -> bool| {
        let Ok(file) = File::open(net.join(file)) else {
            return true;
        };
        let mut text = String::new();
        let read = file.take(ADDRESSES).read_to_string(&mut text);
        read.map_or(true, |n| n as u64 == ADDRESSES) || is_own(&text, addresses)
    };
    let any = |is_kind: fn(&IpAddr) -> bool| addresses.iter().any(is_kind);
    any(IpAddr::is_ipv4) && has("fib_trie", has_any_v4)
        || any(IpAddr::is_ipv6) && has("if_inet6", has_any_v6)
}

/// `|-- 10.0.0.2`, and in a line below `/32 host LOCAL`: such addresses are delivered here.
fn has_any_v4(trie: &str, addresses: &HashSet<IpAddr>) -> bool {
    let mut leaf = None;
    trie.lines().map(str::trim).any(|line| {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
            return false;
        }
        let local = line.strip_suffix(" host LOCAL");
        let bits = local.and_then(|prefix| prefix.strip_prefix('/')?.parse::<u32>().ok());
        let (Some(leaf), Some(bits)) = (leaf, bits.filter(|bits| *bits <= 32)) else {
            return false;
        };
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        let differs = |ip: &Ipv4Addr| (u32::from(*ip) ^ u32::from(leaf)) & mask != 0;
        let is_in = |ip: &IpAddr| matches!(ip, IpAddr::V4(ip) if !differs(ip));
        addresses.iter().any(is_in)
    })
}

/// The first of a line's fields is an address in 32 hexadecimal digits.
fn has_any_v6(interfaces: &str, addresses: &HashSet<IpAddr>) -> bool {
    interfaces.lines().any(|line| {
        let digits = line.split_whitespace().next().filter(|d| d.len() == 32);
        let address = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
        address.is_some_and(|bits| addresses.contains(&Ipv6Addr::from(bits).into()))
    })
}

#[cfg(test)]
mod tests;
