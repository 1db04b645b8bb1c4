//! How a set inside another one, or inside `poll`, is seen.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::collect::has_ready;
use super::near;
use super::set::Set;
use crate::{Outcome, sys};

/// A set in a set: the kernel keeps it; we must know that it is there.
pub(super) fn nest(
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
    if let Err(errno) = sys::epoll_ctl(set.fd(), operation, fd, pointer) {
        return Outcome::Fail(errno);
    }
    set.with(|state| match operation {
        libc::EPOLL_CTL_ADD => {
            state.nested.push(child);
            set.nested.fetch_add(1, Ordering::SeqCst);
            // Whoever sleeps must learn to look into it.
            if set.plain_sleepers.load(Ordering::SeqCst) != 0 && set.open_inner().is_ok() {
                set.kick();
            }
        }
        libc::EPOLL_CTL_DEL => {
            if let Some(at) = state.nested.iter().position(|s| std::ptr::eq(*s, child)) {
                state.nested.swap_remove(at);
                set.nested.fetch_sub(1, Ordering::AcqRel);
            }
        }
        _ => {}
    });
    Outcome::Done(0)
}

/// Makes the kernel see the set as ready exactly if it is: for whoever waits
/// on something that contains it.
pub(crate) fn expose(set: &'static Set) {
    set.expose_nested();
    // Also where nothing is shunted any more: what was ready may have gone.
    if set.inner.load(Ordering::Acquire) < 0 {
        return;
    }
    near::leave(set);
    let kick = set.kick.load(Ordering::Relaxed);
    let mut count = 1u64;
    if has_ready(set) {
        // An edge of the outer set for every piece of news, and for no look.
        let fresh = set
            .with(|state| std::mem::take(&mut state.fresh))
            .unwrap_or(true);
        if !set.exposed.swap(true, Ordering::Relaxed) || fresh {
            let _ = sys::write(kick, (&raw const count).cast(), 8);
        }
    } else if set.plain_sleepers.load(Ordering::SeqCst) == 0 {
        // A thread in a plain wait knows of nothing else.
        set.exposed.store(false, Ordering::Relaxed);
        let _ = sys::read(kick, (&raw mut count).cast(), 8);
    }
}

impl Set {
    /// Exposes the sets inside it.
    pub(super) fn expose_nested(&'static self) {
        self.each_nested(expose);
    }

    pub(super) fn each_nested(&'static self, visit: impl FnMut(&'static Set)) {
        if self.nested.load(Ordering::Acquire) == 0 {
            return;
        }
        // More than these take memory.
        let (mut few, mut more) = ([None; 64], Vec::new());
        self.with(|state| {
            for (to, from) in few.iter_mut().zip(&state.nested) {
                *to = Some(*from);
            }
            more.extend(state.nested.iter().skip(few.len()));
        });
        few.into_iter().flatten().chain(more).for_each(visit);
    }
}
