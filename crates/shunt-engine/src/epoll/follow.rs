//! Which links' logs a set reads, and at which door of each link it is registered.

use std::cell::Cell;

use super::hearing;
use super::set::Set;
use super::state::{Follow, State};
use crate::link::Link;

impl State {
    /// One member more on this link: the set reads the link's logs from now on.
    pub(super) fn follow(&mut self, link: &'static Link, set: &Set) {
        if let Some(follow) = self.follows.iter_mut().find(|f| std::ptr::eq(f.link, link)) {
            follow.members += 1;
            return;
        }
        link.hold();
        let door = hearing::find_door(set, link);
        if link.is_between_hosts() {
            set.watch_nic();
        }
        let log = link.peer().log(door.unwrap_or(0));
        self.follows.push(Follow {
            link,
            door,
            name: Cell::new(set.channel.called()),
            log,
            head: log.end(),
            members: 1,
        });
    }

    /// The door at which the set stands at a link.
    pub(super) fn door(&self, link: &Link, set: &Set) -> Option<u32> {
        let follow = self.follows.iter().find(|f| std::ptr::eq(f.link, link))?;
        hearing::door(set, follow)
    }

    /// Whether the set has a door at a link, or there is one for it.
    pub(super) fn may_follow(&self, link: &Link, set: &Set) -> bool {
        match self.follows.iter().find(|f| std::ptr::eq(f.link, link)) {
            Some(follow) => hearing::door(set, follow).is_some(),
            None => hearing::is_free(link),
        }
    }

    /// One member less on this link: without any, the set stops reading its logs.
    pub(super) fn unfollow(&mut self, link: &'static Link, set: &Set) {
        if let Some(at) = self.follows.iter().position(|f| std::ptr::eq(f.link, link)) {
            self.follows[at].members -= 1;
            if self.follows[at].members == 0 {
                hearing::leave_door(set, &self.follows.swap_remove(at));
                link.unhold();
                // Threads that wait for a listener are called by the channel, too.
                if self.follows.is_empty() && self.listeners.is_empty() {
                    hearing::unwatch(set);
                }
            }
        }
    }
}
