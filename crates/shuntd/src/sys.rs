//! The few kernel interfaces that have no safe wrapper: all unsafe code of the
//! daemon is here.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::FromBytes;

/// Reads a socket option of the level `SOL_SOCKET`.
///
/// # Safety
/// Every bit pattern is a `T`.
unsafe fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    // SAFETY: the caller's promise.
    unsafe { option_of(socket, libc::SOL_SOCKET, name) }
}

/// Reads a socket option of this level.
///
/// # Safety
/// Every bit pattern is a `T`.
unsafe fn option_of<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has room for `len` bytes and the kernel writes no more.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<T>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel wrote every byte; and the caller's promise.
    Ok(unsafe { value.assume_init() })
}

/// An option that is a number.
pub(crate) fn integer(socket: impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<i32> {
    // SAFETY: integers.
    unsafe { option_of(socket.as_fd(), level, name) }
}

/// Sets such an option.
pub(crate) fn set_integer(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: i32,
) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as `value` has.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The head of the kernel's `struct tcp_info`, as far as we look.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub(crate) struct TcpInfo {
    state: u8,
    head: [u8; 127],
    bytes_received: u64,
    segments: [u32; 2],
    notsent_bytes: u32,
    more: [u32; 3],
    times: [u64; 4],
    delivered: [u32; 2],
    bytes_sent: u64,
    bytes_retrans: u64,
}

const _: () = assert!(
    std::mem::offset_of!(TcpInfo, notsent_bytes) == 144
        && std::mem::offset_of!(TcpInfo, bytes_sent) == 200
);

/// Whether a TCP connection has ended in neither direction, as far as this end has heard (`TCP_ESTABLISHED`).
pub(crate) fn is_established(socket: impl AsFd) -> bool {
    // SAFETY: `TcpInfo` consists of integers, so that every bit pattern is one.
    unsafe { option_of::<TcpInfo>(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO) }
        .is_ok_and(|info| info.state == 1)
}

/// What the kernel has carried on a TCP connection: (sent, received).
pub(crate) fn carried(socket: impl AsFd) -> io::Result<(u64, u64)> {
    // SAFETY: `TcpInfo` consists of integers, so that every bit pattern is one.
    let info: TcpInfo = unsafe { option_of(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO) }?;
    Ok(info.carried())
}

impl TcpInfo {
    /// What the kernel has carried: (sent, received).
    pub(crate) fn carried(&self) -> (u64, u64) {
        let first = self.bytes_sent.saturating_sub(self.bytes_retrans);
        let waiting = u64::from(self.notsent_bytes);
        (first.saturating_add(waiting), self.bytes_received)
    }
}

/// `SO_NETNS_COOKIE`: the network namespace a socket lives in.
pub(crate) fn netns_cookie(socket: impl AsFd) -> io::Result<u64> {
    // SAFETY: integers.
    unsafe { option(socket.as_fd(), libc::SO_NETNS_COOKIE) }
}

/// `SO_PEERCRED` as (pid, uid). The pid is 0 for a process of a pid namespace
/// that we cannot see, which is why rustix's non-zero type does not fit.
pub(crate) fn peer_credentials(socket: impl AsFd) -> io::Result<(u32, u32)> {
    // SAFETY: integers.
    let cred: libc::ucred = unsafe { option(socket.as_fd(), libc::SO_PEERCRED) }?;
    Ok((cred.pid.cast_unsigned(), cred.uid))
}

/// The group that a process acted with when it connected (`SO_PEERCRED`).
pub(crate) fn peer_group(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: integers.
    let cred: libc::ucred = unsafe { option(socket.as_fd(), libc::SO_PEERCRED) }?;
    Ok(cred.gid)
}

