//! Looks through all processes take their time, so a thread makes them: one at a time,
//! for all that wait for it. It rests nine times as long as that kept a core busy.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// See the module.
const REST: u32 = 9;
/// At least this long it rests.
const BREAK: Duration = Duration::from_millis(1);

/// A look under way.
#[derive(Debug)]
struct UnderWay<W, F> {
    wanted: Vec<W>,
    /// What it finds, and how long it kept a core busy.
    found: Receiver<(F, Duration)>,
}

/// Those who wait for a look, and the one under way. `W`: what is wanted, `F`: what a
/// look finds; nothing, should it fail.
#[derive(Debug)]
pub(crate) struct Scan<W, F> {
    waiting: Vec<W>,
    under_way: Option<UnderWay<W, F>>,
    rests_until: Option<Instant>,
    /// An event descriptor, readable when a look is done.
    bell: Arc<OwnedFd>,
}

impl<W, F: Default + Send + 'static> Scan<W, F> {
    /// Nobody waits yet.
    pub(crate) fn new(bell: &Arc<OwnedFd>) -> Self {
        Self {
            waiting: Vec::new(),
            under_way: None,
            rests_until: None,
            bell: Arc::clone(bell),
        }
    }

    /// One more waits.
    pub(crate) fn add(&mut self, wanted: W) {
        self.waiting.push(wanted);
    }

    /// One more waits; if it is the first one, the look begins after `delay`.
    pub(crate) fn add_after(&mut self, delay: Duration, wanted: W) {
        if self.waiting.is_empty() {
            let then = Instant::now() + delay;
            self.rests_until = Some(self.rests_until.map_or(then, |until| until.max(then)));
        }
        self.add(wanted);
    }

    /// Those who wait for a look that has not begun.
    pub(crate) fn waiting(&mut self) -> impl Iterator<Item = &mut W> {
        self.waiting.iter_mut()
    }

    /// Takes out those who wait for a look and need none any more.
    pub(crate) fn take_done(&mut self, is_done: impl Fn(&W) -> bool) -> Vec<W> {
        let waiting = std::mem::take(&mut self.waiting);
        let (done, rest) = waiting.into_iter().partition(is_done);
        self.waiting = rest;
        done
    }

    /// How long until the next look; `None`: nobody waits for one, or one is under way.
    pub(crate) fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let until = self.rests_until.unwrap_or(now);
        let waits = !self.waiting.is_empty() && self.under_way.is_none();
        waits.then(|| until.saturating_duration_since(now))
    }

    /// Those who wait, if it is time for a look.
    pub(crate) fn take(&mut self) -> Vec<W> {
        if self.left() == Some(Duration::ZERO) {
            std::mem::take(&mut self.waiting)
        } else {
            Vec::new()
        }
    }

    /// Begins a look for these.
    ///
    /// # Errors
    /// There is no thread to be had: these, again.
    pub(crate) fn begin(
        &mut self,
        wanted: Vec<W>,
        look: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), Vec<W>> {
        let (done, found) = sync_channel(1);
        let bell = Arc::clone(&self.bell);
        let look = move || {
            let found = look();
            let busy = clock_gettime(ClockId::ThreadCPUTime);
            let _ = done.send((found, Duration::try_from(busy).unwrap_or_default()));
            let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
        };
        let thread = std::thread::Builder::new().name("shuntd-look".to_owned());
        if thread.spawn(look).is_err() {
            return Err(wanted);
        }
        self.under_way = Some(UnderWay { wanted, found });
        Ok(())
    }

    /// What a look has found, if one is done.
    pub(crate) fn finish(&mut self) -> Option<(Vec<W>, F)> {
        let UnderWay { wanted, found } = self.under_way.take()?;
        let (found, busy) = match found.try_recv() {
            Ok(done) => done,
            Err(TryRecvError::Empty) => {
                self.under_way = Some(UnderWay { wanted, found });
                return None;
            }
            Err(TryRecvError::Disconnected) => Default::default(),
        };
        self.rests_until = Some(Instant::now() + (busy * REST).max(BREAK));
        Some((wanted, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_may_wait_begins_later_and_whoever_comes_meanwhile_waits_no_longer() {
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut scan = Scan::<u32, ()>::new(&Arc::new(bell));
        let hour = Duration::from_secs(3600);
        assert_eq!(scan.left(), None);
        scan.add(1);
        scan.add_after(hour, 2);
        assert_eq!(scan.take(), [1, 2]);
        scan.add_after(hour, 3);
        let left = scan.left().unwrap();
        assert!(left > hour / 2 && scan.take().is_empty());
        scan.add_after(2 * hour, 4);
        assert!(scan.left().unwrap() <= left);
    }
}
