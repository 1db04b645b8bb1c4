//! The daemon's side of the boards: memory that it alone writes and every client of one network
//! namespace maps read-only (see [`shunt_abi::board`]). So nobody sees where others listen, or how
//! much they are told.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use shunt_abi::board::{
    CROSSES_AT, MAGIC, MAGIC_AT, MAIL_AT, MAIL_SLOTS, NO_MAIL, PID_AT, PORTS_AT, PROTOCOL_AT, SIZE,
    TRIALS_AT,
};

use crate::sys::Words;

/// The boards of all network namespaces that clients live in (`SO_NETNS_COOKIE`).
#[derive(Debug, Default)]
pub(crate) struct Boards {
    boards: HashMap<u64, Rc<Board>>,
    /// Processes of different namespaces are paired.
    cross: bool,
    /// The other end of a connection may be found on another host.
    hosts: bool,
}

impl Boards {
    /// Whether processes of different namespaces are paired.
    pub(crate) fn cross(&self) -> bool {
        self.cross
    }

    /// Sets whether processes of different namespaces are paired from now on; all clients see it.
    pub(crate) fn set_cross(&mut self, cross: bool) {
        self.cross = cross;
        self.tell();
    }

    /// The board of a namespace; a new one for its first client.
    pub(crate) fn of(&mut self, netns: u64) -> io::Result<Rc<Board>> {
        if let Some(board) = self.boards.get(&netns) {
            return Ok(Rc::clone(board));
        }
        let board = Rc::new(Board::new(self.cross || self.hosts)?);
        self.boards.insert(netns, Rc::clone(&board));
        Ok(board)
    }

    /// The board of a namespace, if a client lives there.
    pub(crate) fn get(&self, netns: u64) -> Option<&Board> {
        self.boards.get(&netns).map(Rc::as_ref)
    }

    /// Whether the daemon may be asked for connections that seem to leave the host: it has a say in those between namespaces,
    /// or between hosts (`hosts`).
    pub(crate) fn set_asked(&mut self, hosts: bool) {
        self.hosts = hosts;
        self.tell();
    }

    /// See [`CROSSES_AT`].
    fn tell(&self) {
        for board in self.boards.values() {
            board.set_crosses(self.cross || self.hosts);
        }
    }

    /// Forgets boards that no client has any more, and says of which namespaces.
    pub(crate) fn forget_unused(&mut self) -> Vec<u64> {
        let unused = self
            .boards
            .extract_if(|_, board| Rc::strong_count(board) == 1);
        unused.map(|(netns, _)| netns).collect()
    }
}

/// A mapped board, its descriptor, and which of its parts are in use.
#[derive(Debug)]
pub(crate) struct Board {
    file: OwnedFd,
    words: Words,
    used: RefCell<Used>,
}

/// A port that is listed for a while.
#[derive(Debug)]
pub(crate) struct Listed {
    board: Rc<Board>,
    port: u16,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.board.remove_listener(self.port);
    }
}

/// A port at which a connection is tried, for a while.
#[derive(Debug)]
pub(crate) struct Trial {
    board: Rc<Board>,
    port: u16,
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.board.end_trial(self.port);
    }
}

#[derive(Debug, Default)]
struct Used {
    /// Listeners per port, of all clients together, and what else has it listed.
    listeners: HashMap<u16, u32>,
    /// Trials per port.
    trials: HashMap<u16, u32>,
    /// Mail counters given back by clients that have gone.
    free: Vec<u32>,
    /// The first counter that was never given out.
    fresh: u32,
}

