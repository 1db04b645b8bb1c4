//! Tells the service manager that the daemon is ready (`sd_notify(3)`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says so, if a service manager has asked for it. One that does not hear it ends this process, which
/// needs no message of ours.
pub fn notify_ready() {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = send(&name, b"READY=1");
    }
}

/// A name that begins with `@` is abstract.
fn send(name: &OsStr, state: &[u8]) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_or_abstract() {
        let unique = format!("shuntd-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&unique);
        let abstractly = SocketAddr::from_abstract_name(&unique).unwrap();
        let sockets = [
            (
                UnixDatagram::bind_addr(&abstractly).unwrap(),
                format!("@{unique}"),
            ),
            (
                UnixDatagram::bind(&path).unwrap(),
                path.display().to_string(),
            ),
        ];
        for (socket, name) in &sockets {
            send(OsStr::new(name), b"READY=1").unwrap();
            let mut text = [0; 16];
            let length = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str(), b"READY=1").is_err());
    }
}
