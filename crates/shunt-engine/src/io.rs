//! Byte input and output. Every function answers [`Kernel`](crate::Outcome::Kernel) for a
//! descriptor that is not shunted, at the cost of one table look-up.
//!
//! # Safety
//! Here and in the modules below, pointers are the program's own, valid as the
//! man page of the call demands.
#![allow(clippy::missing_safety_doc)]

pub mod aio;
mod buffer;
mod many;
mod message;
mod recv;
mod send;
mod sendfile;
pub mod short;
mod target;
pub mod uring;

pub use many::{recvmmsg, sendmmsg};
pub use message::{recvmsg, sendmsg};
pub use recv::{preadv2, read, readv, recv, recvfrom};
pub use send::{pwritev2, send, sendto, write, writev};
pub use sendfile::{sendfile, splice};
