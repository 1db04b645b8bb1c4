//! One side of a trial: streams in both directions over rings and TCP, a queue pair that is broken in the middle, and another one after
//! that. The same over an emulated NIC (`tests/over_fabric.rs`, and with shuntds between the sides in `shuntd/tests/reaching.rs`) and
//! over verbs (`examples/peer.rs`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use shunt_rdma::link::{Link, News};
use shunt_rdma::meeting::{Heard, Meeting};
use shunt_rdma::port::{Found, Port};
use shunt_rdma::transport::{QueueId, Transport};
use shunt_rdma::word::{self, Word};

mod connection;
mod memory;

use connection::Connection;
pub(crate) use memory::Memory;

/// Connections of a trial.
pub(crate) const CONNECTIONS: usize = 3;
/// On a machine that gets its processors, emulated or not, something moves within this time.
const LONG: Duration = Duration::from_secs(60);

/// What a trial is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Bytes of each stream, in each of its three parts.
    pub(crate) bytes: u64,
    /// Messages of 8 bytes there and back.
    pub(crate) rounds: u32,
}

/// How one side says words to the other, which come there in order.
pub(crate) trait Words {
    fn say(&mut self, word: &[u8; word::BYTES]);
    /// The next one; waits for it.
    fn hear(&mut self) -> [u8; word::BYTES];
}

impl Words for TcpStream {
    fn say(&mut self, word: &[u8; word::BYTES]) {
        self.write_all(word).expect("the other side");
    }

    fn hear(&mut self) -> [u8; word::BYTES] {
        let mut word = [0; word::BYTES];
        self.read_exact(&mut word).expect("the other side");
        word
    }
}

/// See the module.
pub(crate) struct Side<'a, T: Transport, W: Words> {
    /// 0 breaks the queue pair; 1 finds out.
    number: usize,
    control: TcpStream,
    words: W,
    meeting: Meeting<T>,
    port: Port<'a, T>,
    id: QueueId,
    life: u32,
    connections: Vec<Connection<'a>>,
}

impl<'a, T: Transport, W: Words> Side<'a, T, W> {
    /// `control` and one base socket for each connection are connected to the other side, and `words` come there.
    pub(crate) fn new(
        number: usize,
        transport: T,
        control: TcpStream,
        words: W,
        bases: Vec<TcpStream>,
        memory: &'a Memory,
    ) -> Self {
        // What the other side says that has gone wrong is not waited for.
        control.set_read_timeout(Some(LONG)).expect("a socket");
        let connection = |(slot, base): (usize, TcpStream)| {
            Connection::new(slot, number, base, memory.lines(slot))
        };
        Self {
            number,
            control,
            words,
            meeting: Meeting::new(),
            port: Port::new(transport),
            id: QueueId(u32::MAX),
            life: 0,
            connections: bases.into_iter().enumerate().map(connection).collect(),
        }
    }

    /// All of it; it panics where something does not hold, and says what has been done.
    pub(crate) fn run(&mut self, plan: Plan, mut say: impl FnMut(&str)) {
        self.connect();
        self.stream(plan.bytes, false);
        say("streams over the rings");
        self.ping_pong(plan.rounds);
        let (_, link) = self.port.link(self.id).expect("a link");
        say(&format!(
            "{} round trips of 8 bytes, asleep; so far {:?}",
            plan.rounds,
            link.counts()
        ));
        self.stream(plan.bytes, true);
        say("streams whose queue pair broke, back on TCP");
        self.connect();
        self.stream(plan.bytes, false);
        say("streams over the rings of a new queue pair");
    }

    /// A byte there and one back: both sides have come so far.
    fn meet(&mut self) {
        self.control.write_all(&[7]).expect("the other side");
        let mut byte = [0];
        self.control.read_exact(&mut byte).expect("the other side");
    }

    /// Makes a queue pair and begins a life of each connection's rings.
    pub(crate) fn connect(&mut self) {
        self.meet();
        self.port.remove(self.id);
        // The first round is begun by both sides, the next one by that which has broken the queue pair.
        if self.life == 0 || self.number == 0 {
            let offer = self.meeting.begin(self.port.transport());
            self.words.say(&offer.expect("a queue pair").to_bytes());
        }
        while !self.hear() {}
        self.life += 1;
        for connection in &mut self.connections {
            let (transport, link) = self.port.link(self.id).expect("a link");
            connection.begin(transport, link, self.life);
        }
        self.enter_all();
    }

    /// Hears a word, and says what is to be said to that. `true`: both sides have met.
    fn hear(&mut self) -> bool {
        let word = Word::parse(&self.words.hear()).expect("a word");
        let heard = self.meeting.heard(self.port.transport(), &word);
        match heard.expect("a word that makes sense") {
            Heard::Nothing => false,
            Heard::Connected(connected) => {
                let words = connected.words();
                let [own, peer] = connected.ends;
                let link = Link::new(self.port.transport(), connected.queue, &own, &peer);
                self.id = self.port.add(link);
                words.for_each(|word| self.words.say(&word.to_bytes()));
                false
            }
            Heard::Met => true,
            Heard::Gone => panic!("the other side has no queue pair"),
            Heard::Refused(refused, _) => panic!("{refused}"),
        }
    }

