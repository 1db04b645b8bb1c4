//! How a set ends, and what of the sets a forked child has.

use std::sync::atomic::{AtomicU64, Ordering};

use super::set::{SETS, Set};
use super::sleepers::leave_doors;
use super::watch::watch;
use super::{base_events, hearing};
use crate::hold::Held;
use crate::link::Link;
use crate::sys;

impl Held for Set {
    fn count(&self) -> &AtomicU64 {
        &self.holds
    }

    fn unhold_by(&'static self, hold: u64) {
        if self.holds.fetch_sub(hold, Ordering::AcqRel) == hold {
            self.end();
        }
    }
}

impl Set {
    fn end(&'static self) {
        let Ok(state) = self.retire() else {
            return;
        };
        for outer in SETS
            .each()
            .filter(|s| s.nested.load(Ordering::Acquire) != 0)
        {
            outer.with(|state| {
                let before = state.nested.len();
                state.nested.retain(|&set| set != self.index());
                outer
                    .nested
                    .fetch_sub((before - state.nested.len()) as u32, Ordering::AcqRel);
            });
        }
        if let Some(state) = state {
            let asleep = self.sleepers.load(Ordering::Acquire);
            let nested = state.nested.iter().filter(|_| asleep != 0);
            for nested in nested.filter_map(|&set| SETS.get(set)) {
                leave_doors(nested, asleep);
            }
            for item in state.items.iter().filter(|i| i.live) {
                if let Some(mut socket) = item.socket.lock() {
                    socket.change_places(|places| places.retain(|&(set, _)| set != self.index()));
                    watch(&socket);
                }
            }
            for follow in &state.follows {
                hearing::leave_door(self, follow);
                follow.link.unhold();
            }
        }
        self.channel.close();
        for ours in [&self.inner, &self.kick, &self.kept] {
            // To the kernel's answer any eventfd or epoll set is the same file, so only what is noted as ours is closed.
            let is_ours = ours.is_kept();
            if let Some(fd) = ours.take().filter(|_| is_ours) {
                sys::close(fd);
            }
        }
        self.waited_on.clear();
        SETS.give(self);
    }
}

/// In a forked child, of links whose memory has not come: no set reads their logs. (After a bare
/// fork libc's allocator may be another thread's.)
pub(crate) fn forget_links(is_lost: impl Fn(&Link) -> bool) {
    for set in SETS.each().filter(|set| set.is_live()) {
        set.with_any(|state| state.follows.retain(|follow| !is_lost(follow.link)));
    }
}

/// In a forked child: locks that other threads held are free.
pub(crate) fn after_fork_child() {
    for set in SETS.each() {
        set.lock.reset();
        set.sleepers.store(0, Ordering::Relaxed);
        set.waiters.store(0, Ordering::Relaxed);
        set.plain_sleepers.store(0, Ordering::Relaxed);
        set.with_any(base_events::after_fork_child);
    }
    forget_channels();
}

/// No set will be called any more.
pub(crate) fn close_all() {
    for set in SETS.each() {
        set.with(|_| set.channel.close());
    }
}

/// In a forked child: the doors belong to the parent, so the channels are forgotten.
fn forget_channels() {
    for set in SETS.each() {
        set.is_watching.store(false, Ordering::Relaxed);
        set.channel.close();
    }
}
