//! Sending and receiving.

use super::super::feature::Feature;
use super::super::model::{Begun, EndId, Slot, Wait, Worker};
use super::{Author, MOST_UNREAD, letter};

/// How a receive is made.
struct Receive {
    n: usize,
    by: &'static str,
    flags: Vec<&'static str>,
}

impl Receive {
    fn looks(&self) -> bool {
        self.flags.contains(&"PEEK") || self.flags.contains(&"OOB")
    }

    /// How many bytes the call waits for.
    fn least(&self) -> usize {
        if self.flags.contains(&"WAITALL") || self.by == "stdio" {
            self.n
        } else {
            1
        }
    }
}

fn joined(flags: &[&str]) -> String {
    if flags.is_empty() {
        String::new()
    } else {
        format!(" flags={}", flags.join("|"))
    }
}

impl Author {
    fn size(&mut self) -> usize {
        match self.random.below(100) {
            0..3 => 0,
            3..35 => self.random.between(1, 10),
            35..60 => self.random.between(11, 200),
            60..85 => self.random.between(201, 5000),
            85..95 => self.random.between(5001, 20_000),
            _ => self
                .random
                .pick(&[1, 8, 64, 1024, 1448, 4096, 8192, 16_384, 32_768]),
        }
    }

    // ---- Sending -----------------------------------------------------------

