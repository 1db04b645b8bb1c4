//! Connections of a set that wait for room, and whose peers may not be able to call when they make some.
//!
//! Such a peer goes back to TCP, of which the kernel has nothing to tell to who waits for room alone
//! ([`SELDOM`]). So a thread that sleeps on the set looks from time to time at those that have asked for room. Each that
//! is woken by others reads of it in the log of the link, which such a peer writes, too.

use std::sync::atomic::Ordering;

use super::set::Set;
use super::state::{Item, State};
use super::wanted;
use crate::stream::{self, Conn, SELDOM};
use crate::sys;

/// What a registration for room asks for.
pub(super) const ROOM: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

impl Set {
    /// Whether a connection of this process has asked for room since there was none in this set that waits for it.
    #[inline]
    pub(super) fn may_wait_for_room(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != stream::asked() && self.is_shunted()
    }
}

/// Queues the members of the set, and of those inside, that have got the room for which they wait; not again soon.
pub(crate) fn look_for_room(set: &'static Set) {
    set.each_inside(look_for_room);
    if !set.may_wait_for_room() {
        return;
    }
    let now = sys::now();
    let is_soon = now.wrapping_sub(set.looked_for_room_at.load(Ordering::Relaxed)) < SELDOM / 2;
    if is_soon {
        return;
    }
    set.looked_for_room_at.store(now, Ordering::Relaxed);
    // Read before the look, so that a connection which asks meanwhile causes another one.
    let asked = stream::asked();
    // Outside of the set's lock, as a `poll` of them would do.
    let full = set.with(|state| {
        state
            .items
            .iter()
            .filter_map(waits_for_room)
            .map(|conn| conn.fd)
            .collect::<Vec<_>>()
    });
    for conn in full.into_iter().flatten().filter_map(Conn::of) {
        stream::leave_full(&conn);
    }
    if set.with(look) == Some(false) {
        set.asked.store(asked, Ordering::Relaxed);
    }
}

/// Queues members that have got room. Returns whether any still wait. With the set's lock.
fn look(state: &mut State) -> bool {
    let mut any = false;
    for index in 0..state.items.len() {
        let Some(conn) = waits_for_room(&state.items[index]) else {
            continue;
        };
        any = true;
        // This also sees room where this side has still to follow the peer back to TCP. It does not ask the peer again:
        // each question costs all cores a barrier, and makes threads that sleep on the other sets of this process look
        // from time to time, too.
        let has_room = if conn.is_mirrored() {
            stream::has_room_again(&conn)
        } else {
            stream::mask_at_a_glance(&conn, ROOM, false) & ROOM != 0
        };
        if has_room {
            state.enqueue(index as u32, false);
        }
    }
    any
}

/// The connection of a member that has not been told of room since it was last asked for.
fn waits_for_room(item: &Item) -> Option<Conn<'static>> {
    let may = item.live && item.moved && !item.inactive && wanted(item.events) & ROOM != 0;
    let conn = may.then(|| Conn::new(item.socket, item.socket.fd()))??;
    (conn.asked_at() != item.room_told).then_some(conn)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use libc::{epoll_event, iovec};

    use super::super::register;
    use crate::Outcome;
    use crate::both_ends::BothEnds;
    use crate::hold::Held;
    use crate::table::{self, Word};

    /// Fills the ring of a connection.
    fn fill(conn: &Conn) {
        let bytes = [0u8; 4096];
        let part = iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let send = || {
            // SAFETY: the part is readable.
            unsafe { stream::send(conn, &[part], libc::MSG_DONTWAIT) }
        };
        while let Outcome::Done(_) = send() {}
        assert_eq!(send(), Outcome::Fail(libc::EAGAIN));
    }

    #[test]
    fn a_look_finds_who_waits_for_room_and_asks_no_peer_again() {
        let ends = BothEnds::on_rings();
        let fd = sys::epoll_create().unwrap();
        Set::enter(fd);
        let set = Set::of(fd).unwrap();
        let (socket, number) = (ends.sockets[0], ends.fds[0]);
        let event = epoll_event {
            events: ROOM,
            u64: 7,
        };
        let added = register(set, libc::EPOLL_CTL_ADD, socket, number, event);
        assert_eq!(added, Outcome::Done(0));
        ends.send(b"by the ring");
        fill(&ends.conns()[0]);
        let asked = stream::asked();
        look_for_room(set);
        assert!(set.may_wait_for_room() && stream::asked() == asked);
        table::enter(fd, Word::NOTHING);
        set.unhold();
        sys::close(fd);
    }
}
