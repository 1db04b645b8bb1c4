//! The end of a client.

use std::time::Instant;

use rustix::event::epoll;

use super::Daemon;
use crate::end::{End, State};

impl Daemon {
    /// Drops the clients that failed while a message was handled.
    pub(super) fn bury(&mut self) {
        while let Some(id) = self.doomed.pop() {
            self.drop_client(id, "it broke the protocol or does not read");
        }
    }

    /// Forgets a client and everything that hangs on it. What it mapped stays
    /// mapped in its peers until they are done with it.
    pub(super) fn drop_client(&mut self, id: u64, why: &str) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.log
            .event(|| format!("{} dropped: {why}", client.label()));
        // Not left to the close: a fork child may hold the socket open, and
        // then the set would go on reporting it.
        let _ = epoll::delete(&self.epoll, &client.socket);
        let _ = epoll::delete(&self.epoll, &client.pidfd);
        for &port in client.listeners.values() {
            client.board.remove_listener(port);
        }
        self.forget_reached(&client);
        client.board.free_mail(client.mail);
        let ends = self.ends.of(id);
        if let Some(share) = self.per_user.get_mut(&client.uid) {
            share.clients -= 1;
            share.ends -= ends.len();
            share.listeners -= client.listeners.len();
            share.unread -= client.counted.unread;
            share.lists -= usize::from(client.counted.list);
            if share.clients == 0 {
                self.per_user.remove(&client.uid);
            }
        }
        let afar = self.ends_afar(&ends);
        for end in ends {
            if let Some(State::Paired(_)) = self.ends.get(end).map(|end| end.state) {
                let known = self.ends.get(end);
                let (tuple, mate) = (known.and_then(End::tuple), known.and_then(|end| end.mate));
                self.left_behind.add(client.uid, end.cookie, tuple, mate);
            }
            self.forget_end(end);
        }
        self.leave_hosts_for_good(id);
        self.elsewhere.forget(id);
        self.turns.forget(id);
        let lost = self.links.drop_client(id);
        for &lost in &lost {
            self.say_gone(lost, 0); // To nobody, for a link with itself.
        }
        self.refund_links();
        self.forget_charge(&client);
        self.part_with(client, lost, afar);
        self.forget_boards();
        self.alone_since = Instant::now();
        self.hear(true);
    }
}
