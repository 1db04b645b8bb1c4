//! `poll`, `select` and epoll sets.

use super::super::feature::Feature;
use super::super::model::{Slot, Thing, WORKERS, Wait, Worker};
use super::{Author, letter};

impl Author {
    /// 0 mostly, or soon, or never in a thread.
    fn finish_wait(&mut self, worker: Worker, text: String, has_sets: bool) {
        let sleeps = self.mixture.has(Feature::Thread)
            && self.model.free_thread(worker).is_some()
            // Who of both sees a message first is anybody's guess.
            && self.model.begun.is_empty()
            && self.random.percent(25);
        if sleeps {
            let timeout = self.random.pick(&["-1", "2000"]);
            self.line(format!("{text} timeout={timeout}"));
            self.begin(worker, Wait::Events);
            return;
        }
        let timeout = self.random.pick(&["0", "0", "0", "5"]);
        let place = if timeout == "0" { self.place() } else { "" };
        // A set that a fork shares is a known defect: docs/known-defects.md.
        let place = if has_sets { "" } else { place };
        self.line(format!("{text} timeout={timeout}{place}"));
    }

    pub(super) fn poll(&mut self) {
        let worker = self.random.below(WORKERS);
        let all: Vec<Slot> = self
            .model
            .all(|thing| thing != Thing::Nothing)
            .into_iter()
            .filter(|(w, _)| *w == worker)
            .map(|(_, slot)| slot)
            .collect();
        let slots: Vec<String> = all
            .iter()
            .filter(|_| self.random.percent(60))
            .map(ToString::to_string)
            .collect();
        if slots.is_empty() {
            return;
        }
        let (by, events) = if self.random.percent(30) {
            (
                self.random.pick(&["select", "pselect"]),
                self.random.pick(&["IN", "OUT", "IN|OUT", "IN|OUT|PRI"]),
            )
        } else {
            (
                self.random.pick(&["poll", "ppoll"]),
                self.random.pick(&[
                    "IN",
                    "IN",
                    "OUT",
                    "IN|OUT",
                    "IN|RDHUP",
                    "IN|PRI|OUT|RDHUP",
                    "RDNORM|WRNORM",
                    "0",
                ]),
            )
        };
        let text = format!(
            "poll {} slots={} events={events} by={by}",
            letter(worker),
            slots.join(",")
        );
        let is_set = |slot: &Slot| matches!(self.model.thing(worker, *slot), Thing::Set(_));
        let has_sets = all.iter().any(is_set);
        self.finish_wait(worker, text, has_sets);
    }

    // ---- epoll -------------------------------------------------------------

    pub(super) fn epoll(&mut self) {
        let sets = self.model.all(|thing| matches!(thing, Thing::Set(_)));
        if sets.is_empty() || sets.len() < 4 && self.random.percent(8) {
            let worker = self.random.below(WORKERS);
            if let Some(slot) = self.model.free(worker, None) {
                self.model.put(worker, slot, Thing::Set(0));
                self.line(format!("epoll {}.{slot}", letter(worker)));
                self.watch(worker, slot);
            }
            return;
        }
        let (worker, slot) = self.random.pick(&sets);
        if self.random.percent(40) {
            self.watch(worker, slot);
        } else {
            let by = self
                .random
                .pick(&["epoll_wait", "epoll_wait", "epoll_pwait", "epoll_pwait2"]);
            self.finish_wait(
                worker,
                format!("wait {}.{slot} by={by}", letter(worker)),
                true,
            );
        }
    }

    fn watch(&mut self, worker: Worker, set: Slot) {
        let nested = self.chance(Feature::Nested, 15);
        let may_be_member = |thing: Thing| match thing {
            Thing::End(_) => true,
            Thing::Set(depth) => nested && depth == 0,
            Thing::Bare | Thing::Nothing => false,
        };
        let members = self.model.all(may_be_member);
        let members: Vec<Slot> = members
            .into_iter()
            .filter(|&(w, slot)| w == worker && slot != set && self.may_be_in(worker, set, slot))
            .map(|(_, slot)| slot)
            .collect();
        if members.is_empty() {
            return;
        }
        let member = self.random.pick(&members);
        let entry = (worker, set, member);
        let is_in = self.model.watched.contains(&entry);
        let action = match (is_in, self.random.below(100)) {
            (_, 0..4) => self.random.pick(&["add", "mod", "del"]),
            (false, _) => "add",
            (true, 4..70) => "mod",
            _ => "del",
        };
        match (action, is_in) {
            ("add", false) => self.model.watched.push(entry),
            ("del", true) => self.model.watched.retain(|e| *e != entry),
            _ => {}
        }
        if let (Thing::Set(_), "add") = (self.model.thing(worker, member), action) {
            self.model.put(worker, set, Thing::Set(1));
        }
        let events = self.events(action);
        let value = self.random.below(5);
        self.line(format!(
            "watch {}.{set} to={}.{member} do={action} events={events} value={value}",
            letter(worker),
            letter(worker)
        ));
    }

    /// A connection in two sets goes to TCP, which tells edges again: docs/limits.md.
    fn may_be_in(&self, worker: Worker, set: Slot, member: Slot) -> bool {
        let thing = self.model.thing(worker, member);
        let counts_edges = self.mixture.has(Feature::Edge) || self.mixture.has(Feature::OneShot);
        !counts_edges
            || !self.model.watched.iter().any(|&(w, s, m)| {
                self.model.thing(w, m) == thing && (w, s, m) != (worker, set, member)
            })
    }

    fn events(&mut self, action: &str) -> String {
        let mut events = self
            .random
            .pick(&[
                "IN",
                "IN",
                "IN|OUT",
                "IN|RDHUP",
                "IN|OUT|RDHUP",
                "OUT",
                "RDHUP",
                "IN|PRI",
                "0",
            ])
            .to_owned();
        // For room alone it may be told of messages: docs/limits.md.
        if self.chance(Feature::Edge, 40) && events != "OUT" {
            events += "|ET";
        }
        if self.chance(Feature::OneShot, 20) {
            events += "|ONESHOT";
        } else if action == "add" && self.random.percent(3) {
            events += "|EXCLUSIVE";
        }
        events
    }
}
