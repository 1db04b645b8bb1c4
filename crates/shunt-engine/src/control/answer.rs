//! Handles the messages that the daemon sends.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::message::{self, Kind, Message};
use shunt_abi::{Reason, layout};
use shunt_shm::arena::Arena;
use shunt_shm::{publish, slot};

use super::state::{AFAR, OPEN_QUESTIONS, wish_again};
use super::{news, other_host, stock};
use crate::link::{Link, Pair};
use crate::region::count;
use crate::socket::{SOCKETS, Socket, Stage};
use crate::{cores, reach, thread, wake};

pub(super) fn handle(m: &Message, passed: Option<c_int>) {
    match m.kind() {
        Some(Kind::Paired) => give_memory(m, passed),
        Some(Kind::Unpaired) => {
            if let Some(socket) = find(m) {
                unpaired(socket, m);
            }
        }
        Some(Kind::Downgrade) => {
            if let Some(socket) = find(m) {
                let reason = Reason::from_number(m.status).unwrap_or(Reason::Requested);
                socket
                    .dealings
                    .wished
                    .store(reason as u8, Ordering::Relaxed);
                wish_again();
            }
        }
        Some(Kind::Where) => answered_where(m, find(m)),
        Some(Kind::Alone) => {
            if let Some(socket) = find(m) {
                socket.again.answered(m.generation, m.status == 0);
            }
        }
        Some(Kind::NeedSpare) => stock::add(m.slot.clamp(1, layout::MOST_SLOTS)),
        Some(Kind::Abroad) => {
            if let Some(passed) = passed {
                wake::keep_abroad(passed, m.role == 0);
            } else if m.flags & message::FLAG_ANSWER != 0 {
                wake::note_answer(m.index);
            } else {
                wake::note_lost();
            }
        }
        Some(Kind::Cores) => {
            if let Some(passed) = passed {
                cores::adopt(passed, m.index as usize);
            }
        }
        Some(Kind::Gone) => Link::bury(m.link, m.flags),
        Some(Kind::Meet) => {
            let link = other_host::link_of(m);
            give(m, link);
        }
        Some(Kind::Word) => other_host::hear(m),
        Some(Kind::Died) => {
            if let Some(socket) = find(m) {
                other_host::note_death(socket, m);
            }
        }
        _ => {}
    }
}

/// Handles `Paired`: a socket's connection has got memory.
fn give_memory(m: &Message, passed: Option<c_int>) {
    // The link serves later pairs too, so it is opened even if this connection has gone.
    let link = link_of(m, passed);
    give(m, link);
}

/// Gives a claimed socket its slot on this link.
fn give(m: &Message, link: Option<&'static Link>) {
    let is_claimed = |socket: &&Socket| socket.stage() == Stage::Claimed;
    let Some(socket) = find(m).filter(is_claimed) else {
        return;
    };
    match link {
        Some(link) if link.is_retired() && link.is_between_hosts() => {
            news::refuse(socket, Reason::Forked);
        }
        Some(link) if link.is_retired() => pass_over(socket, m, link),
        link if link.and_then(|link| paired(socket, m, link)).is_some() => {}
        _ => news::refuse(socket, Reason::NoResources),
    }
}

/// Handles `Unpaired`: a socket's connection has got no memory, for now or for good.
fn unpaired(socket: &'static Socket, m: &Message) {
    match Reason::from_number(m.status) {
        Some(Reason::PeerLeft) => left(socket, m),
        Some(Reason::Held) => socket.ask_later(),
        Some(reason) => {
            if reason.is_afar() {
                AFAR.note();
            }
            socket.give_up(reason);
        }
        None => socket.note_answer(m.flags & message::FLAG_MATCHED != 0),
    }
}

/// The socket a message is about: by its descriptor, if it still is the one.
fn find(m: &Message) -> Option<&'static Socket> {
    Socket::of(m.fd)
        .filter(|s| s.cookie() == m.cookie)
        .or_else(|| {
            SOCKETS
                .each()
                .find(|s| s.cookie() == m.cookie && s.is_live())
        })
}

