//! `/proc/net/tcp` and `/proc/net/tcp6` (`proc(5)`).

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::tuple::Tuple;

/// Owner and inode number of the socket with these addresses.
pub(super) fn find(tuple: Tuple) -> Option<(u32, u64)> {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .into_iter()
        .find_map(|file| {
            let lines = BufReader::new(File::open(file).ok()?).lines();
            lines
                .map_while(Result::ok)
                .find_map(|line| row(&line, tuple))
        })
}

/// The same of one row, if it is the one.
fn row(line: &str, tuple: Tuple) -> Option<(u32, u64)> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, peer) = (end(fields.next()?)?, end(fields.next()?)?);
    if (local, peer) != (tuple.local, tuple.peer) {
        return None;
    }
    let mut fields = fields.skip(4);
    let uid = fields.next()?.parse().ok()?;
    Some((uid, fields.nth(1)?.parse().ok()?))
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
