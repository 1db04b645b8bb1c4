//! How a set inside another one, or inside `poll`, is seen.
//!
//! The kernel keeps it there, and looks only at its descriptors. So before the kernel is asked, [`expose`] makes a set that
//! has shunted news look ready. A thread that sleeps on the outer set is counted at the inner set's doors, too
//! ([`stand_at_doors`]): a peer calls it as it calls a thread that sleeps on the inner one.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::collect::has_ready;
use super::outside;
use super::polled;
use super::set::Set;
use super::sleepers::{leave_doors, stand_at_doors};
use crate::{Outcome, sys};

/// A set in a set: the kernel keeps it; we must know that it is there.
pub(crate) fn nest(
    set: &'static Set,
    operation: c_int,
    child: &'static Set,
    fd: c_int,
    event: Option<epoll_event>,
) -> Outcome {
    let mut event = event;
    let pointer = event
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    if operation == libc::EPOLL_CTL_ADD {
        // What the child's inner set reports, and the child has not heard yet, is no event of the program's.
        expose(child);
    }
    let change = || sys::epoll_ctl(set.fd(), operation, fd, pointer);
    let is_deeper = |errno: &i32| {
        let too_deep = matches!(*errno, libc::ELOOP | libc::EINVAL | libc::ENOMEM);
        too_deep
            && operation == libc::EPOLL_CTL_ADD
            && !holds(child, set)
            && outside::make_flat(child)
    };
    let changed = match change() {
        Err(errno) if is_deeper(&errno) => change(),
        changed => changed,
    };
    if let Err(errno) = changed {
        return Outcome::Fail(errno);
    }
    match operation {
        libc::EPOLL_CTL_ADD => put_in(set, child),
        libc::EPOLL_CTL_DEL => take_out(set, child),
        _ => {}
    }
    Outcome::Done(0)
}

/// Whether a set is another one, or has it inside at any depth.
fn holds(outer: &'static Set, inner: &'static Set) -> bool {
    let mut found = std::ptr::eq(outer, inner);
    outer.each_inside(|nested| found |= holds(nested, inner));
    found
}

/// A thread that sleeps on the set sleeps on the child as well from now on, and is woken to look into it.
fn put_in(set: &'static Set, child: &'static Set) {
    let counted = set.with(|state| {
        state.nested.push(child.index());
        set.nested.fetch_add(1, Ordering::SeqCst);
        set.sleepers.load(Ordering::Acquire)
    });
    let counted = counted.unwrap_or(0);
    if counted != 0 {
        stand_at_doors(child, counted);
    }
    let asleep = counted + set.plain_sleepers.load(Ordering::SeqCst);
    if asleep != 0 && set.with(|_| set.open_inner().is_ok()) == Some(true) {
        set.kick();
    }
}

fn take_out(set: &'static Set, child: &'static Set) {
    let counted = set.with(|state| {
        let at = state.nested.iter().position(|&set| set == child.index())?;
        state.nested.swap_remove(at);
        set.nested.fetch_sub(1, Ordering::AcqRel);
        Some(set.sleepers.load(Ordering::Acquire))
    });
    if let Some(counted @ 1..) = counted.flatten() {
        leave_doors(child, counted);
    }
}

/// Makes the kernel see the set as ready exactly if it is: for threads that wait on something that contains it.
pub(crate) fn expose(set: &'static Set) {
    set.expose_nested();
    // Also where nothing is shunted any more: what was ready may have gone.
    if !set.is_divided.load(Ordering::Acquire) && !set.looks_in_turns() {
        return;
    }
    polled::leave(set);
    if has_ready(set) {
        // An edge of the outer set for every piece of news, and for no look.
        let fresh = set
            .with(|state| std::mem::take(&mut state.fresh))
            .unwrap_or(true);
        if !set.exposed.swap(true, Ordering::Relaxed) || fresh {
            set.with(|state| outside::ring(set, state));
            set.wake_any();
        }
    } else if set.plain_sleepers.load(Ordering::SeqCst) == 0 {
        // A thread in a plain wait knows of nothing else.
        set.exposed.store(false, Ordering::Relaxed);
        set.hear_kick();
    }
}

impl Set {
    /// Exposes the sets inside it.
    pub(crate) fn expose_nested(&'static self) {
        self.each_inside(expose);
    }
}