/// The link that a pairing uses; a new one is opened.
fn link_of(m: &Message, passed: Option<c_int>) -> Option<&'static Link> {
    if m.flags & message::FLAG_NEW_LINK != 0 {
        let own = stock::take(m.arena)?;
        let peer = passed.and_then(|passed| Arena::open(passed, own.slots()).ok());
        let link = peer.and_then(|peer| Link::open(m.link, m.arena, own, peer));
        if link.is_none() {
            for arena in [Some(own), peer].into_iter().flatten() {
                // SAFETY: nobody has looked at it.
                unsafe { arena.unmap() };
            }
        }
        link
    } else {
        Link::find(m.link, m.arena)
    }
}

/// The process that held the other end has let go of it before it was used, and another process may have it.
/// Notes that for the next call on the connection.
fn left(socket: &Socket, m: &Message) {
    if let Some(pair) = socket.pair()
        && (pair.link.id(), pair.number, pair.generation) == (m.link, m.slot, m.generation)
    {
        socket.dealings.left.store(m.generation, Ordering::Relaxed);
    }
}

/// The daemon has taken a slot before it heard that a relative has the memory: the next call on the connection asks
/// for another one, as its peer does when it finds that this one is handed on.
fn pass_over(socket: &'static Socket, m: &Message, link: &'static Link) {
    if let Some(pair) = Pair::new(link, m.slot, m.generation) {
        pair.own.begin(slot::first_life(m.generation), pair.out);
        publish::set_bits(&pair.own.face.state, slot::REFUSED | slot::HANDED_ON);
    }
    socket.dealings.passed_over.store(true, Ordering::Relaxed);
    socket.move_on(Stage::Claimed, Stage::Candidate);
}

fn paired(socket: &'static Socket, m: &Message, link: &'static Link) -> Option<()> {
    let pair = Pair::new(link, m.slot, m.generation)?;
    if link.is_between_hosts() {
        reach::close(link.own_number(), m.slot);
    }
    pair.own.begin(slot::first_life(m.generation), pair.out);
    if socket.afar.load(Ordering::Relaxed) {
        AFAR.reset();
    }
    // A thread that sleeps on this connection alone must be called from the other namespace.
    let is_elsewhere = m.flags & message::FLAG_CROSSES != 0;
    if is_elsewhere && socket.items.is_empty() && !thread::is_alone() {
        wake::expect_sleeper(SOCKETS.used());
    }
    socket.set_pair(pair).then_some(())
}

/// Handles the answer to "where is the other end?". `socket`: the one that was asked about, unless it is closed and
/// counted. With the lock.
fn answered_where(m: &Message, socket: Option<&Socket>) {
    let one_less = |open: u32| open.checked_sub(1);
    let _ = OPEN_QUESTIONS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    let former = u8::try_from(m.index).ok().and_then(Reason::from_number);
    let (Some(former), Some(reason)) = (former, Reason::from_number(m.status)) else {
        return;
    };
    match socket {
        Some(socket) if socket.reason().is_provisional() => socket.set_reason(reason),
        Some(_) => {}
        None => count::recount(former, reason),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn that_a_peer_has_left_is_believed_of_this_very_pairing_only() {
        let ends = BothEnds::paired();
        let socket = ends.sockets[0];
        let pair = socket.pair().unwrap();
        let told = |slot, generation| {
            let mut message = Message::new(Kind::Unpaired);
            message.link = pair.link.id();
            (message.slot, message.generation) = (slot, generation);
            left(socket, &message);
            socket.dealings.left.load(Ordering::Relaxed)
        };
        assert_eq!(told(pair.number, pair.generation + 1), 0);
        assert_eq!(told(pair.number + 1, pair.generation), 0);
        assert_eq!(told(pair.number, pair.generation), pair.generation);
    }

    #[test]
    fn a_message_finds_its_socket_by_the_cookie_whatever_the_number_names_now() {
        let ends = BothEnds::paired();
        let [one, other] = ends.sockets;
        let found = |fd, cookie| {
            let mut message = Message::new(Kind::Unpaired);
            (message.fd, message.cookie) = (fd, cookie);
            find(&message).map(Socket::cookie)
        };
        assert_eq!(found(ends.fds[0], one.cookie()), Some(one.cookie()));
        assert_eq!(found(ends.fds[0], other.cookie()), Some(other.cookie()));
        assert_eq!(found(ends.fds[0], u64::MAX), None);
    }
}
