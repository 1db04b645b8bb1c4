//! Downgrades that `shunt downgrade`, a changed policy or a restless test has asked for: done when a call
//! is about to wait.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;

use super::leave::is_too_much_for_tcp;
use super::{Conn, give_up, owed};
use crate::socket::{Socket, Stage};
use crate::{config, control, table, thread};

/// Does what was asked for. Without a token.
#[inline]
pub(crate) fn see_to_wishes() {
    let all = config::is_restless();
    if all || control::take_wishes() {
        go_back(all);
    }
}

#[cold]
fn go_back(all: bool) {
    if !thread::owns_memory() {
        return;
    }
    table::each(|fd, word| {
        let Some(socket) = word.get::<Socket>() else {
            return;
        };
        if let Some(conn) = Conn::attached(socket, fd)
            && conn.is_mirrored()
            && owed::is_due(&conn)
        {
            owed::answer(&conn);
        }
        let wished = Reason::from_number(socket.dealings.wished.load(Ordering::Relaxed));
        if !(wished.is_some() || all && socket.stage() == Stage::Attached) {
            return;
        }
        // Nothing needs TCP at once: the peer may first read some of what is unread.
        if Conn::attached(socket, fd)
            .is_some_and(|conn| is_too_much_for_tcp(&conn) || is_in_use(&conn))
        {
            if wished.is_some() {
                control::wish_again();
            }
            return;
        }
        socket.dealings.wished.store(0, Ordering::Relaxed);
        give_up(socket, fd, wished.unwrap_or(Reason::Requested), |_| ());
    });
}

/// Whether a thread is in the middle of a call on the connection, of this process or of a relative. That may last for as long as this
/// thread sleeps: it may be the one that fills the call's memory (`userfaultfd`).
fn is_in_use(conn: &Conn) -> bool {
    let own = conn.pair.own;
    [&own.sending.token, &own.receiving.token]
        .iter()
        .any(|token| token.is_taken() && !thread::is_held_by_dead(token))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn nobody_waits_for_a_call_of_another_thread_to_go_back() {
        let ends = BothEnds::attached();
        ends.send(b"x");
        assert_eq!(ends.receive::<1>(), b"x");
        let (socket, fd) = (ends.sockets[0], ends.fds[0]);
        let wish = || {
            socket
                .dealings
                .wished
                .store(Reason::Requested as u8, Ordering::Relaxed);
            go_back(false);
            socket.dealings.wished.load(Ordering::Relaxed) != 0
        };
        let ((taken, is_taken), (end, is_over)) = (mpsc::channel(), mpsc::channel());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let token = &Conn::of(fd).unwrap().pair.own.sending.token;
                assert!(thread::try_take(token));
                taken.send(()).unwrap();
                is_over.recv().unwrap();
                thread::give(token);
            });
            is_taken.recv().unwrap();
            let is_wished = wish();
            let apart = scope.spawn(|| {
                thread::set_apart();
                control::take_wishes()
            });
            let taken = (apart.join().unwrap(), control::take_wishes());
            end.send(()).unwrap();
            assert!(is_wished, "it is to be done later");
            assert_eq!(taken, (false, true), "a child in this memory leaves it");
        });
        assert!(!wish());
        assert!(!ends.conns()[0].is_on_ring());
    }
}
