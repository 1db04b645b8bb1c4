//! Takes messages from clients and does what they ask, or drops a client that
//! sends what it should not.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use shunt_abi::layout::{FIRST_SLOTS, SPARES};
use shunt_abi::message::{FLAG_ANSWER, FLAG_CROSSES, FLAG_USED, Kind, Message, Role};
use shunt_abi::{PROTOCOL, Reason};

use super::Daemon;
use super::detailing::now;
use crate::client::{Passed, Spare};
use crate::end::{End, EndId, State};
use crate::foreign::{Foreign, Lane};
use crate::inspect;
use crate::tuple::named;
use crate::wire::{self, Datagram};

/// A client sent something that the protocol does not have: it is dropped.
pub(super) struct Malformed;

impl Daemon {
    /// Handles one queued message of a client; false when there is none left,
    /// or no client.
    pub(super) fn take_message(&mut self, id: u64) -> bool {
        if !self.may_hear(id) {
            return false;
        }
        let Some(client) = self.clients.get(&id) else {
            return false;
        };
        let datagram = match wire::receive(client.socket.as_fd(), &client.lane) {
            Ok(Some(datagram)) => datagram,
            Ok(None) => {
                self.drop_client(id, "it closed its socket");
                return false;
            }
            Err(Errno::AGAIN | Errno::INTR) => return false,
            // It ended with something of ours unread. The kernel says so once; what it had said is behind that.
            Err(Errno::CONNRESET) => return true,
            Err(_) => {
                self.drop_client(id, "its socket failed");
                return false;
            }
        };
        if !datagram.fds.is_empty() && client.lane.is_full() {
            self.drop_client(id, "what its user passes takes too long to close");
            return false;
        }
        let greeted = client.greeted;
        self.note_heard(id);
        // Before the message is handled: a claim in it is looked at anyway.
        self.retry_of(id);
        let done = if greeted {
            self.handle(id, datagram)
        } else {
            self.greet(id, &datagram)
        };
        if done.is_err() {
            self.log
                .event(|| format!("client {id} sent something malformed"));
            self.doomed.push(id);
        }
        true
    }

    /// The first message: Hello, perhaps of another version, which may have
    /// another length.
    fn greet(&mut self, id: u64, datagram: &Datagram) -> Result<(), Malformed> {
        let bytes = datagram.bytes();
        let [k0, k1, p0, p1, ..] = *bytes else {
            return Err(Malformed);
        };
        if u16::from_ne_bytes([k0, k1]) != Kind::Hello as u16 {
            return Err(Malformed);
        }
        let mut welcome = Message::new(Kind::Welcome);
        if u16::from_ne_bytes([p0, p1]) != PROTOCOL {
            welcome.status = Reason::Version as u8;
            self.post(id, welcome, None);
            if let Some(client) = self.clients.get(&id) {
                drain(&client.socket, &client.lane);
            }
            self.drop_client(id, "it speaks another version");
            return Ok(());
        }
        let hello = Message::parse(bytes).ok_or(Malformed)?;
        let serves = self.clients.get(&id).is_some_and(|c| self.serves(c.uid));
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        client.greeted = true;
        client.comm = hello.name;
        if !serves {
            let label = client.label();
            self.log
                .event(|| format!("{label} is listed as client {id}"));
            welcome.status = Reason::OtherUser as u8;
            self.post(id, welcome, None);
            return Ok(());
        }
        client.mail = client.board.take_mail();
        welcome.index = client.mail;
        if self.boards.cross() {
            welcome.flags = FLAG_CROSSES;
        }
        let label = client.label();
        self.log
            .event(|| format!("{label} connected as client {id}"));
        self.post(id, welcome, Some(Passed::Board));
        Ok(())
    }

