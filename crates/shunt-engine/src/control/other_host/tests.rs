//! One end of a connection is this library's. The tests play the process on another host that has the other end, and both daemons.

mod deaths;
mod played_end;
mod streams;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{MutexGuard, OnceLock};

use libc::{c_int, iovec};
use shunt_abi::message::{FLAG_REACHES, FLAG_UNUSED};
use shunt_abi::{Reason, layout};
use shunt_rdma::bond::Lines;
use shunt_rdma::endpoint::Endpoint;
use shunt_rdma::link::Link as PeerLink;
use shunt_rdma::meeting::{Heard, Meeting};
use shunt_rdma::port::{Found, Port};
use shunt_rdma::transport::QueueId;
use shunt_rdma::wire::Wire;
use shunt_rdma::word::Word;
use shunt_shm::ring::Memory;
use shunt_shm::slot::{self, READY, Slot};

use super::super::mail::read_all;
use super::super::state::{LOCK, SOCKET};
use super::super::wire;
use super::*;
use crate::both_ends::{in_child, loopback, one_at_a_time};
use crate::epoll::Known;
use crate::socket::{Socket, Stage};
use crate::stream::{self, Conn};
use crate::table::{self, Word as Entry};
use crate::{Outcome, config, sys, thread, upgrade};

const SLOT: u32 = 3;
const GENERATION: u32 = 7;

/// Where the NICs of all these tests are: a process is told once.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("shunt-nics-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        config::set_wire(&directory);
        directory
    })
}

/// The process on the other host.
struct Peer {
    port: Port<'static, Wire>,
    meeting: Meeting<Wire>,
    queue: QueueId,
    lines: Lines<'static>,
    is_met: bool,
    /// How many slots it says that it has, if not as many as its NIC.
    slots: Option<u16>,
}

impl Peer {
    fn new() -> Self {
        let memory = || {
            let words = (0..layout::MIRRORED_RING_BYTES / 8).map(|_| AtomicU64::new(0));
            let ring: &[AtomicU64] = Vec::leak(words.collect());
            // SAFETY: the ring has this many bytes, and is never freed.
            unsafe { Memory::new(ring.as_ptr(), layout::MIRRORED_RING_BYTES as u32) }
        };
        let slots: &[Slot; 2] = Box::leak(Box::new([Slot::default(), Slot::default()]));
        let lines = Lines {
            own: &slots[0],
            view: &slots[1],
            out: memory(),
            inward: memory(),
        };
        lines.own.begin(life(), lines.out);
        Self {
            port: Port::new(Wire::open(directory()).unwrap()),
            meeting: Meeting::new(),
            queue: QueueId(u32::MAX),
            lines,
            is_met: false,
            slots: None,
        }
    }

    /// As it says the word.
    fn say(&self, word: Word) -> Text {
        match (word, self.slots) {
            (Word::Offer(round, end), Some(slots)) => {
                Word::Offer(round, Endpoint { slots, ..end }).to_bytes()
            }
            _ => word.to_bytes(),
        }
    }

    /// Hears a word, and says these.
    fn hear(&mut self, text: &Text) -> Vec<Text> {
        let wire = self.port.transport();
        let word = Word::parse(text).unwrap();
        match self.meeting.heard(wire, &word).unwrap() {
            Heard::Connected(connected) => {
                let words = connected.words().map(|word| self.say(word)).collect();
                let [own, peer] = connected.ends;
                let link = PeerLink::new(wire, connected.queue, &own, &peer);
                self.queue = self.port.add(link);
                words
            }
            Heard::Met => {
                self.is_met = true;
                Vec::new()
            }
            _ => panic!("{word:?} comes to nothing"),
        }
    }

    /// Its end is attached.
    fn open(&mut self) {
        let (wire, link) = self.port.link(self.queue).unwrap();
        // SAFETY: the memory is never given back.
        unsafe { link.open(wire, SLOT, life(), self.lines) }.unwrap();
    }

    /// Takes what has come. `true`: the queue pair is over.
    fn is_parted(&mut self) -> bool {
        let mut parted = false;
        let found = |found| parted |= matches!(found, Found::Broken(..));
        self.port.progress(found).unwrap();
        parted
    }

    /// What it knows of the other end's state.
    fn view(&mut self) -> Option<u32> {
        self.is_parted();
        self.lines.view.state(life())
    }
}

fn life() -> u32 {
    slot::first_life(GENERATION)
}

