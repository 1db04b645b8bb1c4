//! Ports: free ones, and whether somebody listens.

use std::fs;
use std::net::TcpListener;

use anyhow::Result;

/// A port of 127.0.0.1 on which nobody listens.
///
/// # Errors
///
/// That of `bind`, if there is none.
pub fn free_port() -> Result<u16> {
    Ok(free_ports::<1>()?[0])
}

/// Different ports of 127.0.0.1 on which nobody listens.
///
/// # Errors
///
/// That of `bind`, if there are fewer than `COUNT`.
pub fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let mut ports = [0; COUNT];
    let mut held = Vec::with_capacity(COUNT);
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Whether somebody listens, by the kernel's table: a probe by `connect` would be a connection more.
pub fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&wanted)) && words.nth(1) == Some("0A")
    };
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .any(|table| {
            let text = fs::read_to_string(table).unwrap_or_default();
            text.lines().any(is_it)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen_for_as_long_as_it_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        drop(listener);
        assert!(!listens(port));
        let [one, other] = free_ports().unwrap();
        assert!(one != other && !listens(one));
    }
}
