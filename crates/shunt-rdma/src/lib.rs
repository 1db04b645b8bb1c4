//! Rings between two hosts: a NIC copies what one side publishes into the other side's *view* of it.
//!
//! ```text
//! meeting   two processes get a queue pair to each other, and the next one
//! port      one process on one device: its completions, and its links
//! link      one queue pair to one process on another host; its bonds
//! bond      one connection: its rings, credits, notes
//! lane      a queue pair with the peer's receives counted
//! transport what a NIC does; verbs (libibverbs), or fabric or wire (emulated, for tests)
//! ```
//!
//! * [`transport`]: the narrow trait. [`verbs`]: a real NIC's. [`fabric`]: a NIC that tests make misbehave. [`wire`]: one
//!   whose peers are in other processes. [`nic`]: whichever of [`verbs`] and [`wire`] a process has.
//! * [`immediate`], [`note`]: what goes over the wire. [`word`], [`endpoint`]: what goes by way of the shuntds.
//! * [`meeting`]: from words to a queue pair that both sides have.
//! * [`grants`]: how many receives the peer has left for us.
//! * [`port`], [`link`], [`bond`]: the protocol.
//! * [`resume`]: how a direction leaves its ring for TCP, at an exact byte.
//!
//! Neighbours: below it `shunt-shm`, whose rings these are. It makes no policy, waits for nothing and knows no sockets.
//! `docs/decisions/0018-between-hosts.md` says why it is so, and what uses it: the engine (`reach.rs`).

pub mod bond;
pub mod endpoint;
pub mod fabric;
pub mod grants;
pub mod immediate;
mod lane;
pub mod link;
pub mod meeting;
pub mod nic;
pub mod note;
pub mod port;
pub mod resume;
pub mod transport;
pub mod verbs;
pub mod wire;
pub mod word;

#[cfg(test)]
mod tests;
