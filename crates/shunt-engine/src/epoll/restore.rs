//! What becomes of the descriptors that the library has for a set, if the program wants their numbers or closes them.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::set::{SETS, Set};
use super::state::{Follow, State};
use super::{outside, polled};
use crate::kept::Kept;
use crate::{config, sys, thread};

/// Moves a descriptor of the library's to another number, if the program wants its number `fd`.
pub(crate) fn make_way(fd: c_int) {
    for set in SETS.each().filter(|set| set.is_live()) {
        // The kernel's registration of the channel does not depend on its number.
        set.channel.make_way(fd, false);
        let ours = [&set.inner, &set.kick, &set.kept];
        if ours.iter().any(|ours| ours.number() == fd) {
            move_away(set, fd);
        }
    }
}

/// If there is no other number, the set does without.
#[cold]
fn move_away(set: &'static Set, fd: c_int) {
    // Also of a set of which nothing else is known.
    set.kept.make_way(fd);
    set.follow_kept(fd);
    let (is_inner, is_kick) = (set.inner.number() == fd, set.kick.number() == fd);
    if !is_inner && !is_kick {
        return;
    }
    polled::leave(set);
    set.with_any(|state| {
        for ours in [&set.inner, &set.kick] {
            ours.make_way(fd);
        }
        // The kernel knows a member by its file and its number. While this process alone has the set, its number is renewed; or a
        // relative's copy would keep the former registration.
        if is_inner && set.is_own() {
            let _ = match set.inner_fd() {
                -1 => Ok(()),
                inner => set.enter_inner(inner),
            };
            leave(set.fd(), fd);
        }
        if is_kick && set.is_own() {
            let _ = match set.kick.is_kept() {
                true => set.enter_kick(set.inner_fd(), set.kick.number()),
                false => Ok(()),
            };
            leave(set.inner_fd(), fd);
        }
        restore(set, state);
    });
}

fn leave(set: c_int, member: c_int) {
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, member, std::ptr::null_mut());
}

/// Before a thread sleeps. The program may have closed the inner set or its kick by system calls of its own, or have wanted the
/// number while no other was free: makes another one, with all members, or does without. With the set's lock.
pub(super) fn restore(set: &'static Set, state: &mut State) {
    let needs = set.is_divided.load(Ordering::Relaxed) && !set.is_flat.load(Ordering::Relaxed);
    if needs && !is_whole(set) && thread::owns_descriptors() {
        replace(set, state);
    }
}

/// Whether the two numbers still name the inner set and its kick: then the one has the other in it.
fn is_whole(set: &Set) -> bool {
    if !set.inner.is_kept() || !set.kick.is_kept() {
        return false;
    }
    let (inner, kick) = (set.inner.number(), set.kick.number());
    // In a relative's place the kick may have moved, and what a confined process may ask is not known.
    if config::is_confined() || !set.is_own() {
        return true;
    }
    match set.enter_kick(inner, kick) {
        Err(libc::EEXIST) => true,
        Ok(()) => {
            // These are a set and a file of the program's.
            leave(inner, kick);
            false
        }
        Err(_) => false,
    }
}

/// Closes what is left of the two: what the kernel knows as a member at its number. (What else is there may be the program's.)
fn give_up(set: &Set) {
    let both = [&set.inner, &set.kick];
    let [inner, kick] = both.map(Kept::get);
    for kept in both {
        kept.take();
    }
    let is_member = |entered: Result<(), i32>| entered == Err(libc::EEXIST);
    let Some(inner) = inner else {
        return;
    };
    if let Some(kick) = kick {
        match is_member(set.enter_kick(inner, kick)) {
            true => sys::close(kick),
            false => leave(inner, kick),
        }
    }
    // In the set that a relative has, too, its own registration stays.
    let is_ours = !set.is_own() || is_member(set.enter_inner(inner));
    if set.is_own() {
        leave(set.fd(), inner);
    }
    if is_ours {
        sys::close(inner);
    }
}

#[cold]
#[inline(never)]
fn replace(set: &'static Set, state: &mut State) {
    // A process that has confined itself may not be allowed what this takes.
    let may = !config::is_confined();
    if may {
        give_up(set);
    }
    if !may || !set.is_own() || set.make_inner().is_err() {
        outside::take_all_out(set, state);
        return;
    }
    let inner = set.inner.number();
    for index in 0..state.items.len() as u32 {
        let item = &state.items[index as usize];
        if !item.live || !item.moved || item.outside {
            continue;
        }
        if let Some(fd) = item.fd_now() {
            let mut event = item.as_member(index, item.base);
            let _ = sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, fd, &raw mut event);
        }
        // Something may have come while nobody heard of it.
        state.enqueue(index, true);
    }
    let is_mirrored = |follow: &Follow| follow.link.is_between_hosts();
    if state.follows.iter().any(is_mirrored) {
        set.watch_nic();
    }
    set.kick();
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::one_at_a_time;
    use crate::hold::Held;
    use crate::table::{self, Word};

    #[test]
    fn the_copy_of_a_set_of_which_nothing_else_is_known_makes_way() {
        let _alone = one_at_a_time();
        thread::learn_pid();
        let fd = sys::epoll_create().unwrap();
        Set::enter(fd);
        let set = Set::of(fd).unwrap();
        // A call is under way as the program closes the set.
        set.hold();
        set.forget_fd(fd);
        let wanted = set.kept.number();
        assert!(wanted >= 0 && wanted != fd && set.fd() == wanted);
        make_way(wanted);
        let other = set.kept.number();
        assert!(other >= 0 && other != wanted && set.fd() == other);
        assert!(table::look(wanted) == Word::NOTHING && table::look(other) == Word::OURS);
        table::enter(fd, Word::NOTHING);
        for fd in [fd, wanted] {
            sys::close(fd);
            set.unhold();
        }
    }
}
