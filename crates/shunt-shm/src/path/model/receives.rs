//! What a thread does that receives, or changes from where.

use super::{End, Frame, payload};
use crate::atomic::Ordering;
use crate::path::withdrawal::Look;
use crate::slot::Way;

/// Whether a receiver could send to itself what is unread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loan {
    Refused,
    /// It seemed so, and it has sent nothing.
    InVain,
    Lent,
}

impl End<'_> {
    /// Receives what there is.
    pub(super) fn receive(&self) {
        let token = &self.own.slot.receiving.token;
        self.take(token);
        self.receive_with_token();
        token.give();
    }

    fn receive_with_token(&self) {
        let path = self.receiver();
        if path.way() != Way::TcpAgain && path.is_withdrawn() {
            self.follow_if_withdrawn();
        }
        if path.way() == Way::Tcp && !path.follow_switch() {
            // In this order: behind what had come then it may go on by a ring and by TCP again.
            let arrived = self.arrived();
            self.take_from_tcp(path.before_ring(arrived));
            if path.way() == Way::Tcp && !path.follow_switch() {
                return;
            }
        }
        // As long as the peer is in the middle of withdrawing what is there, that stays there.
        let may_read =
            path.way() == Way::Ring && (!path.is_withdrawn() || self.follow_if_withdrawn());
        if may_read && path.way() == Way::Ring {
            self.read_ring();
        }
        if path.way() == Way::TcpAgain {
            self.after_ring();
        }
    }

    /// `false`: the peer is in the middle of that.
    fn follow_if_withdrawn(&self) -> bool {
        let path = self.receiver();
        if path.stays_in_ring() {
            return true;
        }
        match path.look_at_withdrawal() {
            Look::Withdrawn { from } => {
                path.note_brought(from, Some(self.unread()));
                path.follow_back();
                true
            }
            Look::No => true,
            Look::Wait => false,
        }
    }

    fn read_ring(&self) {
        let slot = &self.own.slot;
        loop {
            let read = slot.receiving.read.load(Ordering::Relaxed);
            let frame = self.peer.ring.lock().unwrap().get(read as usize).copied();
            match frame {
                None => return,
                Some(Frame::Back) => return self.receiver().follow_back(),
                Some(Frame::Byte(byte)) => {
                    self.got(&[byte]);
                    slot.receiving.read.store(read + 1, Ordering::Release);
                }
            }
        }
    }

    fn after_ring(&self) {
        let path = self.receiver();
        if path.awaits() && !self.learn() {
            if self.is_never_answered() {
                return self.receive_with_token();
            }
            // A peer that had left before it was recalled may have sent what follows its ring.
            let most = if path.peer_has_left() {
                path.switch_offset()
                    .map_or(0, |at| at.saturating_sub(path.taken()))
            } else {
                u64::MAX
            };
            self.take_from_tcp(most);
            return;
        }
        match path.is_bringing() {
            Some(until) => {
                self.take_from_tcp(until - path.taken());
                let ended = self.peer.stream.lock().unwrap().has_ended;
                let brings = path.is_bringing().is_some();
                if ended && brings && self.take_from_tcp(0) == 0 && self.is_drained() {
                    self.go_on_in_ring();
                }
            }
            None => {
                self.take_from_tcp(u64::MAX);
            }
        }
    }

    /// Its sender has ended before TCP had brought what lay in the ring.
    fn go_on_in_ring(&self) {
        let path = self.receiver();
        let Some(until) = path.is_bringing() else {
            return;
        };
        let left = until - path.taken();
        let brought = self.unread() - left;
        let read = &self.own.slot.receiving.read;
        read.fetch_add(brought, Ordering::AcqRel);
        path.stay_in_ring();
        self.read_ring();
    }

    fn is_drained(&self) -> bool {
        let stream = self.peer.stream.lock().unwrap();
        stream.taken == stream.bytes.len()
    }

    fn learn(&self) -> bool {
        let path = self.receiver();
        let at_end = || self.is_at_end();
        let only_tcp = || path.has_ended_unasked() && path.switch_offset().is_none();
        let known = path.is_answered(at_end) || only_tcp();
        if known {
            path.learn(|| Some(self.unread()));
        }
        known
    }

    fn is_never_answered(&self) -> bool {
        let path = self.receiver();
        if path.has_ended_unasked() && path.asks() && path.awaits() && self.unread() > 0 {
            path.stay_in_ring();
            return true;
        }
        let refused = path.is_refused(|| self.is_at_end());
        if refused {
            path.take_back();
        }
        refused
    }

    fn is_at_end(&self) -> bool {
        let read = self.own.slot.receiving.read.load(Ordering::Relaxed) as usize;
        self.peer.ring.lock().unwrap().get(read) == Some(&Frame::Back)
    }

    /// How much lies unread in the peer's ring.
    pub(super) fn unread(&self) -> u64 {
        let read = self.own.slot.receiving.read.load(Ordering::Relaxed) as usize;
        payload(&self.peer.ring.lock().unwrap(), read).count() as u64
    }

    /// How much has come by TCP.
    fn arrived(&self) -> u64 {
        let stream = self.peer.stream.lock().unwrap();
        (stream.bytes.len() - stream.taken) as u64
    }

    fn take_from_tcp(&self, most: u64) -> u64 {
        let mut stream = self.peer.stream.lock().unwrap();
        let from = stream.taken;
        let n = (stream.bytes.len() - from).min(usize::try_from(most).unwrap_or(usize::MAX));
        stream.taken += n;
        self.got(&stream.bytes[from..from + n]);
        drop(stream);
        let taken = &self.own.slot.receiving.kernel_bytes;
        taken.fetch_add(n as u64, Ordering::Relaxed);
        n as u64
    }

    fn got(&self, bytes: &[u8]) {
        let mut got = self.own.got.lock().unwrap();
        for &byte in bytes {
            assert_eq!(usize::from(byte), got.len(), "lost, doubled or overtaken");
            got.push(byte);
        }
    }

    /// Has what it receives come by TCP.
    pub(super) fn recall(&self, insists: bool, loan: Loan) {
        let token = &self.own.slot.receiving.token;
        self.take(token);
        let path = self.receiver();
        let recalled = path.has_recalled();
        if path.way() != Way::TcpAgain && path.is_withdrawn() {
            self.follow_if_withdrawn();
        }
        let _ = path.way() == Way::Tcp && path.follow_switch();
        let begins = path.way() != Way::TcpAgain
            && (insists || !path.peer_has_left())
            && !recalled
            && !path.stays_in_ring();
        if begins {
            path.recall();
            self.take_part(Loan::Refused);
            if loan != Loan::Refused && path.asks() {
                self.take_part(loan);
            }
        }
        token.give();
    }

    fn take_part(&self, loan: Loan) {
        let path = self.receiver();
        let mut unread = false;
        let can = || {
            unread = path.switch_offset().is_some() && self.unread() > 0;
            !unread || loan != Loan::Refused
        };
        if !path.take_part(can) {
            return;
        }
        if unread && loan == Loan::InVain {
            return path.ask_on();
        }
        let before = self.unread();
        if unread {
            let read = self.own.slot.receiving.read.load(Ordering::Relaxed) as usize;
            let ring = self.peer.ring.lock().unwrap();
            let mut stream = self.peer.stream.lock().unwrap();
            // Nothing can be sent behind its end.
            if !stream.has_ended {
                stream.bytes.extend(payload(&ring, read));
            }
        }
        path.done(|| Some(before));
    }

    /// Nobody answers: what arrives is read where it was before.
    pub(super) fn give_up(&self) {
        let token = &self.own.slot.receiving.token;
        self.take(token);
        let path = self.receiver();
        if path.awaits() && !self.learn() {
            path.take_back_in_time();
        }
        token.give();
    }
}
