//! A real NIC, by libibverbs, which is loaded at run time: a process without an RDMA device and a peer never maps it.
//!
//! * [`abi`](self): the structures and functions of libibverbs that are used, as its headers have them.
//! * [`Device`]: which devices there are, and whether they will do. [`Verbs`]: one of them, opened.

mod abi;
mod device;
mod library;
mod nic;
mod queue;
mod region;

pub use device::{Device, Obstacle, devices};
pub use nic::Verbs;
pub use queue::Queue;
pub use region::Pinned;

#[cfg(test)]
mod tests;