    fn sender(&mut self) -> &'static str {
        let plain = [
            "send", "send", "send", "write", "writev", "sendto", "sendmsg", "sendmmsg", "syscall",
            "pwritev2",
        ];
        if self.chance(Feature::Splice, 15) {
            return self.random.pick(&["sendfile", "splice"]);
        }
        if self.chance(Feature::Stdio, 5) {
            return "stdio";
        }
        self.random.pick(&plain)
    }

    pub(super) fn send(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let (end, peer) = (self.model.end(id), self.model.end(id.peer()));
        let is_awaited = peer.is_receiving;
        let is_full = peer.unread >= MOST_UNREAD;
        let is_over = end.has_shut[0] || end.is_reset || peer.is_closed;
        if end.is_sending || is_full || is_over && self.random.percent(60) {
            return;
        }
        let mut n = self.size();
        let mut by = self.sender();
        if is_awaited {
            // Who sleeps in a receive may wake up to a part of what comes in parts.
            n = n.min(2000);
            by = self.random.pick(&["send", "write", "sendto", "syscall"]);
        }
        let place = self.place();
        let flags = self.send_flags(by);
        let takes_bad = n > 0 && !["stdio", "sendfile", "splice"].contains(&by);
        let bad = if self.chance(Feature::Bad, 4) && takes_bad {
            " bad=1"
        } else {
            ""
        };
        self.line(format!(
            "send {}.{slot} n={n} by={by}{flags}{place}{bad}",
            letter(worker)
        ));
        if bad.is_empty() {
            self.model.sent(id, n);
        }
    }

    fn send_flags(&mut self, by: &str) -> String {
        let mut flags = Vec::new();
        if !by.starts_with("send") && by != "syscall" || by == "sendfile" {
            return String::new();
        }
        if self.random.percent(40) {
            flags.push("NOSIGNAL");
        }
        if self.random.percent(15) {
            flags.push("DONTWAIT");
        }
        if self.chance(Feature::Urgent, 6) {
            flags.push("OOB");
        }
        joined(&flags)
    }

    /// More than TCP holds: a thread sends while the other end receives.
    pub(super) fn bulk(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let peer = id.peer();
        let is_quiet = |author: &Self, id: EndId| {
            let end = author.model.end(id);
            let is_used = end.is_closed || end.is_reset || end.is_receiving || end.is_sending;
            end.has_shut == [false; 2] && !(is_used || end.has_timeout || end.is_nonblocking)
        };
        let Some(&(receiver, to)) = self.model.names(peer).first() else {
            return;
        };
        if !is_quiet(self, id) || !is_quiet(self, peer) || self.model.free_thread(worker).is_none()
        {
            return;
        }
        let most = self.random.pick(&[100_000, 300_000, 300_000, 1_500_000]);
        let n = self.random.between(20_000, most);
        let unread = self.model.end(peer).unread;
        let by = self
            .random
            .pick(&["send", "write", "writev", "sendmsg", "pwritev2"]);
        self.line(format!("send {}.{slot} n={n} by={by}", letter(worker)));
        if self.begin(worker, Wait::Room(id)) {
            self.model.end_mut(id).is_sending = true;
        }
        let chunk = self.random.pick(&[1000, 4096, 10_000, 65_536, 300_000]);
        let by = self
            .random
            .pick(&["recv", "read", "readv", "recvmsg", "splice"]);
        self.line(format!(
            "drain {}.{to} n={} chunk={chunk} by={by}",
            letter(receiver),
            n + unread
        ));
        self.model.received(peer, unread);
        let index = self.model.begun.len() - 1;
        self.join(index);
    }

    // ---- Receiving ---------------------------------------------------------

    fn receive(&mut self, unread: usize) -> Receive {
        let plain = [
            "recv", "recv", "recv", "read", "readv", "recvfrom", "recvmsg", "recvmmsg", "syscall",
            "preadv2",
        ];
        let mut receive = Receive {
            n: match self.random.below(10) {
                0..3 => unread,
                3..6 => self.random.between(1, unread.max(1)),
                6..9 => self.random.between(unread, unread + 3000).max(1),
                _ => self.size(),
            },
            by: self.random.pick(&plain),
            flags: Vec::new(),
        };
        if self.chance(Feature::Splice, 8) {
            receive.by = "splice";
        }
        if self.chance(Feature::Stdio, 3) && unread > 0 {
            receive.by = "stdio";
            receive.n = receive.n.clamp(1, unread);
        }
        if ["read", "readv", "splice", "stdio", "preadv2"].contains(&receive.by) {
            return receive;
        }
        if self.chance(Feature::Urgent, 6) {
            receive.n = 1;
            receive.flags.push("OOB");
            return receive;
        }
        if self.random.percent(20) {
            receive.flags.push("PEEK");
        }
        if self.random.percent(15) {
            receive.flags.push("DONTWAIT");
        }
        if self.chance(Feature::WaitAll, 15) {
            receive.flags.push("WAITALL");
        }
        if self.chance(Feature::Trunc, 10) {
            receive.flags.push("TRUNC");
        }
        receive
    }

    pub(super) fn recv(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let unread = self.model.end(id).unread;
        if self.model.end(id).is_receiving {
            return;
        }
        let mut receive = self.receive(unread);
        // Urgent data is never waited for.
        let may_wait = !["DONTWAIT", "OOB"]
            .iter()
            .any(|flag| receive.flags.contains(flag));
        let sleeps = may_wait && self.model.would_sleep(id, receive.least());
        if sleeps {
            return self.sleep_in_recv(worker, slot, id, receive);
        }
        // A receive that has taken something and waits for the rest is a sleep, too.
        if !may_wait {
            receive.flags.retain(|flag| *flag != "WAITALL");
        }
        let bad = if self.chance(Feature::Bad, 4) && receive.by != "splice" && receive.by != "stdio"
        {
            " bad=1"
        } else {
            ""
        };
        let place = self.place();
        self.receive_line(worker, slot, &receive, &format!("{place}{bad}"));
        if !receive.looks() && bad.is_empty() {
            self.model.received(id, receive.n);
        }
    }

    fn receive_line(&mut self, worker: Worker, slot: Slot, receive: &Receive, rest: &str) {
        self.line(format!(
            "recv {}.{slot} n={} by={}{}{rest}",
            letter(worker),
            receive.n,
            receive.by,
            joined(&receive.flags)
        ));
    }

    /// In a thread, until an alarm rings, or not at all.
    fn sleep_in_recv(&mut self, worker: Worker, slot: Slot, id: EndId, mut receive: Receive) {
        // The player makes two messages of a `recvmmsg`. One of no bytes ends natively at anything that wakes the thread.
        let least = if receive.by == "recvmmsg" { 3 } else { 1 };
        receive.n = receive.n.max(least);
        if self.chance(Feature::Signal, 15) {
            self.receive_line(worker, slot, &receive, " alarm=15");
            self.forget_received(id, &receive);
        } else if self.mixture.has(Feature::Thread) && self.may_begin(worker) {
            self.receive_line(worker, slot, &receive, "");
            let (least, n) = (receive.least(), receive.n);
            let taken = if receive.looks() { 0 } else { n };
            self.begin(worker, Wait::Bytes(id, least.max(1), taken));
            self.model.end_mut(id).is_receiving = true;
        } else if self.random.percent(5) {
            self.receive_line(worker, slot, &receive, "");
            self.forget_received(id, &receive);
        }
    }

    /// Not beside a thread that waits for events: who of both sees a message first is anybody's guess.
    fn may_begin(&self, worker: Worker) -> bool {
        let waits = |begun: &Begun| matches!(begun.what, Wait::Events);
        !self.model.begun.iter().any(waits) && self.model.free_thread(worker).is_some()
    }

    /// A receive that is interrupted has taken what was there.
    fn forget_received(&mut self, id: EndId, receive: &Receive) {
        if !receive.looks() {
            self.model.received(id, receive.n);
        }
    }
}
