//! Descriptors in messages (`SCM_RIGHTS`).
//!
//! Before the real `sendmsg` a connection that is sent goes back to TCP, with what is unread in its ring, and stays there: nobody can
//! tell who else has a copy one day ([`Reason::Passed`]). What comes to this process is one of its connections by another number, or a
//! candidate.

use libc::c_int;
use shunt_abi::Reason;

use super::adopt::adopt;
use super::connection::adopt_listener;
use super::inherit::give_up;
use super::track::forget_stale;
use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{SOCKETS, Socket, Stage};
use crate::{recycle, signal, sys, thread};

/// Descriptors are being passed to another process.
///
/// # Safety
/// `message` is a valid header with control data.
pub(crate) unsafe fn passing(message: *const libc::msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        each_passed(message, |fd| {
            if thread::owns_memory() {
                if let Some(socket) = Socket::of(fd) {
                    socket.made.forget();
                    recycle::shut_shared();
                }
                give_up(fd, Reason::Passed);
            }
        });
    }
}

/// Descriptors have been passed to this process: some may be further ones of
/// connections that it has.
///
/// # Safety
/// `message` is a valid header with control data.
pub(crate) unsafe fn passed(message: *const libc::msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        each_passed(message, |fd| {
            forget_stale(fd);
            if !thread::owns_memory() {
                return;
            }
            let Ok(cookie) = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) else {
                return;
            };
            let known = SOCKETS
                .each()
                .find(|s| s.stage() == Stage::Attached && s.cookie() == cookie);
            if let Some(socket) = known {
                socket.hold();
                entry::enter(fd, Entry::Socket(socket));
            } else if !adopt_listener(fd) {
                adopt(fd);
            }
        });
    }
}

/// Calls `visit` for every descriptor in the control data.
///
/// # Safety
/// `message` is a valid header with control data.
unsafe fn each_passed(message: *const libc::msghdr, visit: impl Fn(c_int)) {
    // SAFETY: the caller's promise; the CMSG macros stay inside the control data.
    unsafe {
        let (control, room) = ((*message).msg_control, (*message).msg_controllen);
        if !signal::may_read(control.cast::<u8>(), room) {
            return;
        }
        let end = control.addr().saturating_add(room);
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let h = *header;
            // The kernel refuses the message. (A length near the largest would lead the macro back to this header.)
            if h.cmsg_len > end - header.addr() {
                return;
            }
            if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = (header.addr() + h.cmsg_len).saturating_sub(data.addr());
                for i in 0..bytes / size_of::<c_int>() {
                    visit(data.add(i).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
