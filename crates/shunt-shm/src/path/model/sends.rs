//! What a thread does that sends, or changes where what it sends goes.

use super::{End, Frame, payload, thread};
use crate::atomic::{Ordering, light};
use crate::path::recall::{Answer, Look};
use crate::path::step;
use crate::path::withdrawal::Withdrawal;
use crate::publish;
use crate::slot::{SHUT_WR, Way};

impl End<'_> {
    /// Bytes that the kernel has of what this side sends.
    fn written(&self) -> u64 {
        self.own.stream.lock().unwrap().bytes.len() as u64
    }

    /// Sends the next byte, and says where it went.
    pub(super) fn send(&self) -> Way {
        let sending = &self.own.slot.sending;
        loop {
            self.take(&sending.token);
            let path = self.sender();
            if path.may_switch() && sending.in_kernel.load(Ordering::Acquire) == 0 {
                path.switch(self.written());
            }
            if path.way() == Way::Ring && !path.is_recalled() {
                let byte = self.next();
                self.own.ring.lock().unwrap().push(Frame::Byte(byte));
                sending.token.give();
                return Way::Ring;
            }
            let open = path.is_due() && !self.pay();
            // The peer has taken a recall back; or TCP has no room for all of what is owed.
            if open || matches!(path.way(), Way::Ring | Way::Owing) {
                sending.token.give();
                thread::yield_now();
                continue;
            }
            let byte = self.next();
            sending.in_kernel.fetch_add(1, Ordering::AcqRel);
            // The engine makes the real call without the token. Who else sends meanwhile is its own
            // program's thread, and nothing is in order between these.
            self.own.stream.lock().unwrap().bytes.push(byte);
            sending.token.give();
            sending.in_kernel.fetch_sub(1, Ordering::AcqRel);
            return Way::TcpAgain;
        }
    }

    fn next(&self) -> u8 {
        self.own.next.fetch_add(1, Ordering::Relaxed) as u8
    }

    /// Answers a recall, and sends what is owed. `false`: the receiver is in the middle of its recall.
    fn pay(&self) -> bool {
        let path = self.sender();
        if !path.is_owing() && path.is_asked() {
            let asked = match path.look() {
                Look::Wait => {
                    // Who died in the middle of that has a relative, or the kernel says so.
                    self.bury_peer();
                    return false;
                }
                Look::TakenBack => return true,
                Look::Nonsense => panic!("nonsense"),
                look => look == Look::Asked,
            };
            let answer = path.accept(asked, || Some(self.written()), || self.is_unread_there());
            if answer != Answer::Owing {
                return true;
            }
        }
        if path.is_owing() {
            self.send_owed();
        }
        true
    }

    /// Sends what is owed, as far as TCP takes it; what it has taken by the end of the stream.
    fn send_owed(&self) {
        let path = self.sender();
        let read = self.own.slot.recall.owed_read.load(Ordering::Relaxed) as usize;
        loop {
            let Some((_, sent)) = path.owed(self.written()) else {
                panic!("less is written than was");
            };
            let next = self.payload(read).nth(sent as usize);
            let Some(byte) = next else { break };
            step();
            if !has_room() {
                return;
            }
            let mut stream = self.own.stream.lock().unwrap();
            if stream.has_ended {
                break;
            }
            stream.bytes.push(byte);
        }
        path.paid();
    }

    /// The bytes in this side's ring from that frame on.
    fn payload(&self, from: usize) -> impl Iterator<Item = u8> + use<> {
        payload(&self.own.ring.lock().unwrap(), from)
    }

    /// Whether the peer has not read all of it.
    fn is_unread_there(&self) -> bool {
        let read = self.peer.slot.receiving.read.load(Ordering::Acquire);
        self.payload(read as usize).next().is_some()
    }

    pub(super) fn end_ring(&self, written: u64) {
        self.sender().leave(written, |_| {
            self.own.ring.lock().unwrap().push(Frame::Back);
        });
    }

    /// Goes back to TCP with what it sends.
    pub(super) fn leave(&self, withdraws: bool) {
        let token = &self.own.slot.sending.token;
        self.take(token);
        self.leave_with_token(withdraws);
        token.give();
    }

    fn leave_with_token(&self, withdraws: bool) {
        let path = self.sender();
        if path.is_due() && !self.pay() {
            return;
        }
        match path.way() {
            Way::Ring if path.is_shut() => {}
            Way::Ring => {
                path.say_leaving();
                let tries = withdraws && !path.is_recalled();
                if tries && path.withdraw(|| Some(self.written())) == Withdrawal::Owing {
                    self.send_owed();
                } else {
                    self.end_ring(self.written());
                }
            }
            Way::Tcp => path.stay_with_kernel(),
            Way::TcpAgain | Way::Owing => {}
        }
    }

    /// Ends what it sends. It does not wait for a receiver that is in the middle of its recall.
    pub(super) fn shutdown(&self) {
        let token = &self.own.slot.sending.token;
        self.take(token);
        if self.sender().is_due() {
            self.pay();
        }
        let state = &self.own.slot.face.state;
        publish::set_bits(state, SHUT_WR);
        light();
        if self.sender().is_asked() {
            self.pay();
        }
        self.own.stream.lock().unwrap().has_ended = true;
        token.give();
    }

    /// A call that sends nothing, but sees to what is due.
    pub(super) fn answer(&self) {
        let token = &self.own.slot.sending.token;
        self.take(token);
        if self.sender().is_due() {
            self.pay();
        }
        token.give();
    }
}

/// Whether TCP takes another byte just now.
fn has_room() -> bool {
    #[cfg(shuttle)]
    return super::shuttle_tests::has_room();
    #[cfg(loom)]
    true
}
