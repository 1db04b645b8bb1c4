//! How a receive goes: one attempt after another, from where the bytes are now.

use libc::{c_int, iovec};
use shunt_shm::slot::Way;

use super::Conn;
use super::attempt::{MSG_BEHIND, Next};
use super::errors::keep_error;
use super::wait::{Stay, out_of_patience, wait};
use super::want::Want;
use crate::Outcome;
use crate::iov::Cursor;
use crate::thread::{give, signals};

mod arrival;
mod back;
mod brought;
mod bytes;

mod eof;
mod from_tcp;
mod next;
mod pass_on;
mod resumed;
mod ring;
mod settle;
mod step;
mod unread;

use back::{after_ring, by_kernel, from_kernel};
use from_tcp::from_tcp;
use next::Call;
use ring::from_ring;
use step::Step;

pub(super) use arrival::{await_to_hand_on, is_expected};
pub(crate) use back::at_mark;
pub(super) use back::{follow_back, is_home};
pub(super) use bytes::recount;
pub(super) use pass_on::{CHUNK, drain, pass_on};
pub(super) use resumed::{Resumption, follow};
pub(super) use settle::settle;
pub(crate) use unread::{is_any_in_ring, leaves_unread, pump, unread};

/// Receives into `iov` like `recvmsg`. `flags` as for `recv`.
///
/// # Safety
/// The parts are writable.
#[inline]
pub(crate) unsafe fn receive(conn: &Conn, iov: &[iovec], flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    Stay::during(|stay| unsafe { receive_in(conn, iov, flags, stay) })
}

/// [`receive`] as a part of a call that is under way.
///
/// # Safety
/// The parts are writable.
#[inline]
pub(crate) unsafe fn receive_in(conn: &Conn, iov: &[iovec], flags: c_int, stay: &Stay) -> Outcome {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Outcome::Kernel;
    }
    let mut call = Call::new(iov, flags);
    if call.total == 0 {
        // The kernel waits for something to receive, then takes none of it.
        return nothing(conn, flags);
    }
    if conn.way_out() == Way::TcpAgain {
        conn.socket.may_return(conn.fd);
    }
    loop {
        if !call.attempts.take_token(conn, Want::Data, stay) {
            return call.cursor.done_or(out_of_patience(stay.seen.get()));
        }
        let here = &stay.at(conn);
        let there = if call.peeks() { unread(here) } else { 0 };
        let behind = if call.attempts.waits_on(here) {
            MSG_BEHIND
        } else {
            0
        };
        // SAFETY: the caller's promise.
        let step = unsafe { attempt_in(stay, here, &mut call.cursor, flags | behind) };
        give(&here.pair.own.receiving.token);
        let sleeps = matches!(
            step,
            Step::Empty | Step::Brings | Step::Asked | Step::Withdrawn | Step::Kernel
        );
        if sleeps && call.answers_peer(here) {
            continue;
        }
        match call.next(step, (conn, here), there, stay) {
            Next::End(outcome) => return outcome,
            Next::Attempt => continue,
            Next::Wait => {}
        }
        // SAFETY: the caller's promise.
        if let Some(outcome) = unsafe { call.wait(conn, stay) } {
            return outcome;
        }
    }
}

/// Receives what the kernel has now, after [`receive`] has said that the call is the kernel's.
/// `flags` as for `recv`.
///
/// # Safety
/// The parts are writable.
#[cold]
pub(super) unsafe fn by_kernel_now(conn: &Conn, iov: &[iovec], flags: c_int) -> Outcome {
    let cursor = Cursor::new(iov);
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the caller's promise.
    let received = unsafe { by_kernel(conn, &cursor, flags) };
    received.unwrap_or(Outcome::Fail(libc::EAGAIN))
}

/// One attempt of a call, with the receiving token.
///
/// # Safety
/// The cursor's parts are writable.
#[inline(always)]
unsafe fn attempt_in(stay: &Stay, conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    // SAFETY: the caller's promise.
    unsafe {
        match attempt(conn, cursor, flags) {
            // The real call would look up the program's number, which has been closed, or know nothing of the part, or of the
            // messages before.
            Step::Kernel if cursor.done() > 0 || flags & MSG_BEHIND != 0 || stay.goes_on(conn) => {
                from_kernel(conn, cursor, flags)
            }
            step => step,
        }
    }
}

/// With the receiving token.
///
/// # Safety
/// The cursor's parts are writable.
#[inline]
unsafe fn attempt(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    // SAFETY: the caller's promise.
    unsafe {
        loop {
            let step = match conn.way_in() {
                Way::Ring => from_ring(conn, cursor, flags),
                Way::Tcp => from_tcp(conn, cursor, flags),
                Way::TcpAgain | Way::Owing => after_ring(conn),
            };
            let step = match step {
                Step::Brings => match brought::from_tcp(conn, cursor, flags) {
                    Step::Empty => Step::Brings,
                    step => step,
                },
                Step::Asked => match brought::receive_during_recall(conn, cursor, flags) {
                    Step::Empty => Step::Asked,
                    step => step,
                },
                Step::Kernel => back::pending(conn).unwrap_or(step),
                step => step,
            };
            if !matches!(step, Step::Moved) {
                return step;
            }
        }
    }
}

/// `recv` of no bytes.
#[cold]
fn nothing(conn: &Conn, flags: c_int) -> Outcome {
    match look(conn, flags) {
        Outcome::Done(_) => Outcome::Done(0),
        // Whatever ends the wait, also time or any signal, the kernel has done what it was asked.
        Outcome::Fail(libc::EAGAIN) if conn.may_wait(flags) => {
            Stay::during(|stay| await_something(conn, flags, stay))
        }
        other => other,
    }
}

/// What a receive of one byte would return now, without taking the byte.
fn look(conn: &Conn, flags: c_int) -> Outcome {
    let mut byte = 0u8;
    let part = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: a byte of our own.
    unsafe { receive(conn, &[part], flags | libc::MSG_PEEK | libc::MSG_DONTWAIT) }
}

fn await_something(conn: &Conn, flags: c_int, stay: &Stay) -> Outcome {
    let (seen, mut deadline) = (signals::now(), None);
    loop {
        let waited = wait(conn, Want::Data, &mut deadline, stay, (seen, seen));
        if waited.is_err() || seen.any_since() {
            return Outcome::Done(0);
        }
        match look(conn, flags) {
            Outcome::Fail(libc::EAGAIN) => {}
            Outcome::Kernel => return Outcome::Kernel,
            // The next call reports the error.
            Outcome::Fail(errno) => {
                keep_error(conn, errno);
                return Outcome::Done(0);
            }
            Outcome::Done(_) => return Outcome::Done(0),
        }
    }
}
