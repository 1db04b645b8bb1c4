//! Ports: free ones, and whether somebody listens.

use anyhow::Result;
use std::fs;
use std::net::TcpListener;

/// A port on which nobody listens.
pub(crate) fn free_port() -> Result<u16> {
    Ok(free_ports::<1>()?[0])
}

/// Different ports on which nobody listens.
pub(crate) fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let mut ports = [0; COUNT];
    let mut held = Vec::with_capacity(COUNT);
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Whether somebody listens, by the kernel's table (a probe by `connect` would
/// be a connection more).
pub(crate) fn listening(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .any(|table| {
            fs::read_to_string(table)
                .unwrap_or_default()
                .lines()
                .any(|line| {
                    let mut words = line.split_whitespace().skip(1);
                    words.next().is_some_and(|local| local.ends_with(&wanted))
                        && words.nth(1) == Some("0A")
                })
        })
}
