//! What changes connections and descriptors without moving bytes.

use super::super::feature::Feature;
use super::super::model::{EndId, Thing, WORKERS, Worker};
use super::{Author, letter};

/// Options whose value is the same in every native run.
const READABLE: &[&str] = &[
    "SO_ERROR",
    "SO_ERROR",
    "SO_TYPE",
    "SO_DOMAIN",
    "SO_PROTOCOL",
    "SO_ACCEPTCONN",
    "SO_KEEPALIVE",
    "SO_REUSEADDR",
    "SO_OOBINLINE",
    "SO_RCVLOWAT",
    "SO_SNDLOWAT",
    "SO_PRIORITY",
    "TCP_NODELAY",
    "TCP_KEEPIDLE",
    "TCP_KEEPCNT",
    "TCP_USER_TIMEOUT",
    "TCP_SYNCNT",
    "TCP_LINGER2",
    "IP_TOS",
    "IP_TTL",
    "SO_RCVTIMEO",
    "SO_SNDTIMEO",
    "SO_LINGER",
];

/// Options that change nothing of what a connection does, or only how its end looks, and values.
const WRITABLE: &[(&str, &[usize])] = &[
    ("SO_KEEPALIVE", &[0, 1]),
    ("SO_REUSEADDR", &[0, 1]),
    ("SO_PRIORITY", &[0, 4]),
    ("TCP_NODELAY", &[0, 1]),
    ("TCP_KEEPIDLE", &[0, 100]),
    ("TCP_KEEPCNT", &[5, 1000]),
    ("TCP_USER_TIMEOUT", &[0, 5000]),
    ("TCP_LINGER2", &[1, 30]),
    ("IP_TOS", &[0, 16]),
    ("SO_SNDTIMEO", &[0, 50]),
    ("SO_ERROR", &[1]),
    ("SO_TYPE", &[1]),
];

impl Author {
    pub(super) fn shutdown(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let how = self.random.pick(&["wr", "wr", "wr", "rd", "rdwr"]);
        let end = self.model.end(id);
        let both = (end.has_shut[0] || how != "rd") && (end.has_shut[1] || how != "wr");
        if both && end.unread > 0 && self.mixture.hands_on() {
            // docs/known-defects.md: "handed on after both its directions were shut down".
            return;
        }
        let place = self.place();
        self.line(format!(
            "shutdown {}.{slot} do={how}{place}",
            letter(worker)
        ));
        let end = self.model.end_mut(id);
        end.has_shut[0] |= how != "rd";
        end.has_shut[1] |= how != "wr";
        self.model.wake(id);
        self.model.wake(id.peer());
    }

    pub(super) fn close(&mut self) {
        let all = self.model.all(|thing| thing != Thing::Nothing);
        if all.is_empty() {
            return;
        }
        let (worker, slot) = self.random.pick(&all);
        let resets = self.chance(Feature::Reset, 30);
        if let Thing::End(id) = self.model.thing(worker, slot) {
            let is_last = self.model.names(id).len() == 1;
            if is_last && self.model.end(id).unread > 0 && !self.mixture.has(Feature::Reset) {
                return;
            }
        }
        let value = if resets && matches!(self.model.thing(worker, slot), Thing::End(_)) {
            " value=1"
        } else {
            ""
        };
        self.line(format!("close {}.{slot}{value}", letter(worker)));
        self.model.closed(worker, slot, resets);
    }

    pub(super) fn dup(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        if self.random.percent(25) {
            return self.replace(worker, slot, id);
        }
        let Some(to) = self.model.free(worker, None) else {
            return;
        };
        let by = self.random.pick(&["dup", "fcntl"]);
        let name = letter(worker);
        self.line(format!("dup {name}.{slot} to={name}.{to} by={by}"));
        self.model.put(worker, to, Thing::End(id));
    }

    /// Over a descriptor that is open, which that closes.
    fn replace(&mut self, worker: Worker, slot: usize, id: EndId) {
        let others: Vec<_> = self
            .model
            .all(|thing| matches!(thing, Thing::End(_)))
            .into_iter()
            .filter(|&(w, s)| w == worker && s != slot)
            .collect();
        if others.is_empty() {
            return;
        }
        let (_, to) = self.random.pick(&others);
        if let Thing::End(old) = self.model.thing(worker, to) {
            let old = self.model.end(old);
            // A call that the kernel restarts goes on with whatever its number names by then.
            let restarts = old.is_receiving && self.mixture.has(Feature::Signal);
            if restarts || old.unread > 0 && !self.mixture.has(Feature::Reset) {
                return;
            }
        }
        let by = self.random.pick(&["dup2", "dup3"]);
        let name = letter(worker);
        self.line(format!("dup {name}.{slot} to={name}.{to} by={by}"));
        self.model.closed(worker, to, false);
        self.model.put(worker, to, Thing::End(id));
    }

    pub(super) fn nonblock(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let on = self.random.below(2);
        let by = self.random.pick(&["fcntl", "ioctl"]);
        self.line(format!(
            "nonblock {}.{slot} value={on} by={by}",
            letter(worker)
        ));
        self.model.end_mut(id).is_nonblocking = on == 1;
    }

