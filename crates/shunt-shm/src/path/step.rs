//! The places between two steps of a change of path, at which another thread or process may act.

#[cfg(not(model))]
mod paused {
    use std::sync::OnceLock;

    static PAUSE: OnceLock<fn()> = OnceLock::new();

    /// Makes every such place call `pause` from now on, which may wait there: a switch for tests.
    /// Only the first call counts.
    pub fn pause_with(pause: fn()) {
        let _ = PAUSE.set(pause);
    }

    /// One of these places.
    #[inline]
    pub fn step() {
        if let Some(pause) = PAUSE.get() {
            pause();
        }
    }
}

#[cfg(model)]
mod paused {
    /// Models try every order of steps, or random ones, by themselves.
    pub fn pause_with(_: fn()) {}

    /// One of these places: there the model may have a process die.
    pub fn step() {
        #[cfg(all(test, shuttle))]
        crate::path::model::may_die();
    }
}

pub use paused::{pause_with, step};
