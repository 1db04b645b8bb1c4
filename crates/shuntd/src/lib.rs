//! shuntd, Shunt's control daemon: it learns which processes hold the two ends
//! of a local TCP connection and gives them a slot in memory that they share.
//!
//! Neighbours: it speaks [`shunt_abi::message`] with libshunt and `shunt` over
//! a `SOCK_SEQPACKET` socket and publishes [`shunt_abi::board`]. It
//! touches no payload but what a process hands it to be sent by the other end of its connection
//! ([`resend`]), never blocks on a client and believes nothing that it can
//! ask the kernel: who is connected (`SO_PEERCRED`), whether a claimant holds
//! the socket (`pidfd_getfd`), what the socket's ends are, whether a memfd is
//! sealed.
//!
//! ```text
//!  socket ──> wire ──> daemon::dispatch ──> daemon::pairing ──> wire ──> socket
//!                          │    inspect, diag │ (facts from the kernel)
//!                          ▼                  ▼
//!                    client, board       end (claims), link (slots)
//! ```
//!
//! What is said to daemons of other hosts, and by them, goes through a thread of [`shunt_hosts`]: [`hosts`] decides what,
//! `daemon::meeting` sees to it.

#![deny(unsafe_code)] // `sys` alone is exempt, with a reason for each block.

mod account;
mod between;
mod board;
mod client;
mod config;
mod container;
mod cores;
mod daemon;
mod devices;
mod diag;
mod end;
mod foreign;
mod given;
mod holders;
mod hosts;
mod inspect;
mod link;
mod log;
mod mirror;
mod namespaces;
mod notify;
mod policy;
mod priority;
mod process;
mod profile;
mod quota;
mod reached;
mod resend;
mod rights;
mod scan;
mod stretched;
mod survivors;
mod sys;
mod tuple;
mod wire;

pub use config::{Between, Config, Limits, Mistake, Source};
pub use daemon::{Daemon, Scope};
pub use given::Given;
pub use log::log_error;
pub use notify::notify_ready;
pub use policy::{Policy, Rule};
pub use priority::come_first;
pub use quota::Quota;
pub use rights::give_up;
pub use sys::{Signals, adopt_descriptor};
pub use wire::{listen, listen_at, listener_of};
