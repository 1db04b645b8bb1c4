//! Answers socket calls from shared memory.
//!
//! The exported libc symbols (crate `shunt-preload`) convert their arguments,
//! call a function of [`io`], [`life`] or [`ready`], and act on its
//! [`Outcome`]. Nothing here exports a symbol, so all of it can be tested
//! inside one process.
//!
//! * [`table`], [`pool`], [`entry`], [`socket`], [`link`]: descriptors, connections, shared memory.
//! * [`control`], [`upgrade`], [`tcp`]: from a kernel connection to a shunted one.
//! * [`stream`]: the bytes of an attached connection.
//! * [`epoll`], [`ready`]: readiness.
//! * [`wake`]: how who sleeps is called.
//! * [`signal`], [`stats`], [`region`], [`thread`], [`config`]: the process around it.

#[cfg(test)]
mod both_ends;
mod config;
mod control;
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
pub mod ready;
pub mod real;
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
pub use thread::{is_alone, not_alone};
