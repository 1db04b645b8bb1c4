//! Notices connections that stand still, from a thread of its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// Seconds without a byte in either direction that count as a hang.
const LIMIT: u32 = 40;

/// What the watchdog knows of one connection.
pub(crate) struct Watch {
    name: String,
    peer: AtomicU32,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    seen: AtomicU64,
    idle: AtomicU32,
}

static ALL: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

impl Watch {
    /// Watches a connection until the value is dropped.
    pub(crate) fn new(name: String, peer: u32) -> Arc<Self> {
        let watch = Arc::new(Self {
            name,
            peer: AtomicU32::new(peer),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            idle: AtomicU32::new(0),
        });
        let mut all = ALL
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&watch));
        watch
    }

    pub(crate) fn set_peer(&self, pid: u32) {
        self.peer.store(pid, Ordering::Relaxed);
    }

    fn tick(&self) {
        let sum = self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed);
        if self.seen.swap(sum, Ordering::Relaxed) != sum {
            self.idle.store(0, Ordering::Relaxed);
        } else if self.idle.fetch_add(1, Ordering::Relaxed) + 1 == LIMIT {
            println!(
                "HANG {} {}: sent {}, received {}",
                self.peer.load(Ordering::Relaxed),
                self.name,
                self.sent.load(Ordering::Relaxed),
                self.received.load(Ordering::Relaxed)
            );
        }
    }
}

/// Starts the watching thread.
pub(crate) fn start() {
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_secs(1));
            let all: Vec<_> = ALL
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .iter()
                .filter_map(Weak::upgrade)
                .collect();
            all.iter().for_each(|watch| watch.tick());
        }
    });
}