    fn handle(&mut self, id: u64, datagram: Datagram) -> Result<(), Malformed> {
        let message = Message::parse(datagram.bytes()).ok_or(Malformed)?;
        if message.protocol != PROTOCOL {
            return Err(Malformed);
        }
        let end = EndId {
            client: id,
            cookie: message.cookie,
        };
        let kind = message.kind().ok_or(Malformed)?;
        let serves = self.clients.get(&id).is_some_and(|c| self.serves(c.uid));
        if !serves && !matches!(kind, Kind::Counters | Kind::Statistics) {
            return Err(Malformed);
        }
        match kind {
            Kind::Counters => self.counters(id, datagram),
            Kind::Statistics => self.statistics(id, datagram),
            Kind::Spare => self.spare(id, &message, datagram),
            Kind::Resend => self.resend(end, message.fd, datagram),
            Kind::Listen => self.listen(id, &message),
            Kind::List => self.list(id, &message),
            Kind::Downgrade => self.downgrade(id, &message),
            Kind::Hosts => self.list_hosts(id),
            Kind::Word => self.say_word(id, &message),
            Kind::Claim => {
                let role = role(message.role).ok_or(Malformed)?;
                if message.cookie == 0 {
                    return Err(Malformed);
                }
                self.claim(end, &message, role);
                Ok(())
            }
            kind => self.note(kind, end, &message),
        }
    }

    /// Messages that cannot be wrong but by their kind.
    fn note(&mut self, kind: Kind, end: EndId, message: &Message) -> Result<(), Malformed> {
        match kind {
            Kind::Unlisten => self.unlisten(end),
            Kind::Report => self.report(end, message),
            Kind::Release => self.release(end, message.flags & FLAG_USED != 0),
            Kind::Lend => self.lend(end, message.fd),
            Kind::Alone => self.ask_alone(end, message),
            Kind::Retire => {
                for lost in self.links.retire(end.client, message.link) {
                    self.say_gone(lost, 0);
                }
                self.refund_links();
            }
            Kind::Abroad => self.give_more_sockets(end.client, message.index),
            Kind::Where => self.ask_where(end, message),
            // A second Hello, or what only a daemon says, …
            Kind::Hello
            | Kind::Welcome
            | Kind::Paired
            | Kind::Unpaired
            | Kind::NeedSpare
            | Kind::Gone
            | Kind::Lent
            | Kind::Resent
            | Kind::Row
            | Kind::Detail
            | Kind::Listener
            | Kind::End
            | Kind::Meet
            | Kind::Host
            | Kind::Died
            | Kind::Cores
            // … or what `handle` has seen to.
            | Kind::Counters
            | Kind::Statistics
            | Kind::Spare
            | Kind::Resend
            | Kind::Listen
            | Kind::List
            | Kind::Downgrade
            | Kind::Hosts
            | Kind::Word
            | Kind::Claim => return Err(Malformed),
        }
        Ok(())
    }

    fn unlisten(&mut self, end: EndId) {
        let Some(client) = self.clients.get_mut(&end.client) else {
            return;
        };
        let Some(port) = client.listeners.remove(&end.cookie) else {
            return;
        };
        client.board.remove_listener(port);
        if let Some(share) = self.per_user.get_mut(&client.uid) {
            share.listeners -= 1;
        }
    }

