//! Memory that two processes share, and every lock-free protocol over it.
//!
//! * [`arena`]: one side's memory of a link: made, sealed, mapped.
//! * [`slot`]: the control lines of one connection, and who may write them.
//! * [`path`]: how a direction moves between TCP and the ring, and back.
//! * [`recycle`]: how the next connection uses a slot and its base socket again.
//! * [`ring`]: the framed single-producer, single-consumer byte ring.
//! * [`token`]: who may send, who may receive.
//! * [`wake`]: sleeping without losing a wake-up: wait words, doors, logs.
//! * [`copy`]: copying to and from memory that may not be there.
//! * [`publish`]: in which order words are written that a peer reads.
//!
//! Neighbours: below it only `shunt-abi`; above it `shunt-engine`. It makes no
//! policy, knows no descriptors (but the arena's own) and never blocks.
//! Under `--cfg model --cfg loom` (or `shuttle`) the same protocols run on the atomics of a model checker.

#[cfg(not(model))]
pub mod arena;
pub mod atomic;
#[cfg(not(model))]
pub mod copy;
pub mod path;
pub mod publish;
pub mod recycle;
pub mod ring;
pub mod slot;
pub mod token;
pub mod wake;

#[cfg(all(test, loom))]
mod loom_tests;
