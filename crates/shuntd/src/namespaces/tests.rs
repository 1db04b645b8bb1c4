use super::*;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory like `/proc`, gone when dropped.
struct Proc(PathBuf);

impl Proc {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shuntd-namespaces-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir(&root).unwrap();
        Self(root)
    }

    /// A process in a namespace of its own, with these addresses.
    fn process(&self, pid: u32, addresses: &[&str]) -> PathBuf {
        let net = self.0.join(pid.to_string()).join("net");
        fs::create_dir_all(&net).unwrap();
        let mut trie =
            "Main:\n  +-- 0.0.0.0/0 3 0 4\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
                .to_owned();
        for address in addresses {
            let (address, bits) = address.split_once('/').unwrap();
            trie += &format!("     |-- {address}\n        /{bits} host LOCAL\n");
        }
        fs::write(net.join("fib_trie"), trie).unwrap();
        for name in ["tcp", "tcp6"] {
            fs::write(net.join(name), "  sl  local_address rem_address   st\n").unwrap();
        }
        net
    }

    /// One more process in the namespace of another.
    fn fellow(&self, name: &str, other: u32) {
        let to = self.0.join(name);
        std::os::unix::fs::symlink(self.0.join(other.to_string()), to).unwrap();
    }

    fn look(&self, wanted: &[(Ends, u32)]) -> Places {
        look_in(&self.0, wanted.iter().copied().collect(), LONGEST)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn connection(own: &str, other: &str) -> Ends {
    [own, other].map(|end| {
        let end: SocketAddr = end.parse().unwrap();
        (end.ip().to_canonical(), end.port())
    })
}

fn flipped([own, other]: Ends) -> Ends {
    [other, own]
}

/// Adds a row to a table, as the kernel writes it.
fn add(net: &Path, [own, other]: Ends, uid: u32, inode: u64) {
    let end = |(ip, port): (IpAddr, u16)| {
        let bytes = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let words = bytes.chunks_exact(4);
        let word = |word: &[u8]| u32::from_ne_bytes(word.try_into().unwrap());
        let text: String = words.map(|w| format!("{:08X}", word(w))).collect();
        format!("{text}:{port:04X}")
    };
    let name = if own.0.is_ipv4() { "tcp" } else { "tcp6" };
    let mut table = fs::OpenOptions::new()
        .append(true)
        .open(net.join(name))
        .unwrap();
    let (own, other) = (end(own), end(other));
    let rest = format!("01 0:0 00:0 0 {uid:5} 0 {inode} 1 0 20 4 30 10 -1");
    writeln!(table, "   0: {own} {other} {rest}").unwrap();
}

#[test]
fn an_end_in_another_namespace_is_found_there() {
    let proc = Proc::new();
    let (here, there) = (
        proc.process(10, &["10.0.0.1/32"]),
        proc.process(20, &["10.0.0.2/32"]),
    );
    for (name, other) in [("11", 10), ("self", 10), ("21", 20)] {
        proc.fellow(name, other);
    }
    let ends = connection("10.0.0.1:80", "10.0.0.2:4000");
    assert_eq!(proc.look(&[(ends, 11)]), Places::new());
    add(&there, flipped(ends), 0, 0); // Even if no process has it any more.
    let elsewhere = Places::from([(ends, Place::Elsewhere)]);
    assert_eq!(proc.look(&[(ends, 11)]), elsewhere);
    // Who has it is not known; but it is listed in our own.
    assert_eq!(proc.look(&[(ends, 0)]), Places::new());
    add(&here, ends, 7, 70);
    assert_eq!(proc.look(&[(ends, 0)]), elsewhere);
}

#[test]
fn an_end_in_the_same_namespace_has_an_owner() {
    let proc = Proc::new();
    let here = proc.process(10, &["10.0.0.1/32", "127.0.0.0/8"]);
    let there = proc.process(20, &["10.0.0.1/32", "127.0.0.0/8"]);
    let loopback = connection("127.0.0.1:80", "127.0.0.1:4000");
    let own = connection("[fd00::1]:80", "[fd00::1]:4000");
    let closing = connection("10.0.0.1:80", "10.0.0.3:4002");
    for (ends, uid, inode) in [(loopback, 1000, 71), (own, 1001, 72), (closing, 0, 0)] {
        add(&here, flipped(ends), uid, inode);
    }
    let wanted = [(loopback, 10), (own, 10), (closing, 10)];
    let found = Places::from([(loopback, Place::Here(1000)), (own, Place::Here(1001))]);
    assert_eq!(proc.look(&wanted), found);
    // The same addresses mean nothing elsewhere.
    for (ends, ..) in wanted.map(|(ends, pid)| (ends, pid)) {
        add(&there, flipped(ends), 5, 50);
    }
    assert_eq!(proc.look(&wanted), found);
}

#[test]
fn addresses_that_cannot_leave_a_namespace_are_looked_for_in_no_other() {
    let proc = Proc::new();
    proc.process(10, &["127.0.0.0/8"]);
    let there = proc.process(20, &["127.0.0.0/8"]);
    for ends in [
        connection("127.0.0.1:80", "127.0.0.1:4000"),
        connection("[::1]:80", "[::1]:4000"),
        connection("10.0.0.1:80", "10.0.0.1:4000"),
    ] {
        add(&there, flipped(ends), 5, 50);
        assert_eq!(proc.look(&[(ends, 10)]), Places::new());
    }
}

#[test]
fn only_namespaces_with_the_other_ends_address_are_looked_through() {
    let proc = Proc::new();
    proc.process(10, &["10.0.0.1/32"]);
    let ends = connection("10.0.0.1:80", "10.1.2.3:4000");
    let there = proc.process(20, &["10.0.0.2/32", "10.1.0.0/15"]);
    add(&there, flipped(ends), 5, 50);
    assert_eq!(proc.look(&[(ends, 10)])[&ends], Place::Elsewhere);
    for addresses in [
        &["10.1.2.4/32"][..],
        &["10.1.0.0/23"],
        &["10.1.2.3/33"],
        &[],
    ] {
        proc.process(20, addresses);
        add(&there, flipped(ends), 5, 50);
        assert_eq!(proc.look(&[(ends, 10)]), Places::new(), "{addresses:?}");
    }
    // Nobody can tell.
    fs::remove_file(there.join("fib_trie")).unwrap();
    assert_eq!(proc.look(&[(ends, 10)])[&ends], Place::Elsewhere);
}

#[test]
fn addresses_of_ipv6_interfaces_count() {
    let proc = Proc::new();
    proc.process(10, &[]);
    let ends = connection("[fd00::1]:80", "[fd00::2]:4000");
    let there = proc.process(20, &[]);
    add(&there, flipped(ends), 5, 50);
    let others = "fd000000000000000000000000000003 02 40 00 80 eth0\nfd00 +1\n";
    fs::write(there.join("if_inet6"), others).unwrap();
    assert_eq!(proc.look(&[(ends, 10)]), Places::new());
    let own = format!("{others}fd000000000000000000000000000002 02 40 00 80 eth0\n");
    fs::write(there.join("if_inet6"), own).unwrap();
    assert_eq!(proc.look(&[(ends, 10)])[&ends], Place::Elsewhere);
}

#[test]
fn nothing_is_said_where_there_was_no_time() {
    let proc = Proc::new();
    let here = proc.process(10, &["10.0.0.1/32"]);
    let ends = connection("127.0.0.1:80", "127.0.0.1:4000");
    add(&here, flipped(ends), 5, 50);
    let look = |longest| look_in(&proc.0, Wanted::from([(ends, 10)]), longest);
    assert_eq!(look(LONGEST)[&ends], Place::Here(5));
    assert_eq!(look(Duration::ZERO), Places::new());
}

#[test]
fn the_kernel_is_understood() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _far = listener.accept().unwrap();
    let end = |address: SocketAddr| (address.ip(), address.port());
    let ends = [near.local_addr().unwrap(), near.peer_addr().unwrap()].map(end);
    let user = rustix::process::geteuid().as_raw();
    let found = look(Wanted::from([(ends, std::process::id())]));
    assert_eq!(found[&ends], Place::Here(user));
    let trie = fs::read_to_string("/proc/self/net/fib_trie").unwrap();
    let is_own = |ip: [u8; 4]| has_any_v4(&trie, &HashSet::from([ip.into()]));
    assert!(is_own([127, 0, 0, 1]));
    assert!(!is_own([198, 51, 100, 7])); // TEST-NET-2
}
