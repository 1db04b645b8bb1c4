//! Connections whose other end no client has: it may be in another network namespace of this
//! host, or another user's. That is looked up in `/proc` when somebody asks, `shunt ss` or a
//! process that writes statistics; by a thread, for all who wait ([`crate::namespaces`]).
//!
//! ```text
//!  List ──> rows, some of them open ──┐                        ┌──> rows, reasons put right
//!                                     ├──> Scan ──> Places ────┤
//!  Where ──> whose socket? ───────────┘                        └──> Where, and the account
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};

use super::{Daemon, Scope};
use crate::end::{EndId, State};
use crate::inspect::{self, Look};
use crate::namespaces::{self, Ends, Place, Places, Wanted};
use crate::scan::Scan;
use crate::tuple::{Tuple, named};

/// How long a list waits for a look, half as long as `shunt ss` waits for the list; then it goes as
/// it is.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a find counts: within this time hardly any addresses and ports become another
/// connection's.
const FRESH: Duration = Duration::from_secs(10);
/// A process may ask about a connection whose other end is just being claimed: after this time most of these are paired, and no look is needed.
const SETTLED: Duration = Duration::from_millis(5);
/// Questions of one user's processes that may wait for a look.
const QUESTIONS: usize = 4096;

/// A row of a list whose reason a look may put right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// Which row.
    pub(super) row: usize,
    /// The end that is known.
    pub(super) ends: Ends,
    /// The process that has it,
    pub(super) pid: u32,
    /// and that one's user.
    pub(super) user: u32,
}

/// A list that waits for a look.
#[derive(Debug)]
struct Listing {
    rows: Vec<Message>,
    open: Vec<Open>,
    until: Instant,
}

/// Who waits for a look.
#[derive(Clone, Copy, Debug)]
enum Asker {
    /// The list of a client. Its time tells it from the client's next one.
    List { client: u64, until: Instant },
    /// A process with statistics.
    Process(Question),
}

/// What a process asks.
#[derive(Clone, Copy, Debug)]
struct Question {
    id: EndId,
    fd: i32,
    /// The reason so far.
    reason: u8,
    ends: Ends,
    pid: u32,
    user: u32,
}

/// Who waits, and what has been found lately.
#[derive(Debug)]
pub(super) struct Elsewhere {
    scan: Scan<Asker, Places>,
    lists: HashMap<u64, Listing>,
    /// How many questions wait, by user.
    asked: HashMap<u32, usize>,
    known: HashMap<Ends, (Place, Instant)>,
}

impl Elsewhere {
    /// Nobody waits yet. `bell`: written to when a look is done.
    pub(super) fn new(bell: &Arc<OwnedFd>) -> Self {
        Self {
            scan: Scan::new(bell),
            lists: HashMap::new(),
            asked: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// How long until there is something to do: a look, or a list that waits no longer.
    pub(super) fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let lists = self.lists.values();
        let lists = lists.map(|list| list.until.saturating_duration_since(now));
        lists.chain(self.scan.left()).min()
    }

    /// Where an end is, if that was found lately.
    fn place(&self, ends: Ends) -> Option<Place> {
        let (place, since) = self.known.get(&ends)?;
        (since.elapsed() < FRESH).then_some(*place)
    }

    /// More is known.
    fn learn(&mut self, places: &Places) {
        let now = Instant::now();
        self.known.retain(|_, (_, since)| now - *since < FRESH);
        let found = places.iter().map(|(ends, place)| (*ends, (*place, now)));
        self.known.extend(found);
    }

    /// Whether somebody has not been answered meanwhile.
    fn waits(&self, asker: &Asker) -> bool {
        match asker {
            Asker::List { client, until } => {
                let list = self.lists.get(client);
                list.is_some_and(|list| list.until == *until)
            }
            Asker::Process(_) => true,
        }
    }

    /// Whether a client's list waits.
    pub(super) fn has_list_of(&self, client: u64) -> bool {
        self.lists.contains_key(&client)
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, client: u64) {
        self.lists.remove(&client);
    }
}

impl Daemon {
    /// Whether a look may tell anything of an end.
    pub(super) fn is_open(&self, ends: Ends) -> bool {
        // Where every user may be paired with every other, it is all the same whose the end is.
        let all_pair = self.scope == Scope::Host && self.config.policy.cross_user;
        !all_pair || namespaces::leaves(ends).is_some()
    }

    /// Whether ends of these users are not paired because they are two.
    pub(super) fn keeps_apart(&self, one: u32, other: u32) -> bool {
        match self.scope {
            Scope::User(user) => other != user,
            Scope::Host => one != other && !self.config.policy.cross_user,
        }
    }

    /// The reason that is known for a connection of a user's.
    fn reason_of(&self, ends: Ends, user: u32) -> Option<Reason> {
        let Some(place) = self.elsewhere.place(ends) else {
            return self.reason_afar(ends);
        };
        match place {
            // Where ends are found there, too, the reason is another one.
            Place::Elsewhere => (!self.boards.cross()).then_some(Reason::OtherNamespace),
            Place::Here(owner) => self.keeps_apart(user, owner).then_some(Reason::OtherUser),
        }
    }

    /// A client's list, sent when a look has put the open rows right.
    pub(super) fn await_rows(&mut self, client: u64, mut rows: Vec<Message>, mut open: Vec<Open>) {
        open.retain(|open| !self.put_right(&mut rows, open));
        if open.is_empty() {
            return self.send_rows(client, rows);
        }
        let until = Instant::now() + PATIENCE;
        let list = Listing { rows, open, until };
        self.elsewhere.lists.insert(client, list);
        self.elsewhere.scan.add(Asker::List { client, until });
        self.watch(client);
    }