    pub(super) fn query(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let name = letter(worker);
        let place = self.place();
        if self.random.percent(15) {
            return self.line(format!("names {name}.{slot}{place}"));
        }
        let what = self.random.pick(&[
            "FIONREAD",
            "FIONREAD",
            "FIONREAD",
            "SIOCOUTQ",
            "F_GETFL",
            "F_GETFD",
            "sockatmark",
        ]);
        // What was under way when the connection was reset, and the mark of one that was upgraded
        // moments ago: docs/limits.md.
        let may_be_reset = self.model.end(id).is_reset || self.model.end(id.peer()).is_closed;
        let is_unsure = what == "sockatmark" && self.mixture.has(Feature::Urgent);
        if what == "SIOCOUTQ" && may_be_reset || is_unsure {
            return;
        }
        let bad = if what == "FIONREAD" && self.chance(Feature::Bad, 10) {
            " bad=1"
        } else {
            ""
        };
        self.line(format!("query {name}.{slot} name={what}{place}{bad}"));
    }

    pub(super) fn option(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let name = letter(worker);
        if self.random.percent(40) {
            let option = self.random.pick(READABLE);
            let bad = if self.chance(Feature::Bad, 5) {
                " bad=1"
            } else {
                ""
            };
            return self.line(format!("getopt {name}.{slot} name={option}{bad}"));
        }
        if self.chance(Feature::Timeout, 30) {
            let value = self.random.pick(&[0, 15, 15]);
            self.model.end_mut(id).has_timeout = value > 0;
            return self.line(format!(
                "setopt {name}.{slot} name=SO_RCVTIMEO value={value}"
            ));
        }
        // A change while something lies unread is a known defect: docs/known-defects.md.
        if self.chance(Feature::LowAt, 20) && self.model.end(id).unread == 0 {
            let value = self.random.pick(&[1, 1, 100, 3000]);
            self.model.end_mut(id).low_at = value;
            return self.line(format!(
                "setopt {name}.{slot} name=SO_RCVLOWAT value={value}"
            ));
        }
        let (option, values) = self.random.pick(WRITABLE);
        let value = self.random.pick(values);
        let bad = if self.chance(Feature::Bad, 5) {
            " bad=1"
        } else {
            ""
        };
        self.line(format!(
            "setopt {name}.{slot} name={option} value={value}{bad}"
        ));
    }

    // ---- Processes ---------------------------------------------------------

    /// A thread or a registration goes on naming what a descriptor named.
    fn is_pinned(&self, worker: Worker, slot: usize) -> bool {
        let thing = self.model.thing(worker, slot);
        let is_watched = self
            .model
            .watched
            .iter()
            .any(|&(w, _, member)| w == worker && self.model.thing(w, member) == thing);
        is_watched || self.has_threads(worker)
    }

    fn has_threads(&self, worker: Worker) -> bool {
        self.model.begun.iter().any(|begun| begun.worker == worker)
    }

    pub(super) fn pass(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        if self.is_pinned(worker, slot) {
            return;
        }
        let name = letter(worker);
        if self.random.percent(60) {
            let place = self.random.pick(&["", " in=child"]);
            return self.line(format!("pass {name}.{slot} to={name}.{slot}{place}"));
        }
        let to = 1 - worker;
        let Some(to_slot) = self.model.free(to, None) else {
            return;
        };
        let moves = self.random.below(2);
        self.line(format!(
            "pass {name}.{slot} to={}.{to_slot} value={moves}",
            letter(to)
        ));
        self.model.put(to, to_slot, Thing::End(id));
        if moves == 1 {
            self.model.closed(worker, slot, false);
        }
    }

    /// A set that a fork shares is a known defect: docs/known-defects.md.
    fn has_sets(&self, worker: Worker) -> bool {
        let sets = self.model.all(|thing| matches!(thing, Thing::Set(_)));
        sets.iter().any(|&(w, _)| w == worker)
    }

    pub(super) fn fork(&mut self) {
        let worker = self.random.below(WORKERS);
        if self.has_threads(worker) || self.has_sets(worker) {
            return;
        }
        let stays = self.random.below(2);
        self.line(format!("fork {} value={stays}", letter(worker)));
        if stays == 1 {
            self.keep_all(worker);
        }
    }

    fn keep_all(&mut self, worker: Worker) {
        for (w, slot) in self.model.all(|thing| matches!(thing, Thing::End(_))) {
            if let (true, Thing::End(id)) = (w == worker, self.model.thing(w, slot)) {
                self.model.end_mut(id).is_kept = true;
            }
        }
    }

    pub(super) fn exec(&mut self) {
        let worker = self.random.below(WORKERS);
        if self.has_threads(worker) || self.has_sets(worker) {
            return;
        }
        let plain = if self.chance(Feature::Plain, 20) {
            " value=1"
        } else {
            ""
        };
        self.line(format!("exec {}{plain}", letter(worker)));
    }

    pub(super) fn unconnected(&mut self) {
        let worker = self.random.below(WORKERS);
        let Some(slot) = self.model.free(worker, None) else {
            return;
        };
        let name = letter(worker);
        self.line(format!("socket {name}.{slot}"));
        self.model.put(worker, slot, Thing::Bare);
        let call = match self.random.below(5) {
            0 => format!("refused {name}.{slot}"),
            1 => format!("send {name}.{slot} n=10 flags=NOSIGNAL"),
            2 => format!("recv {name}.{slot} n=10"),
            3 => format!("shutdown {name}.{slot} do=wr"),
            _ => format!("names {name}.{slot}"),
        };
        self.line(call);
    }
}
