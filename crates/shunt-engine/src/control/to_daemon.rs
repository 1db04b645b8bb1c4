//! One message to the daemon, and the end of the connection to it.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::message::Message;

use super::state::{RETRY_AT, RETRY_NS, SOCKET, WHY_NOT, forget_questions, intact};
use super::wire::{self, Sent};
use crate::link::Link;
use crate::socket::{SOCKETS, Stage};
use crate::sys;

/// Sends with the lock held.
pub(super) fn send(m: &Message, passed: Option<c_int>) -> Sent {
    let Some(fd) = intact() else {
        return Sent::Lost;
    };
    let sent = wire::transmit(fd, m, passed);
    if sent == Sent::Lost {
        drop_connection(Reason::NoDaemon);
    }
    sent
}

pub(super) fn drop_connection(why: Reason) {
    if let Some(fd) = SOCKET.take() {
        sys::close(fd);
    }
    forget_questions();
    Link::bury_all();
    for socket in SOCKETS.each() {
        socket.again.forget();
        // Its claim is lost; it is made again when there is another daemon.
        if socket.stage() == Stage::Claimed {
            socket.set_reason(Reason::DaemonLost);
        }
    }
    WHY_NOT.store(why as u32, Ordering::Relaxed);
    RETRY_AT.store(sys::now() + RETRY_NS / 10, Ordering::Relaxed);
}
