//! Memory that two processes share, and every lock-free protocol over it.
//!
//! * [`arena`]: one side's memory of a link: made, sealed, mapped.
//! * [`slot`]: the control lines of one connection, and who may write them.
//! * [`recall`]: who sends again by TCP what a receiver has not read of a ring.
//! * [`ring`]: the framed single-producer, single-consumer byte ring.
//! * [`token`]: who may send, who may receive.
//! * [`wake`]: sleeping without losing a wake-up: wait words, doors, logs.
//! * [`copy`]: copying to and from memory that may not be there.
//! * [`publish`]: the one place through which a peer-visible word is written.
//!
//! Neighbours: below it only `shunt-abi`; above it `shunt-engine`. It makes no
//! policy, knows no descriptors (but the arena's own) and never blocks.
//! Under `--cfg loom` the same protocols run on loom's atomics.

#[cfg(not(loom))]
pub mod arena;
pub mod atomic;
#[cfg(not(loom))]
pub mod copy;
pub mod publish;
pub mod recall;
pub mod ring;
pub mod slot;
pub mod token;
pub mod wake;

#[cfg(all(test, loom))]
mod loom_tests;
