//! Between hosts the receiver agrees before a direction enters its ring: the sender proposes that where it has nothing more to send just
//! now, so that the answer is there before it sends again.

use super::conn::Conn;
use crate::thread::{give, try_take};
use crate::{reach, tcp};

/// Proposes that the outgoing direction enters its ring. Without the sending token.
#[cold]
pub(super) fn propose(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if !conn.sender().may_switch() || !try_take(token) {
        return;
    }
    let may = conn.sender().may_switch() && !conn.socket.inside.has_sender() && !conn.is_shared();
    let written = |base| tcp::written_at_last(base, conn.socket.role());
    if let Some(written) = conn.base().filter(|_| may).and_then(written) {
        let (link, slot) = conn.at_nic();
        reach::propose(link, slot, written);
    }
    give(token);
}

/// The peer, on another host, has not entered its ring at the byte where this side has looked for
/// it: this direction stays on TCP. With the receiving token.
#[cold]
pub(super) fn stay_on_tcp(conn: &Conn) {
    conn.receiver().stay_on_tcp();
    let (link, slot) = conn.at_nic();
    reach::stayed(link, slot);
}
