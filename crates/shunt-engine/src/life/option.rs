//! Socket options.
//!
//! The kernel sets each option on the base socket, and answers for it. Here is what the rings must know of options
//! ([`setsockopt`]), and which ones only the kernel can honour, so that the connection goes back to TCP
//! ([`needs_kernel`]). All others change nothing in a ring: it holds nothing back, whatever `TCP_NODELAY` and `TCP_CORK`
//! say (the latter is told to the kernel only where somebody may ask it); `SO_KEEPALIVE` and `TCP_USER_TIMEOUT` are the base
//! socket's affair; and `TCP_INFO` counts what went by TCP.

use std::sync::atomic::Ordering;

use libc::{c_int, c_void, socklen_t};
use shunt_abi::Reason;
use shunt_shm::atomic::full;
use shunt_shm::slot;

use super::inherit::give_up;
use crate::socket::{KEEPALIVE, SETS_TIMEOUTS, Socket, Stage};
use crate::stream::Conn;
use crate::{Outcome, config, recycle, signal, stream, sys, thread, upgrade, wake};

/// `SO_RCVTIMEO` and `SO_SNDTIMEO` with a time of 64 bits on every machine
/// (`asm-generic/socket.h`), which the `libc` crate does not name here.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;

/// The `int` that an option of this length begins with, if the kernel would take it.
///
/// # Safety
/// Nobody unmaps it meanwhile.
pub(super) unsafe fn number(value: *const c_void, length: usize) -> Option<c_int> {
    let value = value.cast::<c_int>();
    let is_there = length >= size_of::<c_int>() && is_address(value) && signal::may_read(value, 1);
    // SAFETY: it can be read; alignment is the program's choice.
    is_there.then(|| unsafe { value.read_unaligned() })
}

/// Whether anything can lie at this address: nothing can in the first page.
fn is_address<T>(at: *const T) -> bool {
    at as usize >= 4096
}

/// Options that have `recvmsg` tell the time; the latter two for programs whose `time_t` is longer
/// than a `long` (`SO_TIMESTAMP_NEW`, `SO_TIMESTAMPNS_NEW`).
const TIMES: [c_int; 4] = [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS, 63, 64];

/// Tells which of its two buffers a program has set the size of (since Linux 5.14).
const SO_BUF_LOCK: c_int = 72;
const SOCK_SNDBUF_LOCK: c_int = 1;

/// A socket has come from another program, which may have set options that rings must know of.
pub(super) fn learn(socket: &Socket, fd: c_int) {
    let ask = |name| sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, name);
    let is_needed = [libc::SO_PEEK_OFF, libc::SO_MAX_PACING_RATE]
        .into_iter()
        .any(|name| needs_kernel(libc::SOL_SOCKET, name, ask(name).ok()));
    socket
        .settings
        .needs_kernel
        .store(is_needed, Ordering::Relaxed);
    if ask(SO_BUF_LOCK).is_ok_and(|set| set & SOCK_SNDBUF_LOCK != 0) {
        let bytes = ask(libc::SO_SNDBUF).unwrap_or(0);
        socket
            .settings
            .sndbuf
            .store(bytes as u32, Ordering::Relaxed);
    }
    let is_set = |&name: &c_int| ask(name) == Ok(1);
    let told_by = TIMES.into_iter().find(is_set).unwrap_or(0);
    socket.settings.tells_time.store(told_by, Ordering::Relaxed);
    let left = sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_INQ);
    socket
        .settings
        .tells_left
        .store(left == Ok(1), Ordering::Relaxed);
    if sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_CORK) != Ok(0) {
        socket.settings.tell_cork(fd);
    }
}

/// A `recvmsg` with room for control data: the kernel alone knows when bytes come.
pub(crate) fn before_control_data(fd: c_int) {
    if Socket::of(fd).is_some_and(|socket| socket.settings.tells_time.load(Ordering::Relaxed) != 0)
    {
        give_up(fd, Reason::SocketOption);
    }
}

