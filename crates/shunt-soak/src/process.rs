//! What a worker process tells the director, one line each on standard output.
//!
//! | line | meaning |
//! |---|---|
//! | `HELLO pid port…` | ready; servers name their ports in the order of [`crate::event::Mechanism::ALL`] |
//! | `BROKEN pid text` | a connection with that process broke off |
//! | `BAD pid text` | a connection with that process did what no connection may do |
//! | `HANG pid text` | a connection with that process stands still |
//! | `TICK connections bytes` | done so far |

use crate::connection::{Connection, Failure};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Says one line at once. When the director is gone, so are we.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Counts and reports the end of a connection.
pub(crate) fn ended(connection: &Connection, result: &Result<(), Failure>, mechanism: &str) {
    CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(connection.bytes(), Ordering::Relaxed);
    match result {
        Ok(()) => {}
        Err(Failure::Broken(_)) if connection.may_lose_peer() => {}
        Err(Failure::Broken(text)) => {
            say(&format!("BROKEN {} {mechanism}: {text}", connection.peer()))
        }
        Err(Failure::Wrong(text)) => say(&format!("BAD {} {mechanism}: {text}", connection.peer())),
    }
}

/// Reports progress now.
pub(crate) fn tick() {
    say(&format!(
        "TICK {} {}",
        CONNECTIONS.load(Ordering::Relaxed),
        BYTES.load(Ordering::Relaxed)
    ));
}

/// Reports progress each second from a thread of its own.
pub(crate) fn tick_in_background() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            tick();
        }
    });
}