    fn listen(&mut self, id: u64, message: &Message) -> Result<(), Malformed> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        if !client.listeners.contains_key(&message.cookie) {
            let limits = &self.config.limits;
            let share = self.per_user.entry(client.uid).or_default();
            if client.listeners.len() >= limits.connections_per_client
                || share.listeners >= limits.connections_per_user
            {
                return Err(Malformed);
            }
            share.listeners += 1;
        }
        // The bit is only a hint to try a claim, so nothing is verified here.
        if let Some(old) = client.listeners.insert(message.cookie, message.port) {
            client.board.remove_listener(old);
        }
        client.board.add_listener(message.port);
        Ok(())
    }

    /// Memory for a link to come. Without a descriptor it says that the client
    /// could not make any.
    fn spare(
        &mut self,
        id: u64,
        message: &Message,
        mut datagram: Datagram,
    ) -> Result<(), Malformed> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        let (Some(file), true) = (datagram.fds.pop(), datagram.fds.is_empty()) else {
            if message.status == 0 && !datagram.lost_fds {
                return Err(Malformed);
            }
            client.note_brought(message.slot, 0);
            // What was to be larger than it need be says nothing.
            if client.asked.is_empty() {
                let there = client.spares.len();
                self.refuse_parked(id, there, Reason::NoResources);
            }
            return Ok(());
        };
        let slots = inspect::arena_slots(&file).ok_or(Malformed)?;
        client.note_brought(message.slot, slots);
        if client.spares.len() < SPARES {
            client.spares.push(Spare {
                arena: message.arena,
                file,
                slots,
            });
            // One that brings two has both ends of its connections.
            let small = client.spares.iter().filter(|s| s.slots <= FIRST_SLOTS);
            client.stock = client.stock.max(small.count().min(2));
        }
        self.unpark(id);
        Ok(())
    }

    /// Remembers what became of a connection, claimed or not.
    fn report(&mut self, id: EndId, message: &Message) {
        if let Some(end) = self.ends.get_mut(id) {
            end.tell(message.status, message.flags & FLAG_USED != 0, now());
            let used = end.used;
            // Who is on its rings again may be told once more to leave them.
            end.told &= message.status != 0;
            end.named = end.named.or(named(message));
            if hands_on(message.status) && !used {
                self.withdraw(id);
            }
        } else if self.may_add_end(id.client) {
            // Its addresses are looked up when somebody asks for the list.
            let role = role(message.role).unwrap_or(Role::Connector);
            let mut end = End::new(message.fd, role, State::Reported);
            end.status = Some(message.status);
            end.named = named(message);
            self.add_end(id, end);
        }
    }

    /// Whether a client and its user may have one connection more.
    pub(super) fn may_add_end(&self, client: u64) -> bool {
        let limits = &self.config.limits;
        let uid = self.clients.get(&client).map(|client| client.uid);
        let share = uid.and_then(|uid| self.per_user.get(&uid));
        self.ends.count(client) < limits.connections_per_client
            && share.is_some_and(|share| share.ends < limits.connections_per_user)
    }

    /// Adds a connection end or replaces it.
    pub(super) fn add_end(&mut self, id: EndId, end: End) {
        if self.ends.get(id).is_none() {
            self.charge_end(id.client, 1);
        }
        let user = self.user(id.client);
        self.ends.insert(id, user, end);
    }

    /// A client's user.
    pub(super) fn user(&self, client: u64) -> u32 {
        self.clients.get(&client).map_or(u32::MAX, |c| c.uid)
    }

    /// Forgets a connection end.
    pub(super) fn remove_end(&mut self, id: EndId) -> Option<End> {
        let end = self.ends.remove(id)?;
        self.charge_end(id.client, -1);
        self.leave_hosts(id);
        Some(end)
    }

    /// A client that has gone is not charged any more.
    fn charge_end(&mut self, client: u64, ends: isize) {
        if let Some(client) = self.clients.get(&client)
            && let Some(share) = self.per_user.get_mut(&client.uid)
        {
            share.ends = share.ends.saturating_add_signed(ends);
        }
    }

    /// Whether the claim's maker waits for an answer.
    pub(super) fn wants_answer(message: &Message) -> bool {
        message.flags & FLAG_ANSWER != 0
    }
}

/// Whether a connection goes to another program or process, as far as can be told.
fn hands_on(status: u8) -> bool {
    matches!(
        Reason::from_number(status),
        Some(Reason::Passed | Reason::Inherited | Reason::Stdio)
    )
}

fn role(number: u8) -> Option<Role> {
    match number {
        0 => Some(Role::Connector),
        1 => Some(Role::Acceptor),
        _ => None,
    }
}

/// Reads away what a client has sent before it is closed: closing with unread
/// data would make its next `recv` fail (ECONNRESET) instead of showing why.
pub(super) fn drain(socket: &Foreign, lane: &Arc<Lane>) {
    for _ in 0..256 {
        if lane.is_full() || !matches!(wire::receive(socket.as_fd(), lane), Ok(Some(_))) {
            return;
        }
    }
}
