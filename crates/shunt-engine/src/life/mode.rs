//! `fcntl` and `ioctl`: how the calls of a descriptor behave, and what they tell of its bytes.

use std::sync::atomic::Ordering;

use libc::{c_int, c_ulong, c_void};
use shunt_abi::Reason;

use super::inherit::give_up;
use super::option::number;
use super::{after_dup, look_at, make_room};
use crate::entry::{self, Entry};
use crate::socket::Socket;
use crate::stream::Conn;
use crate::{Outcome, control, recycle, signal, stream, sys, thread};

const F_SETSIG: c_int = 10;
const F_SETOWN: c_int = 8;
const F_SETOWN_EX: c_int = 15;

/// Instead of `fcntl` on a tracked descriptor (it does `F_DUPFD` and `F_SETFL` itself).
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> Outcome {
    let entry = entry::look(fd);
    if matches!(entry, Entry::Other) {
        return Outcome::Kernel;
    }
    if matches!(entry, Entry::Ours) {
        return look_at(fd);
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let copy = || sys::fcntl(fd, command, argument as usize);
            let copied = match copy() {
                Err(libc::EMFILE) if make_room() => copy(),
                copied => copied,
            };
            match copied {
                Ok(new) => {
                    after_dup(fd, new as c_int);
                    Outcome::Done(new as isize)
                }
                Err(errno) => Outcome::Fail(errno),
            }
        }
        libc::F_SETFL => set_flags(fd, &entry, argument as c_int),
        libc::F_SETFD => {
            if let Entry::Socket(socket) = entry {
                note_cloexec(socket, argument as c_int & libc::FD_CLOEXEC != 0);
            }
            Outcome::Kernel
        }
        F_SETOWN | F_SETSIG | F_SETOWN_EX => {
            if let Entry::Socket(socket) = entry {
                control::refuse(socket, Reason::AsyncIo);
            }
            Outcome::Kernel
        }
        _ => Outcome::Kernel,
    }
}

/// `F_SETFL`.
fn set_flags(fd: c_int, entry: &Entry, flags: c_int) -> Outcome {
    if flags & libc::O_ASYNC != 0 {
        // The kernel signals what comes over the base socket.
        give_up(fd, Reason::AsyncIo);
    }
    if let Err(errno) = sys::fcntl(fd, libc::F_SETFL, flags as usize) {
        return Outcome::Fail(errno);
    }
    if let Entry::Socket(socket) = entry {
        note_nonblock(socket, flags & libc::O_NONBLOCK != 0);
        if flags & (libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME) != 0 {
            note_odd(socket);
        }
    }
    Outcome::Done(0)
}

/// It is not like a new socket any more. What a listener accepts that was connected before is, perhaps.
fn note_odd(socket: &Socket) {
    socket.settings.is_odd.store(true, Ordering::Relaxed);
    recycle::shut_shared();
}

/// `FD_CLOEXEC`, unless it is a `vfork` child's descriptor.
fn note_cloexec(socket: &Socket, on: bool) {
    if thread::owns_memory() {
        socket.made.note_cloexec(on);
    }
}

/// `O_NONBLOCK`, as all who have the connection see it.
fn note_nonblock(socket: &Socket, on: bool) {
    socket.made.note_nonblock(on);
    if let Some(pair) = socket.pair() {
        let nonblock = &pair.own.options.nonblock;
        nonblock.store(u32::from(on), Ordering::Relaxed);
    }
}

const SIOCATMARK: c_ulong = 0x8905;
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;
/// Like `TIOCOUTQ`, also known as `SIOCOUTQ`, without what is on its way.
const SIOCOUTQNSD: c_ulong = 0x894B;

/// Instead of `ioctl`.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> Outcome {
    let socket = match entry::look(fd) {
        Entry::Socket(socket) => socket,
        Entry::Ours => return look_at(fd),
        _ => return Outcome::Kernel,
    };
    match request {
        libc::FIONBIO => {
            if let Err(errno) = sys::ioctl(fd, request as usize, argument as usize) {
                return Outcome::Fail(errno);
            }
            // SAFETY: the kernel has just read it.
            note_nonblock(socket, unsafe { *argument.cast::<c_int>() } != 0);
            Outcome::Done(0)
        }
        libc::FIONREAD => match Conn::of(fd) {
            // SAFETY: the caller's promise.
            Some(conn) => unsafe { answer(argument, stream::unread(&conn)) },
            None => Outcome::Kernel,
        },
        libc::TIOCOUTQ | SIOCOUTQNSD => match Conn::of(fd) {
            Some(conn) if conn.is_on_ring() => {
                // SAFETY: the caller's promise.
                unsafe { answer(argument, stream::unsent(&conn)) }
            }
            _ => Outcome::Kernel,
        },
        SIOCATMARK => match Conn::of(fd) {
            Some(conn) if is_before_mark(&conn) => {
                // SAFETY: the caller's promise.
                unsafe { answer(argument, 0) }
            }
            _ => Outcome::Kernel,
        },
        libc::FIOCLEX | libc::FIONCLEX => {
            note_cloexec(socket, request == libc::FIOCLEX);
            Outcome::Kernel
        }
        // The process that the kernel signals is a property of the open file.
        FIOSETOWN | SIOCSPGRP => {
            note_odd(socket);
            Outcome::Kernel
        }
        // The kernel signals what comes over the base socket.
        libc::FIOASYNC => {
            note_odd(socket);
            // SAFETY: the caller's promise; the kernel reads it again.
            if unsafe { number(argument, size_of::<c_int>()) }.is_some_and(|on| on != 0) {
                give_up(fd, Reason::AsyncIo);
            }
            Outcome::Kernel
        }
        _ => Outcome::Kernel,
    }
}

/// An `ioctl` that tells a number of bytes, or as many as an `int` can say.
///
/// # Safety
/// `at` has room for an `int`, or is no address of the program's.
unsafe fn answer(at: *mut c_void, bytes: u64) -> Outcome {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // SAFETY: the caller's promise.
    match unsafe { signal::put(at.cast(), &bytes.to_ne_bytes()) } {
        true => Outcome::Done(0),
        false => Outcome::Fail(libc::EFAULT),
    }
}

/// Whether something lies before the mark that the kernel does not know of.
fn is_before_mark(conn: &Conn) -> bool {
    stream::pump(conn);
    stream::is_any_in_ring(conn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn fionbio_is_known_to_all_who_have_the_connection() {
        let ends = BothEnds::attached();
        let nonblock = &ends.sockets[0].pair().unwrap().own.options.nonblock;
        for mut on in [1, 0] {
            let at: *mut c_int = &raw mut on;
            // SAFETY: the number is there.
            let outcome = unsafe { ioctl(ends.fds[0], libc::FIONBIO, at.cast()) };
            assert_eq!(outcome, Outcome::Done(0));
            assert_eq!(nonblock.load(Ordering::Relaxed), on as u32);
        }
        // SAFETY: the kernel says that nothing is there.
        let nowhere = unsafe { ioctl(ends.fds[0], libc::FIONBIO, std::ptr::null_mut()) };
        assert_eq!(nowhere, Outcome::Fail(libc::EFAULT));
    }
}
