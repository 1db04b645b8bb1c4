//! Messages about a socket that could not be sent to the daemon yet.
//!
//! The queue of a daemon that is busy, or stopped, may be full. What has no room there stays
//! noted at its socket, whose memory stays for as long, and is said before anything newer:
//! with the next message, the next mail, or the next look at the daemon. (Not so claims: a
//! connection is claimed by a later call on it as well.)

use std::sync::atomic::{AtomicU32, Ordering};

use shunt_abi::message::{self, Kind, Message};

use super::names::{names_of, write_names};
use super::state::{ANY_DUE, LOCK, SOCKET, is_any_due, note_due};
use super::stock;
use super::to_daemon::send;
use super::wire::Sent;
use crate::link;
use crate::socket::untold::{BURIED, LISTENED, LISTENS, RELEASED, STATUS};
use crate::socket::{SOCKETS, Socket, Stage};

/// The kinds of news in the order in which they are sent, each with those that make it needless.
const NEWS: [(u8, u8); 4] = [
    (LISTENS, LISTENED | BURIED),
    (STATUS, RELEASED),
    (LISTENED, 0),
    (RELEASED, 0),
];

/// The number of the object whose message did not fit last.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Says something of a socket, and before that what is due.
pub(super) fn say(socket: &'static Socket, what: u8) {
    socket.dealings.due.add(what);
    if !LOCK.take() {
        // In the middle of an answer of the daemon's, or in a signal handler on top of one.
        return note_due();
    }
    if catch_up() && !say_of(socket) {
        NEXT.store(socket.index(), Ordering::Relaxed);
        note_due();
    }
    LOCK.give();
}

/// Says what has become of a connection.
pub(super) fn say_status(socket: &'static Socket, status: u8) {
    socket.dealings.due.add_status(status);
    say(socket, STATUS);
}

/// Says what is due, as far as there is room. `false`: something is left. With the lock.
pub(super) fn catch_up() -> bool {
    if !is_any_due() {
        return true;
    }
    ANY_DUE.store(false, Ordering::SeqCst);
    // This comes first, so that no claim finds a link that a relative has.
    if !link::retire_all(say_retired) {
        note_due();
        return false;
    }
    let (first, used) = (NEXT.load(Ordering::Relaxed), SOCKETS.used());
    let left = (first..used)
        .chain(0..first.min(used))
        .find(|&index| SOCKETS.get(index).is_some_and(|s| !say_of(s)));
    if let Some(left) = left {
        NEXT.store(left, Ordering::Relaxed);
        note_due();
    } else {
        stock::catch_up();
    }
    !is_any_due()
}

/// `false`: the daemon's queue is full. With the lock.
fn say_retired(link: u64) -> bool {
    let mut m = Message::new(Kind::Retire);
    m.link = link;
    SOCKET.number() < 0 || send(&m, None) != Sent::Full
}

/// `false`: the daemon's queue is full. With the lock.
fn say_of(socket: &'static Socket) -> bool {
    let due = socket.dealings.due.what();
    for (news, needless) in NEWS {
        if due & news == 0 {
            continue;
        }
        let sent = due & needless == 0 && SOCKET.number() >= 0;
        if sent && send(&message(socket, news), None) == Sent::Full {
            return false;
        }
        socket.dealings.due.said(news);
    }
    if due & BURIED != 0 {
        socket.free();
    }
    true
}

fn message(socket: &Socket, news: u8) -> Message {
    let mut m = Message::new(match news {
        LISTENS => Kind::Listen,
        LISTENED => Kind::Unlisten,
        STATUS => Kind::Report,
        _ => Kind::Release,
    });
    m.cookie = socket.cookie();
    if news == RELEASED && socket.dealings.due.is_used() {
        m.flags = message::FLAG_USED;
    }
    if news & (LISTENS | LISTENED) != 0 {
        m.port = socket.port();
    }
    if news == STATUS {
        (m.fd, m.role) = (socket.fd(), socket.role() as u8);
        m.status = socket.dealings.due.status();
        if socket.stage() == Stage::Attached {
            m.flags = message::FLAG_USED;
        }
        write_names(&mut m, names_of(socket.fd()));
    }
    m
}

/// The daemon is gone: nothing is due any more.
pub(super) fn forget() {
    ANY_DUE.store(false, Ordering::Release);
    for socket in SOCKETS.each() {
        let due = socket.dealings.due.forget();
        if due & BURIED != 0 {
            socket.free();
        }
    }
}

/// Tells a new daemon, which knows nothing, of listeners and of attached connections, which continue. A connection that was
/// claimed and not paired is claimed again by its next call.
pub(super) fn tell_everything() {
    stock::forget();
    forget();
    for socket in SOCKETS.each() {
        match socket.stage() {
            Stage::Listener => socket.dealings.due.add(LISTENS),
            Stage::Attached | Stage::Aside => {
                socket.dealings.told.store(true, Ordering::Relaxed);
                socket.dealings.due.add_status(0);
            }
            Stage::Claimed => {
                socket.move_on(Stage::Claimed, Stage::Candidate);
            }
            _ => {}
        }
    }
    note_due();
    catch_up();
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use libc::c_int;

    use super::super::wire;
    use crate::both_ends::one_at_a_time;
    use crate::sys;

    const COOKIE: u64 = 0x5ee;

    /// The daemon's end of the connection to it.
    fn daemon() -> c_int {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        assert!(made == 0 && SOCKET.keep(ends[0]));
        ends[1]
    }

    /// What the daemon is told of a socket of which there is this news, all at once: as when its queue was full.
    fn told(news: &[u8]) -> Vec<Kind> {
        let _alone = one_at_a_time();
        let daemon = daemon();
        let socket = Socket::enter(304_000, Stage::Listener).unwrap();
        socket.set_cookie(COOKIE);
        news.iter().for_each(|&news| socket.dealings.due.add(news));
        note_due();
        assert!(LOCK.take());
        catch_up();
        LOCK.give();
        assert_eq!(socket.dealings.due.what(), 0);
        let messages = std::iter::from_fn(|| wire::receive(daemon).unwrap());
        let of_it = messages.filter(|(m, _)| m.cookie == COOKIE);
        let told = of_it.map(|(m, _)| m.kind().unwrap()).collect();
        sys::close(SOCKET.take().unwrap());
        sys::close(daemon);
        told
    }

    #[test]
    fn news_are_told_in_their_order() {
        assert_eq!(told(&[RELEASED, LISTENED]), [Kind::Unlisten, Kind::Release]);
        assert_eq!(told(&[STATUS, LISTENS]), [Kind::Listen, Kind::Report]);
    }

    #[test]
    fn what_has_become_needless_is_not_told() {
        assert_eq!(told(&[LISTENS, LISTENED]), [Kind::Unlisten]);
        assert_eq!(told(&[STATUS, RELEASED]), [Kind::Release]);
    }
}
