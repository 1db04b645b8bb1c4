//! Lends the descriptor of a connection's other end, so that a process that gives up
//! shared memory can send to itself what it has not read there, while its peer is
//! busy elsewhere.
//!
//! Only for a connection that this daemon has paired, to who holds its other end,
//! and within one user: a copy that is kept would keep the peer's end of file back.

use std::os::fd::AsFd;

use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};

use super::Daemon;
use crate::client::Passed;
use crate::end::{EndId, State};
use crate::foreign::Foreign;
use crate::inspect::{self, Look};

impl Daemon {
    /// A client asks for the other end of the socket `fd`, which `asker` names.
    pub(super) fn lend(&mut self, asker: EndId, fd: i32) {
        let mut lent = Message::new(Kind::Lent);
        lent.cookie = asker.cookie;
        let socket = self.other_end(asker, fd);
        if socket.is_none() {
            lent.status = Reason::NotEstablished as u8;
        }
        self.post(asker.client, lent, socket.map(Passed::Socket));
    }

    fn other_end(&self, asker: EndId, fd: i32) -> Option<Foreign> {
        let client = self.clients.get(&asker.client)?;
        let looked = inspect::look(client.pidfd.as_fd(), fd, asker.cookie, &client.lane);
        let Look::Found(tuple) = looked else {
            return None;
        };
        self.ends.with_tuple(tuple.flipped()).iter().find_map(|id| {
            let (end, holder) = (self.ends.get(*id)?, self.clients.get(&id.client)?);
            let paired = matches!(end.state, State::Paired(_)) && holder.uid == client.uid;
            // Its copy waits in the lane of the user who pays for it.
            let copy =
                || inspect::copy(holder.pidfd.as_fd(), end.fd, Some(id.cookie), &holder.lane).ok();
            paired.then(copy)?
        })
    }
}
