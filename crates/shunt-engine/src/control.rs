//! The connection to shuntd. It is used rarely, and may be lost at any moment. No call of the
//! program's waits for it, except where a function says so.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::kept::Kept;
use crate::{link, sys};

mod answer;
mod board;
mod borrow;
mod dial;
mod due;
mod home;
mod inquiry;
mod mail;
mod names;
mod news;
mod other_host;
mod patience;
mod reply;
mod request;
mod state;
mod stock;
mod to_daemon;
mod vain;
mod wire;

pub(crate) use board::{accelerates, await_listed, await_trial, crosses, has_mail, is_tried};
pub(crate) use borrow::{Loan, Proxy, Request, Resent, borrow};
pub(crate) use dial::{
    ensure, ensure_without_waiting, first_has_ended, has_been_served, is_to_come_for, show_region,
};
pub(crate) use inquiry::{await_answers, inquire};
pub(crate) use mail::{check_mail, lacks_sockets, take_wishes};
pub(crate) use news::{bury, listen, refuse, release, report, report_shunted, unlisten};
pub(crate) use reply::nap;
pub(crate) use request::{ask_alone, claim, claim_again, claim_now, claim_patiently};
pub(crate) use state::{AFAR, is_fresh, why_not, wish_again};
pub(crate) use vain::Vain;

use mail::{drain, read_all};
use state::{GREETED, GUEST, LOCK, RETRY_AT, SOCKET};

/// A listener looks this often (in ticks) whether the daemon has changed.
const LOOK_TICKS: u64 = 1 << 28;
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// Looks now and then whether the daemon went away or came back. Servers call this, and threads that wait for an
/// answer.
pub(crate) fn look() {
    let now = sys::ticks();
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) < LOOK_TICKS {
        return;
    }
    LOOKED_AT.store(now, Ordering::Relaxed);
    let fd = SOCKET.number();
    if fd >= 0 && (sys::ready(fd, libc::POLLIN) != 0 || state::is_any_due() || link::any_gone()) {
        drain(read_all);
    }
    ensure();
}

/// Moves the control socket to another number, if the program wants its number `fd`.
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
    reply::after_fork_child();
    // The stock is the parent's, and its memory is not mapped here.
    stock::after_fork_child();
    due::forget();
    state::forget_questions();
    dial::after_fork_child();
}
