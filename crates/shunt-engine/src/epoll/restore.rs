//! What becomes of the descriptors that the library has for a set, if the program wants their numbers or closes them.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::outside;
use super::set::{SETS, Set};
use super::state::State;
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
    let is_inner = set.inner.number() == fd;
    for ours in [&set.inner, &set.kick, &set.kept] {
        ours.make_way(fd);
    }
    set.follow_kept(fd);
    if is_inner && !set.inner.is_kept() {
        // A relative's copy would keep the registration.
        let none = std::ptr::null_mut();
        let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, none);
    }
    set.with(|state| restore(set, state));
}

/// The program may have closed the inner set or its kick by system calls of its own, or have wanted the number while no other was
/// free: makes another one, with all members, or does without. With the set's lock.
pub(super) fn restore(set: &'static Set, state: &mut State) {
    let is_there = || set.inner.get().is_some() && set.kick.is_kept();
    let needs = set.is_divided.load(Ordering::Relaxed) && !set.is_flat.load(Ordering::Relaxed);
    if needs && !is_there() && thread::owns_descriptors() {
        replace(set, state);
    }
}

#[cold]
#[inline(never)]
fn replace(set: &'static Set, state: &mut State) {
    for former in [&set.inner, &set.kick] {
        if let Some(fd) = former.take() {
            sys::close(fd);
        }
    }
    if config::is_confined() || set.make_inner().is_err() {
        outside::take_all_out(set, state);
        return;
    }
    let inner = set.inner.number();
    for index in 0..state.items.len() as u32 {
        let item = &state.items[index as usize];
        if !item.live || !item.moved || item.outside {
            continue;
        }
        if item.is_named() {
            let mut event = item.as_member(index, item.base);
            let _ = sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, item.fd, &raw mut event);
        }
        // Something may have come while nobody heard of it.
        state.enqueue(index, true);
    }
    if state
        .follows
        .iter()
        .any(|follow| follow.link.is_between_hosts())
    {
        set.watch_nic();
    }
    set.kick();
}
