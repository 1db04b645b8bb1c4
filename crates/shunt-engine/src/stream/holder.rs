//! What is known of the process that holds one of the peer's tokens.
//!
//! A token names its holder by a number that says something in one PID namespace alone. A process of another one looks dead here,
//! or is taken for the one that has its number here.

use shunt_shm::token::Token;

use super::conn::Conn;
use crate::sys;
use crate::thread::{self, Looks};

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

/// Looks now and then whether the process of the peer's for which a call waits is stopped.
pub(super) struct Stopped<'a> {
    conn: &'a Conn<'a>,
    looks: Looks,
}

impl<'a> Stopped<'a> {
    pub(super) fn new(conn: &'a Conn<'a>) -> Self {
        let looks = Looks::begin(sys::now());
        Self { conn, looks }
    }

    /// Whether the holder of a token of the peer's is stopped, as of the last look.
    pub(super) fn is_holder_of(&mut self, token: &Token) -> bool {
        self.looks.is_due(sys::now()) && self.conn.is_held_by_stopped(token)
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
