//! Answers socket calls from shared memory.
//!
//! The exported libc symbols (crate `shunt-preload`) convert their arguments,
//! call a function of [`io`], [`life`] or [`ready`], and act on its
//! [`Outcome`]. Nothing here exports a symbol, so all of it can be tested
//! inside one process.
//!
//! The modules are *rooms*: each knows those above it in this list only, and no files know one another in a circle
//! (`cargo xtask lint`).
//!
//! * [`real`], [`sys`], [`config`], [`iov`], [`thread`]: the kernel, the program, this thread and process.
//! * [`table`], [`pool`], [`kept`], [`hold`]: descriptors, and objects behind them, of any type.
//! * [`region`], [`share`], [`uring_map`], [`tcp`], [`wake`], [`reach`], [`link`]: what a socket has beside itself.
//! * [`socket`]: one connection or listener, and what is noted there.
//! * [`control`], [`stats`]: what is said to shuntd, and written at the end.
//! * [`stream`]: the bytes of an attached connection. [`signal`]: handlers that interrupt its calls.
//! * [`epoll`], [`entry`], [`upgrade`]: sets, and how a connection comes to its rings.
//! * [`recycle`]: connections that are put aside for the next ones.
//! * [`life`], [`ready`], [`io`]: the calls of the program.

#[cfg(test)]
mod both_ends;
mod config;
mod control;
mod cores;
mod entry;
mod epoll;
mod hold;
pub mod io;
mod iov;
mod kept;
pub mod life;
mod link;
mod outcome;
mod pool;
mod reach;
pub mod ready;
pub mod real;
mod recycle;
mod region;
mod share;
pub mod signal;
mod socket;
mod stats;
mod stream;
mod sys;
mod table;
mod tcp;
mod thread;
mod upgrade;
mod uring_map;
mod wake;

pub use outcome::Outcome;
pub use sys::is_readable;
pub use thread::{cancel, is_alone, not_alone};
