//! Where daemons are to be found, and which of them are trusted.
//!
//! ```text
//! SHUNT_SOCKET=FILE        the host's, from wherever the file is mounted; nothing else is asked then
//!
//! @shunt/VERSION/host      the host's, in its own network namespace
//! @shunt/VERSION/user/UID  this user's, likewise
//! /run/shunt/VERSION       the host's, for a container that has mounted the directory
//! ```
//!
//! In this order. A container that shares its network namespace with others should name the file, since
//! their root may take the abstract names there.

use std::mem::{offset_of, size_of};

use libc::{c_int, sockaddr_un};
use shunt_abi::{HOST_DIRECTORY, PROTOCOL, Reason};

use crate::{config, sys};

/// A user whom this user namespace does not know looks like this one (`user_namespaces(7)`).
const UNKNOWN: u32 = 65_534;

/// An address at which a daemon may listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The file that `SHUNT_SOCKET` names.
    Named,
    /// The abstract address of the host's.
    Host,
    /// The abstract address of a user's daemon.
    User(u32),
    /// The host's file.
    File,
}

impl Home {
    /// Where a process of this user looks for its daemon, in this order.
    pub(super) fn all(user: u32) -> impl Iterator<Item = Self> {
        Self::known(user, config::socket().is_some())
    }

    fn known(user: u32, is_named: bool) -> impl Iterator<Item = Self> {
        let named = is_named.then_some(Self::Named);
        let others = [Self::Host, Self::User(user), Self::File];
        let others = others.into_iter().filter(move |_| !is_named);
        named.into_iter().chain(others)
    }

    /// Whether this is a file, which does not tell the daemon's network namespace.
    pub(super) fn is_file(self) -> bool {
        matches!(self, Self::Named | Self::File)
    }

    /// A connection to the daemon there, if this user may trust it; or why there is none.
    pub(super) fn dial(self, user: u32) -> Result<c_int, Reason> {
        let (address, length) = self.address().ok_or(Reason::NoDaemon)?;
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = sys::socket(libc::AF_UNIX, kind).map_err(|_| Reason::NoResources)?;
        let reached = sys::connect(fd, &address, length).is_ok();
        let owner = sys::getsockopt::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED);
        let is_trusted = |owner: u32| {
            owner == 0 || owner == user || self.is_file() && owner == UNKNOWN && is_kept(&address)
        };
        if reached && owner.is_ok_and(|owner| is_trusted(owner.uid)) {
            return Ok(fd);
        }
        sys::close(fd);
        Err(Reason::NoDaemon)
    }

    fn address(self) -> Option<(sockaddr_un, usize)> {
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut address: sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        let mut name = [0; size_of::<sockaddr_un>()];
        // An abstract name begins with a zero; a path ends with one.
        let (start, length) = match self {
            Self::Named => {
                let path = config::socket()?;
                name.get_mut(..path.len())?.copy_from_slice(path);
                (0, path.len())
            }
            Self::File => (
                0,
                write(&mut name, format_args!("{HOST_DIRECTORY}/{PROTOCOL}")),
            ),
            Self::Host | Self::User(_) => (1, self.write_name(&mut name)),
        };
        let path = address.sun_path.get_mut(start..=start + length)?;
        for (to, from) in path.iter_mut().zip(&name[..length]) {
            *to = *from as _;
        }
        let length = offset_of!(sockaddr_un, sun_path) + length + 1;
        Some((address, length))
    }

    /// What the counters region says of who serves this process: [`shunt_abi::control_name`], without an
    /// allocator.
    pub(super) fn write_name(self, to: &mut [u8]) -> usize {
        match self {
            Self::User(user) => write(to, format_args!("shunt/{PROTOCOL}/user/{user}")),
            _ => write(to, format_args!("shunt/{PROTOCOL}/host")),
        }
    }
}

fn write(to: &mut [u8], text: std::fmt::Arguments<'_>) -> usize {
    use std::io::Write as _;
    let mut cursor = std::io::Cursor::new(to);
    let _ = cursor.write_fmt(text);
    cursor.position() as usize
}

/// Whether nobody but root can have put a socket there. In a user namespace the host's root looks
/// like any user whom that does not know, and so does the directory that is mounted from the host.
fn is_kept(address: &sockaddr_un) -> bool {
    let mut directory = address.sun_path;
    let Some(end) = directory
        .iter()
        .rposition(|&byte| byte == b'/' as libc::c_char)
    else {
        return false;
    };
    directory[end] = 0;
    sys::owner_and_mode(directory.as_ptr())
        .is_some_and(|(owner, mode)| matches!(owner, 0 | UNKNOWN) && mode & 0o022 == 0)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};

    use super::*;

    fn address(path: &str) -> sockaddr_un {
        let (mut address, _) = Home::File.address().unwrap();
        address.sun_path.fill(0);
        for (to, from) in address.sun_path.iter_mut().zip(path.as_bytes()) {
            *to = *from as _;
        }
        address
    }

    #[test]
    fn names_and_files_are_those_that_shuntd_listens_at() {
        let text = |home: Home, start: usize| {
            let (address, length) = home.address().unwrap();
            let bytes = address.sun_path.map(|byte| byte as u8);
            let end = length - offset_of!(sockaddr_un, sun_path);
            String::from_utf8(bytes[start..end].to_vec()).unwrap()
        };
        assert_eq!(text(Home::Host, 1), shunt_abi::control_name(None));
        assert_eq!(text(Home::User(7), 1), shunt_abi::control_name(Some(7)));
        assert_eq!(text(Home::File, 0), shunt_abi::host_socket() + "\0");
    }

    #[test]
    fn who_names_a_file_asks_nobody_else() {
        let homes = |is_named| Home::known(7, is_named).collect::<Vec<_>>();
        assert_eq!(homes(true), [Home::Named]);
        assert_eq!(homes(false), [Home::Host, Home::User(7), Home::File]);
    }

    #[test]
    fn a_directory_is_kept_if_none_but_its_owner_can_write_there() {
        let path = std::env::temp_dir().join(format!("shunt-home-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .unwrap();
        let at = address(path.join("socket").to_str().unwrap());
        let mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            is_kept(&at)
        };
        // SAFETY: takes nothing and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let kept = [mode(0o755), mode(0o775), mode(0o757)];
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(kept, [is_root, false, false]);
        assert!(!is_kept(&at) && !is_kept(&address("socket")));
    }
}
