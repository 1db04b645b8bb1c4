//! Attaches the sockets of a set that have been paired meanwhile, before a wait on the set.

use crate::epoll::{self, AT_ONCE, Known, Room, Set};
use crate::socket;
use crate::{tcp, upgrade};

/// Edge-triggered registrations follow when the kernel has no event for them any more: events that
/// it has go to the program, together with ready shunted items. Returns how many events these are.
#[inline]
pub(super) fn bring_forward(set: &'static Set, room: &mut Room) -> usize {
    if socket::is_any_paired() {
        bring_paired(set, room)
    } else {
        0
    }
}

#[cold]
#[inline(never)]
fn bring_paired(set: &'static Set, room: &mut Room) -> usize {
    let waiting = epoll::waiting(set);
    let waiting = || waiting.into_iter().flatten();
    for (socket, fd, _) in waiting().filter(|w| !w.2) {
        upgrade::progress(socket, fd, Known::Nothing);
    }
    if !waiting().any(|w| w.2) {
        return 0;
    }
    let mut marks = [None; AT_ONCE];
    for (mark, (_, fd, _)) in marks.iter_mut().zip(waiting()) {
        *mark = tcp::mark(fd);
    }
    // Before one more registration moves, since its events would be told twice.
    let (found, is_all) = epoll::collect_all(set, room);
    if is_all {
        for ((socket, fd, edge), mark) in waiting().zip(marks) {
            if let (true, Some(mark)) = (edge, mark) {
                upgrade::progress(socket, fd, Known::Told(set.index(), mark));
            }
        }
    }
    found
}
