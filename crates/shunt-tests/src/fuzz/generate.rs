//! Draws a script from a seed.
//!
//! ```text
//! seed ─ Mixture (which kinds) ─ connections ─ operations, each by the Model's leave ─ ends of threads
//! ```

mod bytes;
mod change;
mod watch;

use super::feature::{Feature, Mixture};
use super::model::{End, EndId, Model, Slot, THREADS, Thing, WORKERS, Wait, Worker};
use super::random::Random;
use std::fmt::Write as _;

/// The lines of a script.
pub(crate) type Lines = Vec<String>;

/// Most of a stream that lies unread, so that a send that nobody waits for never sleeps.
const MOST_UNREAD: usize = 40_000;
const MOST_CONNECTIONS: usize = 4;

/// Adds a line, or some, or none.
type Operation = fn(&mut Author);

/// A script in the making.
struct Author {
    random: Random,
    mixture: Mixture,
    model: Model,
    lines: Lines,
}

/// The script of a seed. It begins with a comment that says what it is made of.
pub(crate) fn script(seed: u64, without: &[Feature]) -> Lines {
    let mut random = Random::new(seed);
    let mixture = Mixture::draw(&mut random, without);
    let mut author = Author {
        lines: vec![format!("# seed {seed}: {mixture}")],
        random,
        mixture,
        model: Model::new(),
    };
    author.write();
    author.lines
}

/// A worker's letter.
fn letter(worker: Worker) -> char {
    if worker == 0 { 'A' } else { 'B' }
}

impl Author {
    fn write(&mut self) {
        for _ in 0..self.random.between(1, 3) {
            self.connect();
        }
        let length = self.random.between(15, 120);
        let mut draws = 0;
        while self.lines.len() < length && draws < 10 * length {
            self.step();
            self.join_some(70);
            draws += 1;
        }
        self.end_threads();
    }

    /// One operation, or none if what was drawn makes no sense now.
    fn step(&mut self) {
        use Feature::{Alone, Bulk, Close, Dup, Epoll, Exec, Fork, NonBlock, Pass, Shutdown};
        let always: &[(usize, Operation)] = &[
            (26, Self::send),
            (26, Self::recv),
            (9, Self::poll),
            (4, Self::query),
            (3, Self::pingpong),
            (2, Self::connect),
        ];
        let at_times: &[(usize, Feature, Operation)] = &[
            (16, Epoll, Self::epoll),
            (4, Shutdown, Self::shutdown),
            (4, Close, Self::close),
            (5, Dup, Self::dup),
            (3, NonBlock, Self::nonblock),
            (6, Feature::Option, Self::option),
            (2, Pass, Self::pass),
            (2, Fork, Self::fork),
            (2, Exec, Self::exec),
            (3, Bulk, Self::bulk),
            (1, Alone, Self::unconnected),
            (4, Feature::Thread, Self::signal),
        ];
        let mut all = always.to_vec();
        for &(weight, feature, operation) in at_times {
            if self.mixture.has(feature) {
                all.push((weight, operation));
            }
        }
        let mut at = self
            .random
            .below(all.iter().map(|(weight, _)| weight).sum());
        for (weight, operation) in all {
            if at < weight {
                return operation(self);
            }
            at -= weight;
        }
    }

    fn line(&mut self, text: String) {
        self.lines.push(text);
    }

    fn chance(&mut self, feature: Feature, percent: usize) -> bool {
        // Drawn in any case: a kind that is left out changes nothing else.
        self.random.percent(percent) && self.mixture.has(feature)
    }

    /// A slot that names an end.
    fn end(&mut self) -> Option<(Worker, Slot, EndId)> {
        let all = self.model.all(|thing| matches!(thing, Thing::End(_)));
        if all.is_empty() {
            return None;
        }
        let (worker, slot) = self.random.pick(&all);
        match self.model.thing(worker, slot) {
            Thing::End(id) => Some((worker, slot, id)),
            _ => None,
        }
    }

