//! Links to processes on other hosts: the daemon names them, and relays what both sides say of their queue pairs.

use shunt_abi::message::{Kind, Message};
use shunt_shm::slot;

use super::stock;
use super::to_daemon::send;
use super::wire::Sent;
use crate::link::{Link, Pair};
use crate::reach::{self, Text};
use crate::socket::Socket;

/// The link on which a connection has met its other end. If there is none yet, one is opened. Offers
/// the process at its other end a queue pair, if that is due.
pub(super) fn link_of(m: &Message) -> Option<&'static Link> {
    if !reach::may_be() {
        return None;
    }
    let link = Link::find_between_hosts(m.link)
        .or_else(|| Link::open_between_hosts(m.link, stock::next_number()))?;
    reach::begin(link.own_number(), &m.device(), |text| say(m.link, text));
    Some(link)
}

/// The process at the other end of a link says something.
pub(super) fn hear(m: &Message) {
    if let Some(link) = Link::find_between_hosts(m.link) {
        reach::heard(link.own_number(), &m.text(), |text| say(m.link, text));
    }
}

/// The process at the other end of a connection has died.
pub(super) fn note_death(socket: &Socket, m: &Message) {
    let named = (m.link, m.slot, m.generation);
    let is_named = |pair: &&Pair| (pair.link.id(), pair.number, pair.generation) == named;
    let pair = socket.pair().filter(is_named);
    if let Some(pair) = pair.filter(|pair| pair.link.is_between_hosts()) {
        // The daemon's counts hold for the first life of the slot only.
        let life = slot::first_life(m.generation);
        reach::note_death(pair.link.own_number(), pair.number, life, m.bytes[0]);
    }
}

/// `false`: the daemon has no room for it, or is gone.
fn say(link: u64, text: &Text) -> bool {
    let mut word = Message::new(Kind::Word);
    word.link = link;
    word.set_text(text);
    send(&word, None) == Sent::Done
}

#[cfg(all(test, not(miri)))]
mod tests;