/// Instead of `setsockopt`.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    let Some(socket) = Socket::of(fd) else {
        return Outcome::Kernel;
    };
    // SAFETY: the caller's promise; the kernel checks it again.
    let number = unsafe { number(value, length as usize) };
    if !note_keepalive(socket, fd, level, name) {
        socket.settings.note(level, name, number);
        recycle::shut_shared();
    }
    if needs_kernel(level, name, number) {
        if is_handed_on(level, name, number) {
            // If the kernel refuses the option, only speed is lost.
            socket.settings.needs_kernel.store(true, Ordering::Relaxed);
        }
        give_up(fd, Reason::SocketOption);
        if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
            && socket.stage() == Stage::Attached
        {
            // Only a real call knows of the option.
            socket.hints.brought.store(0, Ordering::Relaxed);
            // Threads that sleep in a receive continue in the kernel's own call, which returns fewer bytes after a signal.
            wake::wake_all();
        }
        return Outcome::Kernel;
    }
    match (level, name, number) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF, Some(bytes)) => note_send_buffer(socket, fd, bytes),
        (libc::SOL_SOCKET, SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW, _) => {
            socket
                .settings
                .timeouts
                .fetch_or(SETS_TIMEOUTS, Ordering::SeqCst);
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO, _)
            if length as usize >= size_of::<libc::timeval>()
                && is_address(value)
                && signal::may_read(value.cast::<libc::timeval>(), 1) =>
        {
            // SAFETY: it can be read; the kernel checks it again.
            let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
            note_timeout(socket, name, &time);
        }
        (libc::SOL_SOCKET, name, Some(on)) if TIMES.contains(&name) => {
            // Only a `recvmsg` with room for control data sees a difference.
            let told_by = if on == 0 { 0 } else { name };
            socket.settings.tells_time.store(told_by, Ordering::Relaxed);
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK, Some(on)) => return cork(socket, fd, on != 0),
        (libc::IPPROTO_TCP, libc::TCP_INQ, Some(on @ 0..=1)) => {
            socket.settings.tells_left.store(on != 0, Ordering::Relaxed);
        }
        _ => {}
    }
    Outcome::Kernel
}

/// Notes the former value of an option that the next connection on the base socket must find as before ([`KEEPALIVE`]).
/// `false`: it is no such option.
fn note_keepalive(socket: &Socket, fd: c_int, level: c_int, name: c_int) -> bool {
    let which = KEEPALIVE.iter().position(|&known| known == name);
    let which = which.filter(|_| level == libc::IPPROTO_TCP && socket.is_connected());
    let Some(before) = which.map(|which| &socket.settings.keepalive[which]) else {
        return false;
    };
    if !config::recycles() || before.load(Ordering::Relaxed) != 0 {
        return config::recycles();
    }
    let now = sys::getsockopt::<c_int>(fd, level, name);
    before.store(now.unwrap_or(0), Ordering::Relaxed);
    now.is_ok()
}

/// Whether an option makes the kernel do what rings cannot.
fn needs_kernel(level: c_int, name: c_int, number: Option<c_int>) -> bool {
    const TCP_ULP: c_int = 31;
    const TCP_REPAIR: c_int = 19;
    // For programs whose `time_t` is longer than a `long`.
    const SO_TIMESTAMPING_NEW: c_int = 65;
    match (level, name) {
        (libc::IPPROTO_TCP, TCP_ULP | TCP_REPAIR) => true,
        (
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_ZEROCOPY
            | libc::SO_TIMESTAMPING
            | SO_TIMESTAMPING_NEW,
        ) => true,
        // Any other number than -1 bounds how fast the kernel sends.
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => number.is_some_and(|rate| rate != -1),
        // Where the next look begins.
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => number.is_some_and(|n| n >= 0),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => number.is_some_and(|n| n != 0),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => number.is_some_and(|n| !(0..=1).contains(&n)),
        _ => false,
    }
}

/// Whether such an option of a listener holds for what it accepts. (Others do, too, but whoever pairs a connection asks the kernel
/// for them.)
fn is_handed_on(level: c_int, name: c_int, number: Option<c_int>) -> bool {
    level == libc::SOL_SOCKET
        && match name {
            libc::SO_OOBINLINE | libc::SO_RCVLOWAT => false,
            libc::SO_PEEK_OFF | libc::SO_MAX_PACING_RATE => true,
            _ => number != Some(0),
        }
}