impl Board {
    /// Makes a board. After the seals no other process can map it writable,
    /// write to it or resize it; our own mapping goes on.
    pub(crate) fn new(crosses: bool) -> io::Result<Self> {
        let file = rustix::fs::memfd_create(
            "shunt-board",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, SIZE as u64)?;
        let words = Words::map(&file, SIZE)?;
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL,
        )?;
        let board = Self {
            file,
            words,
            used: RefCell::default(),
        };
        let magic = MAGIC.to_ne_bytes();
        let half = |at: usize| {
            u32::from_ne_bytes([magic[at], magic[at + 1], magic[at + 2], magic[at + 3]])
        };
        board.word(MAGIC_AT).store(half(0), Ordering::Relaxed);
        board.word(MAGIC_AT + 4).store(half(4), Ordering::Relaxed);
        board
            .word(PROTOCOL_AT)
            .store(u32::from(shunt_abi::PROTOCOL), Ordering::Relaxed);
        board
            .word(PID_AT)
            .store(std::process::id(), Ordering::Relaxed);
        board.set_crosses(crosses);
        Ok(board)
    }

    fn set_crosses(&self, crosses: bool) {
        self.word(CROSSES_AT)
            .store(u32::from(crosses), Ordering::Relaxed);
    }

    /// The descriptor that clients are given.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// One more listener on `port`, or one that is reached by it. There may be several, of one client or of many
    /// (`SO_REUSEPORT`, other addresses): the kernel chooses among them, and the port stays listed until the last goes.
    pub(crate) fn add_listener(&self, port: u16) {
        let mut used = self.used.borrow_mut();
        let count = used.listeners.entry(port).or_default();
        *count += 1;
        if *count == 1 {
            self.port_word(port)
                .fetch_or(1 << (port % 32), Ordering::Release);
        }
    }

    /// Lists `port` as long as the answer lives.
    pub(crate) fn list(self: &Rc<Self>, port: u16) -> Listed {
        self.add_listener(port);
        Listed {
            board: Rc::clone(self),
            port,
        }
    }

    /// Whether a connector is told that `port` is worth a claim.
    pub(crate) fn lists(&self, port: u16) -> bool {
        self.used.borrow().listeners.contains_key(&port)
    }

    /// One listener fewer on `port`.
    pub(crate) fn remove_listener(&self, port: u16) {
        let mut used = self.used.borrow_mut();
        let Some(count) = used.listeners.get_mut(&port) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            used.listeners.remove(&port);
            self.port_word(port)
                .fetch_and(!(1 << (port % 32)), Ordering::Release);
        }
    }

    /// Acceptors at `port` are to claim what they accept as long as the answer lives.
    pub(crate) fn begin_trial(self: &Rc<Self>, port: u16) -> Trial {
        *self.used.borrow_mut().trials.entry(port).or_default() += 1;
        self.word(TRIALS_AT + usize::from(port) / 32 * 4)
            .fetch_or(1 << (port % 32), Ordering::Release);
        Trial {
            board: Rc::clone(self),
            port,
        }
    }

    fn end_trial(&self, port: u16) {
        let mut used = self.used.borrow_mut();
        let Some(count) = used.trials.get_mut(&port) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            used.trials.remove(&port);
            self.word(TRIALS_AT + usize::from(port) / 32 * 4)
                .fetch_and(!(1 << (port % 32)), Ordering::Release);
        }
    }

    /// A mail counter for a new client, at zero; [`NO_MAIL`] if all are taken.
    pub(crate) fn take_mail(&self) -> u32 {
        let mut used = self.used.borrow_mut();
        let index = used.free.pop().unwrap_or_else(|| {
            let index = used.fresh;
            used.fresh = used.fresh.saturating_add(1).min(MAIL_SLOTS as u32);
            index
        });
        if index as usize >= MAIL_SLOTS {
            return NO_MAIL;
        }
        self.mail(index).store(0, Ordering::Release);
        index
    }

    /// Takes a counter back.
    pub(crate) fn free_mail(&self, index: u32) {
        if index != NO_MAIL {
            self.used.borrow_mut().free.push(index);
        }
    }

    /// Tells a client that a message was sent to it. Called after the send, so
    /// that whoever sees the new count (acquire) also finds the message.
    pub(crate) fn raise_mail(&self, index: u32) {
        if index != NO_MAIL {
            self.mail(index).fetch_add(1, Ordering::Release);
        }
    }

    fn mail(&self, index: u32) -> &AtomicU32 {
        self.word(MAIL_AT + index as usize * 4)
    }

    fn port_word(&self, port: u16) -> &AtomicU32 {
        self.word(PORTS_AT + usize::from(port) / 32 * 4)
    }

    /// The word at a byte offset.
    fn word(&self, offset: usize) -> &AtomicU32 {
        &self.words.get()[offset / 4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_stays_set_until_its_last_listener_has_gone() {
        let board = Board::new(false).unwrap();
        board.add_listener(6379);
        board.add_listener(6379);
        board.remove_listener(6379);
        assert_eq!(
            board.port_word(6379).load(Ordering::Relaxed),
            1 << (6379 % 32)
        );
        board.remove_listener(6379);
        assert_eq!(board.port_word(6379).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_port_is_one_of_trials_until_the_last_has_ended() {
        let board = Rc::new(Board::new(false).unwrap());
        let word = || {
            board
                .word(TRIALS_AT + 6379 / 32 * 4)
                .load(Ordering::Relaxed)
        };
        let [one, other] = [board.begin_trial(6379), board.begin_trial(6379)];
        drop(one);
        assert_eq!(word(), 1 << (6379 % 32));
        drop(other);
        assert_eq!(word(), 0);
    }

    #[test]
    fn a_freed_mail_counter_is_reused_and_starts_at_zero() {
        let board = Board::new(false).unwrap();
        let (a, b) = (board.take_mail(), board.take_mail());
        assert_ne!(a, b);
        board.raise_mail(a);
        board.free_mail(a);
        assert_eq!(board.take_mail(), a);
        assert_eq!(board.mail(a).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_client_too_many_gets_no_counter() {
        let board = Board::new(false).unwrap();
        let given: Vec<_> = (0..MAIL_SLOTS).map(|_| board.take_mail()).collect();
        assert!(!given.contains(&NO_MAIL));
        assert_eq!(board.take_mail(), NO_MAIL);
        board.free_mail(NO_MAIL);
        assert_eq!(board.take_mail(), NO_MAIL);
    }

    #[test]
    fn each_namespace_has_a_board_as_long_as_a_client_lives_there() {
        let mut boards = Boards::default();
        let (one, other) = (boards.of(1).unwrap(), boards.of(2).unwrap());
        one.add_listener(80);
        assert_eq!(other.port_word(80).load(Ordering::Relaxed), 0);
        assert!(Rc::ptr_eq(&one, &boards.of(1).unwrap()));
        drop(one);
        assert_eq!(boards.forget_unused(), [1]);
        assert!(boards.get(1).is_none() && boards.get(2).is_some());
    }

    #[test]
    fn nobody_else_can_write_it() {
        let board = Board::new(false).unwrap();
        assert!(Words::map(board.file(), SIZE).is_err());
        assert!(rustix::io::pwrite(board.file(), b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(board.file(), 1).is_err());
    }
}
