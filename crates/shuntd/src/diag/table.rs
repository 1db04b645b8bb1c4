//! `/proc/net/tcp` and `/proc/net/tcp6` (`proc(5)`).

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::FIN_WAIT1;
use crate::tuple::Tuple;

/// The kernel's rows have 150 bytes, or 180 with IPv6 addresses.
const LONGEST: u64 = 512;

/// A socket that is or was connected, as its network namespace lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) local: (IpAddr, u16),
    pub(crate) peer: (IpAddr, u16),
    state: u8,
    /// Its owner; says nothing where there is no `inode`.
    pub(crate) uid: u32,
    /// 0: no process has it any more, or yet.
    pub(crate) inode: u64,
}

/// Calls `visit` with each row until it says no. What is no row of the kernel's is left out.
///
/// # Errors
/// What reading says.
pub(crate) fn rows(
    mut table: impl BufRead,
    mut visit: impl FnMut(Row) -> bool,
) -> std::io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut table).take(LONGEST).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let row = std::str::from_utf8(&line).ok().and_then(row);
        if row.is_some_and(|row| !visit(row)) {
            return Ok(());
        }
    }
}

/// Owner and inode number of the socket with these addresses.
pub(super) fn find(tuple: Tuple) -> Option<(u32, u64)> {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .into_iter()
        .find_map(|file| {
            let mut found = None;
            let table = BufReader::new(File::open(file).ok()?);
            let is_it = |row: &Row| (row.local, row.peer) == (tuple.local, tuple.peer);
            let _ = rows(table, |row| {
                found = Some(row).filter(is_it);
                found.is_none()
            });
            found.map(|row| (row.uid, row.inode))
        })
}

/// Whether a socket of this process's network namespace is closed and no process has it, while its peer has not taken all of its stream.
pub(crate) fn is_closing(pid: u32, tuple: Tuple) -> bool {
    let is_it = |row: &Row| (row.local, row.peer) == (tuple.local, tuple.peer);
    ["tcp", "tcp6"].into_iter().any(|name| {
        let mut found = None;
        if let Ok(table) = File::open(format!("/proc/{pid}/net/{name}")) {
            let _ = rows(BufReader::new(table), |row| {
                found = Some(row).filter(is_it);
                found.is_none()
            });
        }
        found.is_some_and(|row| (row.state, row.inode) == (FIN_WAIT1, 0))
    })
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode`.
fn row(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, peer) = (end(fields.next()?)?, end(fields.next()?)?);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let mut fields = fields.skip(3);
    let uid = fields.next()?.parse().ok()?;
    Some(Row {
        local,
        peer,
        state,
        uid,
        inode: fields.nth(1)?.parse().ok()?,
    })
}

/// `0100007F:1F90`: words of the address in the host's order, then the port.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |i: usize| {
        let word = u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (i, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(i)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:1F90 0200000A:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 20 4 30 10 -1
   2: 0100007F:1F90 0200000A 01 00000000:00000000 00:00000000 00000000  1000        0 13 1
   3: 0100007F:1F90 0200000A:9C41 01 00000000:00000000 00:00000000 00000000  -1        0 14 1
   4: 0000000000000000FFFF00000200000A:9C40 0000000000000000FFFF00000100007F:1F90 06 0:0 03:0 0     0        0 0 3
";

    fn all(table: &[u8]) -> Vec<Row> {
        let mut found = Vec::new();
        rows(table, |row| {
            found.push(row);
            true
        })
        .unwrap();
        found
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn rows_are_read_and_what_is_none_is_left_out() {
        let (near, far) = ("127.0.0.1:8080", "10.0.0.2:40000");
        let end = |text: &str| {
            let address: std::net::SocketAddr = text.parse().unwrap();
            (address.ip(), address.port())
        };
        let row = |local, peer, state, uid, inode| Row {
            local: end(local),
            peer: end(peer),
            state,
            uid,
            inode,
        };
        let good = [
            row(near, "0.0.0.0:0", 10, 0, 11),
            row(near, far, 1, 1000, 12),
            row(far, near, 6, 0, 0),
        ];
        assert_eq!(all(TABLE.as_bytes()), good);
        let mut long = vec![b'x'; 100_000];
        long.extend(b"\xff\n");
        long.extend(TABLE.as_bytes());
        assert_eq!(all(&long), good);
    }

    #[test]
    fn no_more_is_read_than_is_wanted() {
        let mut seen = 0;
        let wanted = |_| {
            seen += 1;
            seen < 2
        };
        rows(TABLE.as_bytes(), wanted).unwrap();
        assert_eq!(seen, 2);
    }
}
