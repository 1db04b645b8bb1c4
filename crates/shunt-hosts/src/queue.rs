//! The two queues between the daemon and the thread that talks to other hosts.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::{Event, Order};

/// When this many events wait, other hosts are not read until the daemon has taken them.
const MOST: usize = 4096;

/// What waits for either side. Orders are bounded by what the daemon's clients may claim.
#[derive(Debug)]
pub(crate) struct Queues {
    orders: Mutex<Vec<Order>>,
    events: Mutex<VecDeque<Event>>,
    /// Readable for the thread: there are orders, or room again.
    wake: OwnedFd,
    /// Readable for the daemon: there are events.
    bell: OwnedFd,
    stopped: AtomicBool,
}

impl Queues {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            orders: Mutex::default(),
            events: Mutex::default(),
            wake: bell()?,
            bell: bell()?,
            stopped: AtomicBool::new(false),
        })
    }

    pub(crate) fn order(&self, order: Order) {
        locked(&self.orders).push(order);
        ring(&self.wake);
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        ring(&self.wake);
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes the first `most` events, or all there are. The bell stays readable for the others.
    pub(crate) fn take_events(&self, most: usize) -> Vec<Event> {
        hush(&self.bell);
        let mut events = locked(&self.events);
        let before = events.len();
        let taken = events.drain(..most.min(before)).collect();
        let left = events.len();
        drop(events);
        if left > 0 {
            ring(&self.bell);
        }
        if before >= MOST && left < MOST {
            ring(&self.wake);
        }
        taken
    }

    /// For the thread: readable when there is something new.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// All orders; `None`: the thread is to end.
    pub(crate) fn take_orders(&self) -> Option<Vec<Order>> {
        hush(&self.wake);
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        Some(std::mem::take(&mut *locked(&self.orders)))
    }

    /// Whether the daemon takes more of what other hosts say.
    pub(crate) fn has_room(&self) -> bool {
        locked(&self.events).len() < MOST
    }

    pub(crate) fn tell(&self, event: Event) {
        locked(&self.events).push_back(event);
        ring(&self.bell);
    }
}

/// Nobody panics in between.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A counter that is full rings, too.
fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn hush(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8][..]);
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;
    use crate::Fault;

    fn rings(bell: BorrowedFd<'_>) -> bool {
        let mut bell = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        let now = Timespec::default();
        rustix::event::poll(&mut bell, Some(&now)).unwrap() != 0
    }

    #[test]
    fn events_are_taken_some_at_a_time_and_the_bell_rings_for_the_rest() {
        let queues = Queues::new().unwrap();
        let event = |last: usize| Event::TurnedAway {
            address: [10, 0, (last >> 8) as u8, last as u8].into(),
            fault: Fault::Busy,
        };
        (0..MOST + 1).for_each(|last| queues.tell(event(last)));
        assert!(!queues.has_room() && !rings(queues.wake()));
        assert_eq!(queues.take_events(1), [event(0)]);
        assert!(rings(queues.bell()) && !rings(queues.wake()));
        assert_eq!(queues.take_events(2), [event(1), event(2)]);
        assert!(queues.has_room() && rings(queues.bell()) && rings(queues.wake()));
        assert_eq!(queues.take_events(MOST).len(), MOST - 2);
        assert!(!rings(queues.bell()));
    }
}