    /// Until all directions are in their rings. A side that has entered its own goes on answering, as the other side may still have to
    /// propose again.
    fn enter_all(&mut self) {
        let begun = Instant::now();
        let (mut told, mut heard) = (false, false);
        while !(told && heard) {
            assert!(
                begun.elapsed() < LONG,
                "the rings are not entered: {:?}",
                self.connections
            );
            let (transport, link) = self.port.link(self.id).expect("a link");
            for connection in &mut self.connections {
                connection.try_enter(transport, link);
            }
            if !told && self.connections.iter().all(Connection::is_in_ring) {
                self.control.write_all(&[1]).expect("the other side");
                told = true;
            }
            self.wait();
            heard = heard || self.has_heard();
        }
    }

    /// Takes what has come, or sleeps until something comes.
    fn wait(&mut self) {
        self.port.arm().expect("the device");
        if self.progress() {
            return;
        }
        let mut waits = vec![libc::pollfd {
            fd: self.port.events(),
            events: libc::POLLIN,
            revents: 0,
        }];
        waits.extend(self.connections.iter().map(|connection| libc::pollfd {
            fd: connection.base().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        waits.push(libc::pollfd {
            fd: self.control.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // What a base socket still cannot take is tried again after a while, as is a proposal that was void.
        // SAFETY: the array has `waits.len()` writable entries.
        unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, 20) };
        self.port.take_events();
        self.progress();
    }

    fn progress(&mut self) -> bool {
        let mut recalled = Vec::new();
        let mut broken = false;
        let any = self
            .port
            .progress(|found| match found {
                Found::News(_, slot, News::Recalled) => recalled.push(slot as usize),
                Found::Broken(..) => broken = true,
                Found::News(..) => {}
            })
            .expect("the device");
        let (_, link) = self.port.link(self.id).expect("a link");
        broken |= link.broken().is_some();
        for connection in &mut self.connections {
            if broken || recalled.contains(&connection.slot()) {
                connection.leave(link);
            }
        }
        any
    }

    /// Sends `bytes` bytes more in each direction of each connection. `breaks`: side 0 breaks the queue pair in the middle.
    pub(crate) fn stream(&mut self, bytes: u64, breaks: bool) {
        for connection in &mut self.connections {
            connection.extend(bytes);
        }
        let mut moved_at = Instant::now();
        let mut whole = !(breaks && self.number == 0);
        let (mut told, mut heard) = (false, false);
        while !(told && heard && self.connections.iter().all(Connection::is_done)) {
            assert!(
                moved_at.elapsed() < LONG,
                "not all has come: {:?}",
                self.connections
            );
            let (transport, link) = self.port.link(self.id).expect("a link");
            let half = |connection: &Connection| connection.left() < bytes / 2;
            if !whole && self.connections.iter().any(half) {
                link.abandon(transport);
                whole = true;
            }
            let moved = self.step();
            if !told && self.connections.iter().all(Connection::is_done) {
                self.control.write_all(&[1]).expect("the other side");
                told = true;
            }
            // Bytes that a failed queue pair has not brought are sent again by a side that is done, too.
            heard = heard || self.has_heard();
            if moved {
                moved_at = Instant::now();
            } else {
                self.wait();
            }
        }
        if breaks {
            self.find_out(Instant::now());
        }
        // Nobody goes before both have seen that.
        self.meet();
    }

    /// Sends and receives what can be. `false`: nothing.
    fn step(&mut self) -> bool {
        let (transport, link) = self.port.link(self.id).expect("a link");
        let mut moved = false;
        for connection in &mut self.connections {
            moved |= connection.send(transport, link);
            moved |= connection.receive(transport, link);
        }
        moved
    }

    /// Whether the other side says that it has all. Does not wait.
    fn has_heard(&mut self) -> bool {
        self.control.set_nonblocking(true).expect("a socket");
        let mut byte = [0];
        let read = self.control.read(&mut byte);
        self.control.set_nonblocking(false).expect("a socket");
        matches!(read, Ok(1))
    }

    /// Until both sides know that the queue pair is gone, and have taken all that TCP brings for that.
    fn find_out(&mut self, begun: Instant) {
        let mut round = 0;
        while self.connections.iter().any(Connection::is_in_ring) {
            assert!(begun.elapsed() < LONG, "nobody says that it is gone");
            let (transport, link) = self.port.link(self.id).expect("a link");
            link.want_room(transport, 0, round);
            round += 1;
            self.step();
            self.wait();
        }
        let mut left = Vec::new();
        for connection in &self.connections {
            let given = connection.given().to_le_bytes();
            self.control.write_all(&given).expect("the other side");
        }
        for _ in &self.connections {
            let mut given = [0; 8];
            self.control.read_exact(&mut given).expect("the other side");
            left.push(u64::from_le_bytes(given));
        }
        while !self
            .connections
            .iter()
            .zip(&left)
            .all(|(connection, &given)| connection.has_taken(given))
        {
            assert!(begun.elapsed() < LONG, "{:?}", self.connections);
            self.step();
            self.wait();
        }
        assert!(self.connections.iter().all(Connection::is_done));
    }

    fn ping_pong(&mut self, rounds: u32) {
        for round in 0..rounds {
            for turn in 0..2 {
                if turn == self.number {
                    self.connections[0].extend_sent(8);
                } else {
                    self.connections[0].extend_received(8);
                }
                let begun = Instant::now();
                while !self.connections[0].is_done() {
                    assert!(begun.elapsed() < LONG, "round {round} hangs");
                    let (transport, link) = self.port.link(self.id).expect("a link");
                    let connection = &mut self.connections[0];
                    let sent = connection.send(transport, link);
                    if !sent && !connection.receive(transport, link) {
                        self.wait();
                    }
                }
            }
        }
        self.meet();
    }
}