/// The groups that a process belonged to when it connected: the one that it acted with, and the others
/// (`SO_PEERGROUPS`).
pub(crate) fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `groups` has room for `len` bytes and the kernel writes no more.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let count = len as usize / size_of::<u32>();
        if rc == 0 {
            groups.truncate(count);
            groups.push(peer_group(&socket)?);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// The network namespace of a socket (`SIOCGSKNS`), as a file.
pub(crate) fn namespace_of(socket: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument, and the new descriptor belongs to nobody else.
    unsafe {
        let fd = libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// `linux/sockios.h`; not in libc's crate.
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// The number of a user, by name (`getpwnam_r(3)`).
pub(crate) fn user_named(name: &str) -> Option<u32> {
    // SAFETY: it is such a function.
    unsafe { number_of(name, libc::getpwnam_r, |entry| entry.pw_uid) }
}

/// The number of a group, by name (`getgrnam_r(3)`).
pub(crate) fn group_named(name: &str) -> Option<u32> {
    // SAFETY: as above.
    unsafe { number_of(name, libc::getgrnam_r, |entry| entry.gr_gid) }
}

/// Fills in the entry of that name, with strings in the buffer; the last argument becomes its address, or null.
type LookUp<T> = unsafe extern "C" fn(
    *const libc::c_char,
    *mut T,
    *mut libc::c_char,
    usize,
    *mut *mut T,
) -> libc::c_int;

/// The number in the entry of that name. Gives `look_up` more and more room, as long as it says that there is too little.
///
/// # Safety
/// `look_up` is `getpwnam_r`, or a function like it (`getgrnam_r`).
unsafe fn number_of<T>(name: &str, look_up: LookUp<T>, number: fn(&T) -> u32) -> Option<u32> {
    /// No entry is longer.
    const MOST: usize = 1 << 20;
    let name = CString::new(name).ok()?;
    let mut room = 1 << 10;
    while room <= MOST {
        let mut buffer: Vec<libc::c_char> = vec![0; room];
        let mut entry = MaybeUninit::uninit();
        let mut found = std::ptr::null_mut();
        let (to, strings) = (entry.as_mut_ptr(), buffer.as_mut_ptr());
        // SAFETY: all are ours, the buffer as long as said.
        match unsafe { look_up(name.as_ptr(), to, strings, room, &raw mut found) } {
            // SAFETY: null, or the entry, which the function has filled in.
            0 => return unsafe { found.as_ref() }.map(number),
            libc::ERANGE => room *= 2,
            _ => return None,
        }
    }
    None
}

/// `SO_PEERPIDFD` (Linux 6.5): a pidfd for the process that connected, without
/// the race of opening it by number.
pub(crate) fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: integers.
    let fd: libc::c_int = unsafe { option(socket.as_fd(), libc::SO_PEERPIDFD) }?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A shared read-write mapping of 32-bit words, for the daemon's whole life.
#[derive(Debug)]
pub(crate) struct Words {
    words: &'static [AtomicU32],
}

impl Words {
    /// Maps `bytes` bytes of `file`, which must be that long and can never
    /// shrink (the caller seals it).
    pub(crate) fn map(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice aliases
        // nothing of ours.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        // SAFETY: page aligned, `bytes` long, only ever accessed as atomics,
        // and unmapped by nobody but `drop`, after which no reference is left.
        let words = unsafe {
            std::slice::from_raw_parts(start.cast::<AtomicU32>().cast_const(), bytes / 4)
        };
        Ok(Self { words })
    }

    /// The words.
    pub(crate) fn get(&self) -> &[AtomicU32] {
        self.words
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping and `get` hands out no reference that
        // outlives `self`.
        let _ = unsafe {
            rustix::mm::munmap(self.words.as_ptr().cast_mut().cast(), self.words.len() * 4)
        };
    }
}

/// Moves this thread into a new network namespace, in which there is nothing.
pub(crate) fn leave_network_namespace() -> io::Result<()> {
    // SAFETY: no memory and no descriptors are shared less by that, only what later calls of this
    // thread mean by an address.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?)
}

/// Descriptors that become readable when a signal arrives.
#[derive(Debug)]
pub struct Signals {
    /// SIGTERM or SIGINT: the daemon is to end.
    pub stop: OwnedFd,
    /// SIGHUP: it is to read its configuration again.
    pub reload: OwnedFd,
}

impl Signals {
    /// From now on these signals do nothing else. SIGXFSZ does nothing: a file that may grow no more must
    /// not end us.
    ///
    /// # Errors
    /// When the kernel refuses, which it does only for want of descriptors.
    pub fn new() -> io::Result<Self> {
        block(&[libc::SIGXFSZ])?;
        Ok(Self {
            stop: signals(&[libc::SIGTERM, libc::SIGINT])?,
            reload: signals(&[libc::SIGHUP])?,
        })
    }
}

fn block(numbers: &[libc::c_int]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set that the other calls read.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &number in numbers {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(set.assume_init())
    }
}

/// Blocks signals; readable when one of them has come.
fn signals(numbers: &[libc::c_int]) -> io::Result<OwnedFd> {
    let set = block(numbers)?;
    // SAFETY: the set is initialised, and the new descriptor belongs to nobody else.
    unsafe {
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Takes over a descriptor that our parent left open for us (`--ready-fd`, `LISTEN_FDS`).
///
/// # Errors
/// When the number is not that of an open descriptor, or one of 0, 1, 2.
pub fn adopt_descriptor(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD on a wrong number only fails.
    if number <= 2 || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, the command line or the environment says that it is ours,
    // and `main` calls this before it opens anything else.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
