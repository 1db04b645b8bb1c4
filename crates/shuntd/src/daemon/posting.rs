//! Messages to clients, and what is watched on a client's socket: room for those that it has not read, and its own messages.

use rustix::event::epoll;
use shunt_abi::message::Message;

use super::{Daemon, SOCKET};
use crate::client::{Counted, Passed};

impl Daemon {
    /// Sends a message to a client. One that cannot be reached is dropped soon.
    pub(super) fn post(&mut self, id: u64, message: Message, fd: Option<Passed>) {
        let limit = self.outbox_limit();
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.post(message, fd, limit).is_err() {
            self.doomed.push(id);
        }
        self.watch(id);
    }

    /// What a client may leave unread: an answer for each of its claims.
    pub(super) fn outbox_limit(&self) -> usize {
        self.config.limits.connections_per_client.saturating_add(64)
    }

    /// Watches for room in a client's socket exactly while something is unsent, and for messages unless it
    /// is put off.
    pub(super) fn watch(&mut self, id: u64) {
        let has_list = self.has_list_of(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if let Some(share) = self.per_user.get_mut(&client.uid) {
            let now = Counted {
                unread: client.unread(),
                list: !client.rows.is_empty() || has_list,
            };
            let before = std::mem::replace(&mut client.counted, now);
            share.unread = share.unread + now.unread - before.unread;
            share.lists = share.lists + usize::from(now.list) - usize::from(before.list);
            if now.unread > before.unread && share.unread > self.config.limits.unread_per_user {
                // Not the one that came last: the one that reads least.
                let uid = client.uid;
                let of_user = self.clients.iter().filter(|(_, c)| c.uid == uid);
                let slowest = of_user.max_by_key(|(_, c)| c.unread());
                self.doomed.extend(slowest.map(|(id, _)| *id));
            }
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let wanted = interest(client.has_unsent(), !client.is_put_off);
        if wanted != client.watched {
            client.watched = wanted;
            let data = epoll::EventData::new_u64(id << 2 | SOCKET);
            let _ = epoll::modify(&self.epoll, &client.socket, data, wanted);
        }
    }
}

/// What is watched on a client's socket: whether there is room in it, and whether it says something.
pub(super) fn interest(room: bool, ear: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::RDHUP;
    flags.set(epoll::EventFlags::OUT, room);
    flags.set(epoll::EventFlags::IN, ear);
    flags
}
