//! What is known of the process that holds one of the peer's tokens.
//!
//! A token names its holder by a number that says something in one PID namespace alone. A process of another one looks dead here,
//! or is taken for the one that has its number here.

use shunt_shm::token::Token;

use super::conn::Conn;
use crate::sys;
use crate::thread::{self, Looks, Rest};

impl Conn<'_> {
    /// Whether the holder of a token of the peer's has died with it.
    pub(super) fn is_held_by_dead(&self, token: &Token) -> bool {
        self.pair.link.shares_numbers() && thread::is_held_by_dead(token)
    }

    /// Whether the holder of a token of the peer's is stopped, so that nobody knows when it
    /// continues.
    pub(super) fn is_held_by_stopped(&self, token: &Token) -> bool {
        self.pair.link.shares_numbers() && thread::is_held_by_stopped(token)
    }

    /// Whether the holder of a token of the peer's continues as soon as it has a processor, as far
    /// as is known.
    pub(super) fn is_held_by_running(&self, token: &Token) -> bool {
        if self.pair.link.shares_numbers() {
            thread::is_held_by_running(token)
        } else {
            token.is_taken()
        }
    }
}

/// The turns of a wait for a process of the peer's, which looks now and then whether that is stopped. Short operations are over
/// while the thread spins. It looks before it yields for the first time: beside busy programs a thread that has yielded gets its
/// processor back after ten milliseconds and more.
pub(super) struct Stopped<'a> {
    conn: &'a Conn<'a>,
    spins: u32,
    looks: Looks,
    rest: Rest,
}

impl<'a> Stopped<'a> {
    /// Turns in which the thread spins, for about a microsecond in each.
    const SPINS: u32 = 4;

    pub(super) fn new(conn: &'a Conn<'a>) -> Self {
        Self {
            conn,
            spins: 0,
            looks: Looks::at_once(),
            rest: Rest::new(),
        }
    }

    /// Whether the holder of a token of the peer's is stopped, as of the last look.
    pub(super) fn is_holder_of(&mut self, token: &Token) -> bool {
        self.is_look_due() && self.conn.is_held_by_stopped(token)
    }

    /// Whether it is time to look at the process of the peer's.
    pub(super) fn is_look_due(&mut self) -> bool {
        self.spins == Self::SPINS && self.looks.is_due(sys::now())
    }

    /// One turn.
    pub(super) fn turn(&mut self) {
        if self.spins == Self::SPINS {
            return self.rest.turn();
        }
        self.spins += 1;
        for _ in 0..30 {
            std::hint::spin_loop();
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::process::Command;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn what_a_number_says_is_believed_in_one_pid_namespace_alone() {
        let mut child = Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let ends = BothEnds::attached();
        let [conn, peer] = &ends.conns();
        let token = &peer.pair.own.receiving.token;
        assert!(token.try_take(thread::of_another(dead)).is_ok());
        assert!(conn.is_held_by_dead(token) && !conn.is_held_by_running(token));
        let arenas = [conn, peer].map(|end| end.pair.link.own());
        let [ours, theirs] = [0, 1].map(|side| arenas[side].pid_namespace());
        let namespace = theirs.swap(1, Ordering::Relaxed);
        assert!(!conn.is_held_by_dead(token) && !conn.is_held_by_stopped(token));
        assert!(conn.is_held_by_running(token));
        // Nobody knows who has it.
        theirs.store(0, Ordering::Relaxed);
        assert_eq!(ours.swap(0, Ordering::Relaxed), namespace);
        assert!(!conn.is_held_by_dead(token) && conn.is_held_by_running(token));
        token.reset();
    }
}
