//! Connections that both programs have closed in order, and that are used again: base socket, slot and rings.
//!
//! ```text
//!           connector's process                              acceptor's process
//!   close    keeps the base socket by a copy (Kept)           likewise
//!   accept                                                    waits at one of those that it keeps, and for the kernel
//!   connect  offers one at which somebody waits;
//!            puts it in the place of the program's socket ──> takes it: a copy of it is the accepted socket
//! ```
//!
//! To the programs and to the kernel each is a connection with a descriptor of its own. What the two sides say to each other
//! is [`shunt_shm::recycle`]'s; [decision 20](../../../docs/decisions/0020-recycled-connections.md) says why it is so, and what
//! is not there yet: it is a test's switch (`SHUNT_RECYCLE`).
//!
//! * [`store`]: what is kept, how long, and how it is given up; [`lock`]: by whose leave. [`pristine`]: the sockets whose places
//!   such connections take.
//! * [`keep`]: a connection is closed. [`offer`]: `connect`. [`accept`]: `accept`.
//! * [`await_offer`]: a thread waits for the next one, in `accept` or in a readiness call. [`open`]: the thread is busy, and no other
//!   can accept.

mod accept;
mod await_offer;
mod keep;
mod lock;
mod offer;
mod open;
mod pristine;
mod store;

pub(crate) use accept::accept;
pub(crate) use await_offer::{Waits, concerns, is_readable, take_for_others};
pub(crate) use keep::put_aside;
pub(crate) use lock::after_fork_parent;
pub(crate) use offer::connect;
pub(crate) use open::shut_shared;
pub(crate) use pristine::{Taken, set_apart, take as take_new};
pub(crate) use store::{
    after_fork_child, before_fork, forget_listener, give_up_all, is_any, is_any_taken,
    keep_no_more, last_taken, make_way,
};

#[cfg(all(test, not(miri)))]
mod tests;
