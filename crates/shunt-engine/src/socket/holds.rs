//! How long a socket's object is in use: for as long as descriptors of this process name it, or
//! calls wait on it.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use shunt_shm::slot;

use super::{SOCKETS, Socket, Stage, paired};
use crate::hold::{self, Held};
use crate::link::Pair;
use crate::table;

impl Held for Socket {
    fn count(&self) -> &AtomicU64 {
        &self.holds
    }

    fn unhold_by(&'static self, hold: u64) {
        if self.holds.fetch_sub(hold, Ordering::AcqRel) == hold {
            self.end();
        }
    }
}

impl Socket {
    /// Number of descriptors and waiting calls.
    pub(crate) fn holds(&self) -> u32 {
        hold::lasting(self.holds.load(Ordering::Relaxed))
    }

    /// Takes one from the count if it is not the last. `false`: it is.
    pub(crate) fn unhold_one_of_several(&self) -> bool {
        let less = |holds: u64| (hold::lasting(holds) > 1).then(|| holds - 1);
        self.holds
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
            .is_ok()
    }

    /// A descriptor of the socket is about to be closed: another one may take its place as the one
    /// that the library uses.
    pub(crate) fn forget_fd(&'static self, fd: c_int) {
        if self.fd() == fd && self.holds() > 1 {
            let mut other = None;
            table::each(|n, word| {
                if word.is(self) && n != fd {
                    other = Some(n);
                }
            });
            if let Some(other) = other {
                self.fd.store(other, Ordering::Relaxed);
                self.record.fd.store(other, Ordering::Relaxed);
            }
        }
    }

    /// This descriptor has been closed during calls on the socket, and its number may name another file by now. If
    /// no other descriptor has taken its place, the copy that those calls use does, if there is one.
    pub(crate) fn lose_fd(&self, fd: c_int) {
        let instead = self.handed.copy().unwrap_or(-1);
        let o = Ordering::Relaxed;
        let _ = self.fd.compare_exchange(fd, instead, o, o);
    }

    fn end(&'static self) {
        if self.handed.retire() {
            self.end_at_last();
        }
    }

    /// This process does not use the socket's slots any more.
    pub(crate) fn leave_slots(&self) {
        self.pairs.each(|pair| {
            if pair.link.socket(pair.number) == Some(self.index()) {
                pair.link.enter(pair.number, None);
            }
        });
    }

    /// The socket is not in use any more. `true`: no thread is inside a real call on it. Otherwise the
    /// last one to leave [buries](Self::bury) it.
    pub(crate) fn retire(&self) -> bool {
        if self.is_attached_at_both_ends() {
            self.dealings.due.note_used();
        }
        paired::note(self.index(), self.stage(), Stage::Free);
        self.set_stage(Stage::Free);
        self.inside.retire()
    }

    fn is_attached_at_both_ends(&self) -> bool {
        let is_ready = |pair: &Pair| pair.peer_state() & slot::READY != 0;
        self.stage() == Stage::Attached && self.pair().is_some_and(is_ready)
    }

    /// Frees the socket's object, which may be used for another socket.
    pub(crate) fn free(&'static self) {
        self.cookie.store(0, Ordering::Relaxed);
        self.dealings.due.clear();
        SOCKETS.give(self);
    }
}