/// A connection that this process has claimed.
struct Scene {
    /// This library's end, and the other one.
    fds: [c_int; 2],
    socket: &'static Socket,
    daemon: c_int,
    peer: Peer,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        let alone = one_at_a_time();
        directory();
        thread::learn_pid();
        thread::set_used();
        assert!(shunt_shm::atomic::register());
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        assert!(made == 0 && SOCKET.keep(ends[0]));
        let listener = sys::Listener::at(&loopback(), &loopback()).unwrap();
        let near = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        let fds = [listener.connect(near, &loopback()).unwrap(), near];
        let socket = Socket::enter(fds[0], Stage::Claimed).unwrap();
        let cookie = sys::getsockopt(fds[0], libc::SOL_SOCKET, libc::SO_COOKIE);
        socket.set_cookie(cookie.unwrap());
        socket.set_role(shunt_abi::message::Role::Acceptor);
        Self {
            fds,
            socket,
            daemon: ends[1],
            peer: Peer::new(),
            _alone: alone,
        }
    }

    /// The daemon says this.
    fn hear(&self, message: &Message) {
        assert_eq!(wire::transmit(self.daemon, message, None), Sent::Done);
        assert!(LOCK.take());
        read_all();
        LOCK.give();
    }

    /// The daemon says that the connection has met its other end on this link.
    fn meet(&self, link: u64) {
        let mut meet = Message::new(Kind::Meet);
        (meet.cookie, meet.fd) = (self.socket.cookie(), self.fds[0]);
        (meet.link, meet.slot, meet.generation) = (link, SLOT, GENERATION);
        self.hear(&meet);
    }

    /// What this library has said to the process at the other end of that link.
    fn said(&self, link: u64) -> Vec<Text> {
        let messages = std::iter::from_fn(|| wire::receive(self.daemon).unwrap());
        let words = messages.filter(|(m, _)| (m.kind(), m.link) == (Some(Kind::Word), link));
        words.map(|(word, _)| word.text()).collect()
    }

    /// Relays words both ways until nobody says any more.
    fn relay(&mut self, link: u64) {
        loop {
            let said = self.said(link);
            if said.is_empty() {
                return;
            }
            let answers = said.iter().flat_map(|text| self.peer.hear(text));
            for text in answers.collect::<Vec<_>>() {
                let mut word = Message::new(Kind::Word);
                word.link = link;
                word.set_text(&text);
                self.hear(&word);
            }
        }
    }

    fn attach(&self) -> Conn<'static> {
        assert!(upgrade::progress(self.socket, self.fds[0], Known::Nothing));
        Conn::of(self.fds[0]).unwrap()
    }

    /// Bytes go both ways, by TCP.
    fn exchange(&self, conn: &Conn) {
        let mut bytes = *b"there";
        let parts = [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }];
        // SAFETY: the bytes are there.
        let sent = unsafe { stream::send(conn, &parts, 0) };
        let sent = match sent {
            // Said of one that may be sent by the kernel alone.
            Outcome::Kernel => sys::write(self.fds[0], bytes.as_ptr(), bytes.len()).unwrap(),
            Outcome::Done(n) => n as usize,
            Outcome::Fail(errno) => panic!("{errno}"),
        };
        let mut came = [0; 8];
        assert_eq!(sys::read(self.fds[1], came.as_mut_ptr(), 8), Ok(sent));
        assert_eq!(&came[..sent], b"there");
        sys::write(self.fds[1], b"back".as_ptr(), 4).unwrap();
        // SAFETY: the part covers the array `bytes`.
        let received = unsafe { stream::receive(conn, &parts, 0) };
        assert_eq!((received, &bytes[..4]), (Outcome::Done(4), &b"back"[..]));
        assert!(!conn.is_on_ring());
    }

    fn gone(&self, link: u64) {
        let mut gone = Message::new(Kind::Gone);
        (gone.link, gone.flags) = (link, FLAG_REACHES);
        self.hear(&gone);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        table::enter(self.fds[0], Entry::NOTHING);
        self.socket.move_on(Stage::Paired, Stage::Plain);
        self.socket.lose_memory();
        SOCKET.take().into_iter().for_each(sys::close);
        self.fds.into_iter().for_each(sys::close);
        sys::close(self.daemon);
    }
}

/// Both processes meet and attach, in this order, and know that of each other.
fn both_are_ready(link: u64, meets_first: bool) -> (Scene, Conn<'static>) {
    let mut scene = Scene::new();
    scene.meet(link);
    assert_eq!(scene.socket.stage(), Stage::Paired);
    if meets_first {
        scene.relay(link);
    }
    let conn = scene.attach();
    if !meets_first {
        assert_eq!(scene.peer.view(), None);
        scene.relay(link);
    }
    assert!(scene.peer.is_met);
    scene.peer.open();
    assert_eq!(scene.peer.view(), Some(READY));
    assert_eq!(conn.pair.peer_state(), 0);
    reach::progress();
    assert_eq!(conn.pair.peer_state(), READY);
    (scene, conn)
}

#[test]
fn a_connection_between_hosts_is_attached_and_stays_on_tcp() {
    for (link, meets_first) in [(100, true), (101, false)] {
        let (scene, conn) = both_are_ready(link, meets_first);
        scene.exchange(&conn);
    }
}

#[test]
fn a_link_that_is_gone_ends_when_nobody_uses_it_and_one_of_that_number_within_the_host_does_not() {
    let (mut scene, conn) = both_are_ready(110, true);
    let link = conn.pair.link;
    let mut other = Message::new(Kind::Gone);
    other.link = 110;
    scene.hear(&other);
    assert!(Link::find_between_hosts(110).is_some());
    scene.gone(110);
    assert!(Link::find_between_hosts(110).is_none());
    scene.exchange(&conn);
    assert!(!scene.peer.is_parted());
    table::enter(scene.fds[0], Entry::NOTHING);
    scene.socket.lose_memory();
    Link::bury(110, FLAG_REACHES | FLAG_UNUSED);
    assert!(scene.peer.is_parted());
    assert!(Link::find(110, link.own_number()).is_none());
}