    /// In which process an operation is done.
    fn place(&mut self) -> &'static str {
        if self.chance(Feature::Fork, 8) {
            " in=child"
        } else if self.chance(Feature::Exec, 5) {
            " in=exec"
        } else if self.chance(Feature::Plain, 5) {
            " in=plain"
        } else if self.chance(Feature::Thread, 8) {
            " in=thread"
        } else {
            ""
        }
    }

    // ---- Connections -------------------------------------------------------

    fn connect(&mut self) {
        if self.model.open_connections() >= MOST_CONNECTIONS {
            return;
        }
        let from = self.random.below(WORKERS);
        let to = if self.chance(Feature::Alone, 15) {
            from
        } else {
            1 - from
        };
        let Some(slot) = self.model.free(from, None) else {
            return;
        };
        let other = if from == to { Some(slot) } else { None };
        let Some(to_slot) = self.model.free(to, other) else {
            return;
        };
        let connection = self.model.add_connection();
        let id = |side| Thing::End(EndId { connection, side });
        self.model.put(from, slot, id(0));
        self.model.put(to, to_slot, id(1));
        let later = if self.random.percent(25) {
            " value=1"
        } else {
            ""
        };
        let by = self.random.pick(&["accept", "accept4"]);
        self.line(format!(
            "connect {}.{slot} to={}.{to_slot} by={by}{later}",
            letter(from),
            letter(to)
        ));
        if self.random.percent(60) {
            let rounds = self.random.between(1, 8);
            self.rounds((from, slot), (to, to_slot), rounds);
        }
    }

    /// A program's usual beginning: each end sends and receives in turn.
    fn rounds(&mut self, a: (Worker, Slot), b: (Worker, Slot), rounds: usize) {
        let n = self.random.between(1, 64);
        for _ in 0..rounds {
            for ((sender, from), (receiver, to)) in [(a, b), (b, a)] {
                self.line(format!("send {}.{from} n={n}", letter(sender)));
                self.line(format!("recv {}.{to} n={n}", letter(receiver)));
            }
        }
    }

    fn pingpong(&mut self) {
        let Some((worker, slot, id)) = self.end() else {
            return;
        };
        let is_idle = |end: &End| {
            end.unread == 0
                && end.low_at <= 1
                && !(end.is_receiving || end.is_sending || end.is_closed || end.is_reset)
                && end.has_shut == [false; 2]
        };
        if !is_idle(self.model.end(id)) || !is_idle(self.model.end(id.peer())) {
            return;
        }
        let Some(&peer) = self.model.names(id.peer()).first() else {
            return;
        };
        let rounds = self.random.between(1, 4);
        self.rounds((worker, slot), peer, rounds);
    }

    // ---- Threads -----------------------------------------------------------

    /// Joins what is done, in `percent` of a hundred cases.
    fn join_some(&mut self, percent: usize) {
        for index in (0..self.model.begun.len()).rev() {
            if self.model.begun[index].is_woken && self.random.percent(percent) {
                self.join(index);
            }
        }
    }

    fn join(&mut self, index: usize) {
        let begun = self.model.joined(index);
        self.line(format!(
            "join {} thread={}",
            letter(begun.worker),
            begun.thread
        ));
    }

    fn signal(&mut self) {
        if self.model.begun.is_empty() || !self.mixture.has(Feature::Signal) {
            return;
        }
        let index = self.random.below(self.model.begun.len());
        let restart = usize::from(self.random.percent(50));
        self.interrupt(index, restart);
    }

    fn interrupt(&mut self, index: usize, restart: usize) {
        let begun = self.model.begun[index];
        self.line(format!(
            "signal {} thread={} restart={restart}",
            letter(begun.worker),
            begun.thread
        ));
        if restart == 0 || matches!(begun.what, Wait::Events) {
            self.model.begun[index].is_woken = true;
        }
    }

    fn end_threads(&mut self) {
        while let Some(begun) = self.model.begun.first() {
            if !begun.is_woken {
                self.interrupt(0, 0);
            }
            self.join(0);
        }
    }

    /// Begins the operation of the last line in a thread.
    fn begin(&mut self, worker: Worker, what: Wait) -> bool {
        let Some(thread) = self.model.free_thread(worker) else {
            return false;
        };
        debug_assert!(thread < THREADS);
        if let Some(line) = self.lines.last_mut() {
            let _ = write!(line, " thread={thread}");
        }
        self.model.begun.push(super::model::Begun {
            worker,
            thread,
            what,
            is_woken: false,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::script;

    #[test]
    fn a_seed_always_gives_the_same_script() {
        assert_eq!(script(7, &[]), script(7, &[]));
        assert_ne!(script(7, &[]), script(8, &[]));
    }

    #[test]
    fn every_thread_that_is_begun_is_joined() {
        for seed in 0..300 {
            let lines = script(seed, &[]);
            let begun = lines
                .iter()
                .filter(|line| line.contains(" thread=") && !line.starts_with("signal"))
                .count();
            let joins = lines.iter().filter(|line| line.starts_with("join")).count();
            assert_eq!(begun, 2 * joins, "seed {seed}");
        }
    }
}
