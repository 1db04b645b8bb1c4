//! What Shunt's processes agree on: control messages, the layout of shared
//! memory and the catalogue of reasons.
//!
//! Neighbours: everything else depends on this crate; it depends on nothing of
//! ours. It never touches memory or sockets itself: it only names offsets,
//! fields and numbers. A change here that an older peer could misread must
//! raise [`PROTOCOL`].

#![forbid(unsafe_code)]

pub mod board;
pub mod cores;
pub mod counters;
pub mod detail;
pub mod layout;
pub mod message;
pub mod note;
pub mod reason;

pub use reason::Reason;

/// Version of the control messages and of the shared-memory layout. Two parts
/// of Shunt talk only if theirs are equal; otherwise connections stay on TCP.
pub const PROTOCOL: u16 = 22;

/// Abstract Unix address of a daemon that serves one user, or the whole host
/// when `uid` is `None`. Abstract names need no file system, so they work after
/// `chroot`, leave nothing behind, and are confined to a network namespace.
/// A client checks the daemon's `SO_PEERCRED`: it must be its own user or root.
#[must_use]
pub fn control_name(uid: Option<u32>) -> String {
    match uid {
        Some(uid) => format!("shunt/{PROTOCOL}/user/{uid}"),
        None => format!("shunt/{PROTOCOL}/host"),
    }
}

/// The directory in which the host's daemon listens at a socket file, by which programs of other
/// network namespaces reach it: where abstract names end, a directory can be mounted.
pub const HOST_DIRECTORY: &str = "/run/shunt";

/// That file. A client checks the daemon's `SO_PEERCRED` as with [`control_name`].
#[must_use]
pub fn host_socket() -> String {
    format!("{HOST_DIRECTORY}/{PROTOCOL}")
}

/// The variable that names another such file, which is asked before all other addresses.
pub const SOCKET_VARIABLE: &str = "SHUNT_SOCKET";
