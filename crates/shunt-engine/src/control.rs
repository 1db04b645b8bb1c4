//! The connection to shuntd: rare, never waited for on an application's path
//! except where said, and safe to lose at any moment.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::message::Message;

use crate::kept::Kept;
use crate::link::{self, Link};
use crate::socket::{SOCKETS, Stage};
use crate::thread::Lock;
use crate::{sys, thread};

mod answer;
mod board;
mod borrow;
mod dial;
mod due;
mod inquiry;
mod patience;
mod request;
mod stock;
mod wait;
mod wire;

use wire::Sent;

pub(crate) use board::{accelerates, await_listed, has_mail};
pub(crate) use borrow::{Loan, borrow};
pub(crate) use inquiry::{await_answers, inquire};
pub(crate) use request::{
    ask_alone, bury, claim, claim_again, claim_now, claim_patiently, listen, refuse, release,
    report, report_shunted, unlisten,
};
pub(crate) use wait::nap;

/// After a failure, this long until the next try.
const RETRY_NS: u64 = 1_000_000_000;
/// The longest that a daemon's answer is waited for, where one is.
const PATIENCE_MS: i64 = 50;
/// A listener looks this often (in ticks) whether the daemon has changed.
const LOOK_TICKS: u64 = 1 << 28;

static LOCK: Lock = Lock::new();
static SOCKET: Kept = Kept::nothing();
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
/// A connection whose welcome is late.
static GREETED: Kept = Kept::nothing();
/// A connection to a daemon that only lists this process, which has changed its user.
static GUEST: Kept = Kept::nothing();
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Why there is no daemon, as a reason number.
static WHY_NOT: AtomicU32 = AtomicU32::new(Reason::NoDaemon as u32);

/// Why nothing can be paired now.
pub(crate) fn why_not() -> Reason {
    Reason::from_number(WHY_NOT.load(Ordering::Relaxed) as u8).unwrap_or(Reason::NoDaemon)
}

/// Connects if need be and the time has come. `true` if there is a daemon.
pub(crate) fn ensure() -> bool {
    if SOCKET.number() >= 0 {
        return true;
    }
    thread::set_used();
    if !LOCK.take() {
        return false;
    }
    // Another thread may have connected while we waited for the lock.
    let done =
        SOCKET.number() >= 0 || sys::now() >= RETRY_AT.load(Ordering::Relaxed) && dial::open();
    LOCK.give();
    done
}

/// Whether a daemon has come so lately that other processes may still have to find it, and tell it
/// where they listen.
pub(crate) fn is_fresh() -> bool {
    let latest = RETRY_AT.load(Ordering::Relaxed).saturating_add(RETRY_NS);
    SOCKET.number() >= 0 && sys::now() < latest
}

/// The counters region has just been made: shows it to the daemon, if there is one.
pub(crate) fn show_region() {
    // Also while another thread connects: it may have looked for the region too early.
    if LOCK.take() {
        dial::show_served();
        if let Some(fd) = intact().or_else(|| GUEST.get()) {
            dial::show_counters(fd);
        }
        LOCK.give();
    }
}

/// A look, now and then, whether the daemon went away or came back: by servers, and by who waits for
/// an answer.
pub(crate) fn look() {
    let now = sys::ticks();
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) < LOOK_TICKS {
        return;
    }
    LOOKED_AT.store(now, Ordering::Relaxed);
    let fd = SOCKET.number();
    if fd >= 0 && (sys::ready(fd, libc::POLLIN) != 0 || due::is_any() || link::any_gone()) {
        drain(read_all);
    }
    ensure();
}

/// Some connection is wished back to TCP ([`Socket::wished`](crate::socket::Socket)).
static WISHES: AtomicBool = AtomicBool::new(false);

/// Whether there are such wishes that nobody has seen to; also looks what the daemon has
/// sent. Two loads if there is nothing.
#[inline]
pub(crate) fn take_wishes() -> bool {
    check_mail();
    WISHES.load(Ordering::Relaxed) && WISHES.swap(false, Ordering::Acquire)
}

/// One of them is put off to the next wait.
pub(crate) fn wish_again() {
    WISHES.store(true, Ordering::Release);
}

/// Handles what the daemon has sent since the last look: one load if nothing.
#[inline]
pub(crate) fn check_mail() {
    if board::has_mail() {
        drain(read_counted);
    }
}

/// Reads and handles messages, unless another thread is about to.
#[cold]
fn drain(read: fn()) {
    // Whoever has the lock may do something else: then the mail stays unseen,
    // and the next look finds it.
    if !LOCK.try_take() {
        return;
    }
    if !wait::has_reader() {
        read();
    }
    LOCK.give();
}

/// Reads and handles every waiting message, and says what is due. With the lock.
fn read_all() {
    // A message is sent before it is counted.
    let mail = board::mail();
    while SOCKET.number() >= 0 && receive() {}
    if let Some(mail) = mail {
        board::set_seen(mail);
    }
    catch_up();
}

/// The same of those that the daemon has counted, without the call that finds no more.
fn read_counted() {
    let Some(mail) = board::mail() else {
        return read_all();
    };
    for _ in 0..board::unseen(mail) {
        // Somebody may have read some before they were counted.
        if SOCKET.number() < 0 || !receive() {
            break;
        }
    }
    board::set_seen(mail);
    catch_up();
}

fn catch_up() {
    due::catch_up();
    Link::sweep();
}

/// If `fd` is the control socket's number and the program wants it: moves.
pub(crate) fn make_way(fd: c_int) {
    for kept in [&GREETED, &SOCKET, &GUEST] {
        if kept.number() == fd && LOCK.take() {
            kept.make_way(fd);
            LOCK.give();
        }
    }
}

/// A forked child has its parent's connection: it must not speak on it.
pub(crate) fn after_fork_child() {
    LOCK.reset();
    let kept = [&SOCKET, &GREETED, &GUEST];
    for fd in kept.into_iter().filter_map(Kept::take) {
        sys::close(fd);
    }
    RETRY_AT.store(0, Ordering::Relaxed);
    wait::after_fork_child();
    // The stock is the parent's: its memory is not here.
    stock::after_fork_child();
    due::forget();
    inquiry::forget();
    dial::show_served();
}

/// The control socket, if its number still names it. With the lock.
fn intact() -> Option<c_int> {
    let fd = SOCKET.get();
    if fd.is_none() {
        SOCKET.take();
    }
    fd
}

/// Sends with the lock held.
fn send(m: &Message, passed: Option<c_int>) -> Sent {
    let Some(fd) = intact() else {
        return Sent::Lost;
    };
    let sent = wire::transmit(fd, m, passed);
    if sent == Sent::Lost {
        drop_connection(Reason::NoDaemon);
    }
    sent
}

/// Receives and handles one message, with the lock held.
fn receive() -> bool {
    let Some(fd) = intact() else { return false };
    match wire::receive(fd) {
        Ok(Some((m, passed))) => {
            answer::handle(&m, passed);
            if let Some(passed) = passed {
                sys::close(passed);
            }
            true
        }
        Ok(None) => false,
        Err(()) => {
            drop_connection(Reason::NoDaemon);
            false
        }
    }
}

fn drop_connection(why: Reason) {
    if let Some(fd) = SOCKET.take() {
        sys::close(fd);
    }
    inquiry::forget();
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