#[test]
fn a_connection_goes_on_by_tcp_when_the_queue_pair_fails_and_the_next_one_brings_another() {
    let (mut scene, conn) = both_are_ready(120, true);
    let (wire, link) = scene.peer.port.link(scene.peer.queue).unwrap();
    link.abandon(wire);
    reach::progress();
    scene.exchange(&conn);
    // As for another connection of the same processes.
    scene.meet(120);
    let offers = scene.said(120);
    assert_eq!(offers.len(), 1);
    assert_eq!(Word::parse(&offers[0]).unwrap().round(), 2);
}

#[test]
fn words_without_sense_end_the_queue_pair_and_nothing_else() {
    let (mut scene, conn) = both_are_ready(130, true);
    let mut word = Message::new(Kind::Word);
    word.link = 130;
    word.set_text(&[0xff; 96]);
    scene.hear(&word);
    assert!(scene.peer.is_parted());
    scene.exchange(&conn);
    // Nor does a word of a link that nobody has.
    word.link = 131;
    scene.hear(&word);
}

#[test]
fn a_connection_that_the_nic_cannot_take_stays_plain() {
    let mut scene = Scene::new();
    scene.meet(160);
    scene.peer.slots = Some(SLOT as u16);
    scene.relay(160);
    assert!(!upgrade::progress(
        scene.socket,
        scene.fds[0],
        Known::Nothing
    ));
    assert_eq!(
        (scene.socket.stage(), scene.socket.reason()),
        (Stage::Plain, Reason::Pinned)
    );
}

#[test]
fn what_the_nic_does_leaves_the_programs_errno_as_it_is() {
    const THEIRS: c_int = 77;
    // SAFETY: this thread's own.
    let errno = unsafe { libc::__errno_location() };
    let (_scene, _conn) = both_are_ready(170, true);
    // SAFETY: as above.
    unsafe { *errno = THEIRS };
    reach::progress();
    // SAFETY: as above.
    assert_eq!(unsafe { *errno }, THEIRS);
}

#[test]
fn a_thread_that_is_cancelled_ends_behind_what_the_nic_does() {
    let (_scene, _conn) = both_are_ready(180, true);
    let lives = std::thread::spawn(|| {
        // SAFETY: this thread.
        unsafe { libc::pthread_cancel(libc::pthread_self()) };
        reach::progress();
        // Nor in what a thread does at its end. SAFETY: no place for the state before.
        unsafe { crate::real::pthread_setcancelstate()(1, std::ptr::null_mut()) };
        true
    });
    assert!(lives.join().unwrap() && reach::is_here());
}

#[test]
fn a_connection_that_goes_back_before_the_queue_pair_is_there_is_never_ready() {
    let mut scene = Scene::new();
    scene.meet(190);
    let conn = scene.attach();
    assert!(stream::downgrade(&conn, Reason::Blocked));
    scene.relay(190);
    assert!(scene.peer.is_met);
    scene.peer.open();
    assert_eq!(scene.peer.view(), None);
}

#[test]
fn a_child_leaves_the_nic_to_its_parent() {
    let (mut scene, conn) = both_are_ready(140, true);
    reach::before_fork();
    // The program's signal handlers run there again, and here.
    assert!(in_child(|| {
        reach::after_fork_child();
        !thread::undisturbed::has_begun()
    }));
    reach::after_fork_parent();
    assert!(!thread::undisturbed::has_begun());
    assert!(!scene.peer.is_parted());
    // Its NIC is still where others look for it.
    let nics = std::fs::read_dir(directory()).unwrap().count();
    assert!(nics >= 2, "{nics}");
    scene.exchange(&conn);
}

#[test]
fn a_link_of_which_a_relative_has_memory_serves_no_other_connection() {
    let (scene, conn) = both_are_ready(150, true);
    assert!(crate::link::before_fork(|visit| visit(*conn.pair)));
    let late = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
    let socket = Socket::enter(late, Stage::Claimed).unwrap();
    socket.set_cookie(1);
    let mut meet = Message::new(Kind::Meet);
    (meet.cookie, meet.fd) = (1, late);
    (meet.link, meet.slot, meet.generation) = (150, SLOT + 1, GENERATION);
    scene.hear(&meet);
    assert_eq!(
        (socket.stage(), socket.reason()),
        (Stage::Plain, Reason::Forked)
    );
    let retires = |(m, _): &(Message, _)| m.kind() == Some(Kind::Retire);
    let messages = || std::iter::from_fn(|| wire::receive(scene.daemon).unwrap());
    assert!(!messages().any(|message| retires(&message)));
    table::enter(late, Entry::NOTHING);
    sys::close(late);
    assert!(crate::link::before_fork(|_| ()));
}