    /// A process that writes statistics asks about one of its connections.
    pub(super) fn ask_where(&mut self, id: EndId, message: &Message) {
        let Some(question) = self.question(id, message) else {
            return self.answer_where(id, message.fd, message.status, None);
        };
        let Question { ends, user, .. } = question;
        if self.elsewhere.place(ends).is_some() {
            let known = self.reason_of(ends, user);
            return self.answer_where(id, message.fd, message.status, known);
        }
        let asked = self.elsewhere.asked.entry(question.user).or_default();
        if *asked < QUESTIONS {
            *asked += 1;
            let asker = Asker::Process(question);
            self.elsewhere.scan.add_after(SETTLED, asker);
        } else {
            self.answer_where(id, message.fd, message.status, None);
        }
    }

    /// What it asks, if it has such a connection and a look may tell anything.
    fn question(&self, id: EndId, message: &Message) -> Option<Question> {
        let client = self.clients.get(&id.client)?;
        let tuple = match inspect::look(client.pidfd.as_fd(), message.fd, id.cookie, &client.lane) {
            Look::Found(found) => found.tuple,
            // What a user's own daemon may believe of him: see `looking`.
            Look::Denied if self.scope != Scope::Host => {
                let [local, peer] = named(message)?;
                Tuple::new(0, local, peer)
            }
            _ => return None,
        };
        let ends = namespaces::ends(tuple);
        self.is_open(ends).then_some(Question {
            id,
            fd: message.fd,
            reason: message.status,
            ends,
            pid: client.pid,
            user: client.uid,
        })
    }

    /// Begins a look if somebody waits and it is time; sends lists that have waited too long.
    pub(super) fn look_elsewhere(&mut self) {
        let mut askers = self.elsewhere.scan.take();
        if !askers.is_empty() {
            self.elsewhere.asked.clear();
        }
        askers.retain(|asker| self.elsewhere.waits(asker));
        let (met, askers): (Vec<_>, Vec<_>) =
            askers.into_iter().partition(|asker| self.has_met(asker));
        self.tell_askers(met);
        if !askers.is_empty() {
            let wanted = self.wanted(&askers);
            let look = move || namespaces::look(wanted);
            if let Err(askers) = self.elsewhere.scan.begin(askers, look) {
                self.tell_askers(askers);
            }
        }
        let now = Instant::now();
        let lists = self.elsewhere.lists.iter();
        let late = lists.filter(|(_, list)| list.until <= now);
        let late: Vec<u64> = late.map(|(client, _)| *client).collect();
        for client in late {
            self.finish_list(client);
        }
    }

    /// Whether a process has asked about a connection whose other end has been found since.
    fn has_met(&self, asker: &Asker) -> bool {
        let Asker::Process(question) = asker else {
            return false;
        };
        let end = self.ends.get(question.id);
        end.is_some_and(|end| matches!(end.state, State::Parked(_) | State::Paired(_) | State::Met))
    }

    fn wanted(&self, askers: &[Asker]) -> Wanted {
        let mut wanted = Wanted::new();
        for asker in askers {
            match asker {
                Asker::List { client, .. } => {
                    let list = self.elsewhere.lists.get(client);
                    let open = list.into_iter().flat_map(|list| &list.open);
                    wanted.extend(open.map(|open| (open.ends, open.pid)));
                }
                Asker::Process(question) => {
                    wanted.insert(question.ends, question.pid);
                }
            }
        }
        wanted
    }

    /// A look may be done.
    pub(super) fn found_elsewhere(&mut self) {
        if let Some((askers, places)) = self.elsewhere.scan.finish() {
            self.elsewhere.learn(&places);
            self.tell_askers(askers);
        }
    }

    fn tell_askers(&mut self, askers: Vec<Asker>) {
        for asker in askers {
            match asker {
                Asker::List { client, .. } if self.elsewhere.waits(&asker) => {
                    self.finish_list(client);
                }
                Asker::List { .. } => {}
                Asker::Process(question) => {
                    let Question { id, fd, reason, .. } = question;
                    let found = self.reason_of(question.ends, question.user);
                    self.answer_where(id, fd, reason, found);
                }
            }
        }
    }

    fn finish_list(&mut self, client: u64) {
        let Some(mut list) = self.elsewhere.lists.remove(&client) else {
            return;
        };
        for open in &list.open {
            self.put_right(&mut list.rows, open);
        }
        self.send_rows(client, list.rows);
    }

    /// Gives an open row the reason that is known; `false`: nothing is known, it stays open.
    fn put_right(&self, rows: &mut [Message], open: &Open) -> bool {
        let known = self.reason_of(open.ends, open.user);
        if let (Some(reason), Some(row)) = (known, rows.get_mut(open.row)) {
            row.status = reason as u8;
        }
        self.elsewhere.place(open.ends).is_some()
    }

    /// Answers, and notes it for the client's last line: it may be killed before it has read.
    fn answer_where(&mut self, id: EndId, fd: i32, former: u8, found: Option<Reason>) {
        let status = found.map_or(0, |reason| reason as u8);
        if let Some(client) = self.clients.get_mut(&id.client)
            && let Some(account) = &mut client.account
            && let Some(reason) = found
        {
            account.note(id.cookie, reason);
        }
        let mut answer = Message::new(Kind::Where);
        (answer.cookie, answer.fd) = (id.cookie, fd);
        (answer.status, answer.index) = (status, former.into());
        self.post(id.client, answer, None);
    }
}