/// `SO_SNDBUF`.
fn note_send_buffer(socket: &'static Socket, fd: c_int, bytes: c_int) {
    // The kernel doubles it for its own overhead; so do we (socket(7)).
    let bytes = (bytes as u32).saturating_mul(2).max(4608);
    socket.settings.sndbuf.store(bytes, Ordering::Relaxed);
    if let Some(conn) = Conn::new(socket, fd) {
        stream::resize(&conn, bytes);
    }
}

/// `TCP_CORK`, which has been noted: while the process has the connection alone, and sends by its ring, the kernel need not know.
fn cork(socket: &'static Socket, fd: c_int, on: bool) -> Outcome {
    let settings = &socket.settings;
    let is_apart = |conn: Conn| {
        conn.is_on_ring() && conn.pair.own.options.forked.load(Ordering::Relaxed) == slot::UNFORKED
    };
    let is_free = || thread::owns_memory() && Conn::new(socket, fd).is_some_and(is_apart);
    if !settings.keeps_cork() && is_free() {
        // Other threads change nothing meanwhile that the kernel knows.
        let Some(_locked) = socket.lock() else {
            return Outcome::Kernel;
        };
        let asked = sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_CORK);
        if !on || asked != Ok(0) {
            let value = c_int::from(on);
            return match sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &value) {
                Ok(_) => Outcome::Done(0),
                Err(errno) => Outcome::Fail(errno),
            };
        }
        settings.keep_cork();
    }
    // Behind the note: who tells the kernel looks at that afterwards.
    full();
    if !is_free() {
        settings.tell_cork(fd);
    }
    if settings.keeps_cork() {
        Outcome::Done(0)
    } else {
        Outcome::Kernel
    }
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO`.
fn note_timeout(socket: &Socket, name: c_int, time: &libc::timeval) {
    socket
        .settings
        .timeouts
        .fetch_or(SETS_TIMEOUTS, Ordering::SeqCst);
    if (0..1_000_000).contains(&time.tv_usec) {
        let impatient = if name == libc::SO_RCVTIMEO {
            &socket.settings.impatient_receiver
        } else {
            &socket.settings.impatient_sender
        };
        impatient.store(time.tv_sec < 0, Ordering::Relaxed);
    }
}

/// Instead of `getsockopt`.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Outcome {
    /// `linux/tcp.h`.
    const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    match (level, name) {
        // SAFETY: the caller's promise.
        (libc::SOL_SOCKET, libc::SO_ERROR) => unsafe { socket_error(fd, value, length) },
        (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) => {
            give_up(fd, Reason::SocketOption);
            Outcome::Kernel
        }
        // (A `vfork` child may have something else at that number.)
        (libc::IPPROTO_TCP, libc::TCP_CORK) if thread::owns_memory() => {
            if let Some(socket) = Socket::of(fd) {
                socket.settings.tell_cork(fd);
            }
            Outcome::Kernel
        }
        _ => Outcome::Kernel,
    }
}

/// `SO_ERROR`.
///
/// # Safety
/// As for `getsockopt`.
unsafe fn socket_error(fd: c_int, value: *mut c_void, length: *mut socklen_t) -> Outcome {
    if let Some(socket) = Socket::of(fd) {
        // By this call a program asks whether a connect that did not block has succeeded.
        upgrade::sync::complete(socket, fd);
    }
    // SAFETY: the caller's promise.
    let (Some(conn), Some(room)) = (Conn::of(fd), unsafe {
        number(length.cast(), size_of::<socklen_t>())
    }) else {
        return Outcome::Kernel;
    };
    let Ok(room) = usize::try_from(room) else {
        return Outcome::Kernel;
    };
    let bytes = stream::socket_error(&conn).to_ne_bytes();
    let bytes = &bytes[..room.min(bytes.len())];
    let told = bytes.len() as socklen_t;
    // SAFETY: the caller's promise.
    let is_told = unsafe {
        signal::put(value.cast(), bytes) && signal::put(length.cast(), &told.to_ne_bytes())
    };
    if is_told {
        Outcome::Done(0)
    } else {
        Outcome::Fail(libc::EFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    fn set<T>(fd: c_int, level: c_int, name: c_int, value: &T) -> Outcome {
        let length = size_of::<T>() as socklen_t;
        // SAFETY: the value is there.
        unsafe { setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), length) }
    }

    #[test]
    fn options_that_only_the_kernel_has_are_known_with_their_values() {
        let needs = |name, number| needs_kernel(libc::SOL_SOCKET, name, Some(number));
        assert!(needs(libc::SO_ZEROCOPY, 1) && needs(libc::SO_ATTACH_FILTER, 0));
        assert!(needs(libc::SO_OOBINLINE, 1) && !needs(libc::SO_OOBINLINE, 0));
        assert!(needs(libc::SO_RCVLOWAT, 2) && needs(libc::SO_RCVLOWAT, -1));
        assert!(!needs(libc::SO_RCVLOWAT, 1) && !needs(libc::SO_KEEPALIVE, 1));
        assert!(needs(libc::SO_PEEK_OFF, 0) && !needs(libc::SO_PEEK_OFF, -1));
        assert!(needs(libc::SO_MAX_PACING_RATE, 0) && !needs(libc::SO_MAX_PACING_RATE, -1));
        let goes_on = |name, number| is_handed_on(libc::SOL_SOCKET, name, Some(number));
        assert!(goes_on(libc::SO_PEEK_OFF, 0) && !goes_on(libc::SO_RCVLOWAT, 5));
        assert!(goes_on(libc::SO_MAX_PACING_RATE, 1_000_000));
        assert!(goes_on(libc::SO_TIMESTAMPING, 8) && !goes_on(libc::SO_TIMESTAMPING, 0));
        assert!(!needs_kernel(libc::SOL_SOCKET, libc::SO_RCVLOWAT, None));
        // The same number of another level is another option.
        assert!(!needs_kernel(libc::IPPROTO_TCP, libc::SO_ZEROCOPY, Some(1)));
    }

    #[test]
    fn a_send_buffer_bounds_what_is_in_flight_as_the_kernel_counts() {
        let ends = BothEnds::attached();
        let (socket, fd) = (ends.sockets[0], ends.fds[0]);
        assert_eq!(
            set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &8192),
            Outcome::Kernel
        );
        assert_eq!(socket.settings.sndbuf.load(Ordering::Relaxed), 16_384);
        let most = &socket.pair().unwrap().own.options.most;
        assert_eq!(most.load(Ordering::Relaxed), stream::bound(fd, 16_384));
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &1);
        assert_eq!(socket.settings.sndbuf.load(Ordering::Relaxed), 4608);
    }

    #[test]
    fn a_negative_timeout_makes_a_receiver_impatient() {
        let ends = BothEnds::attached();
        let (socket, fd) = (ends.sockets[0], ends.fds[0]);
        let time = |tv_sec, tv_usec| libc::timeval { tv_sec, tv_usec };
        let is_impatient = || socket.settings.impatient_receiver.load(Ordering::Relaxed);
        set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time(-1, 0));
        assert!(is_impatient() && !socket.settings.impatient_sender.load(Ordering::Relaxed));
        // The kernel refuses that, and nothing changes.
        set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time(1, 1_000_000));
        assert!(is_impatient());
        set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time(1, 0));
        assert!(!is_impatient());
        assert_ne!(
            socket.settings.timeouts.load(Ordering::Relaxed) & SETS_TIMEOUTS,
            0
        );
    }

    #[test]
    fn a_socket_that_is_to_filter_is_the_kernels() {
        let ends = BothEnds::on_rings();
        let fd = ends.fds[0];
        assert_eq!(
            set(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1),
            Outcome::Kernel
        );
        assert_eq!(ends.sockets[0].reason(), Reason::SocketOption);
        assert!(ends.conns()[0].is_off_rings());
    }

    #[test]
    fn the_time_that_a_program_wants_to_be_told_is_noted_by_its_option() {
        let ends = BothEnds::attached();
        let (socket, fd) = (ends.sockets[0], ends.fds[0]);
        set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1);
        assert_eq!(
            socket.settings.tells_time.load(Ordering::Relaxed),
            libc::SO_TIMESTAMPNS
        );
        set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &0);
        assert_eq!(socket.settings.tells_time.load(Ordering::Relaxed), 0);
        set(fd, libc::IPPROTO_TCP, libc::TCP_INQ, &1);
        assert!(socket.settings.tells_left.load(Ordering::Relaxed));
    }
}
