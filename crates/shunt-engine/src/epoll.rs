//! Epoll sets that hold shunted sockets.
//!
//! ```text
//!   program's set (kernel) ── pipe, listener, TCP sockets…     as registered
//!        ├── call (datagrams): a peer wakes a sleeper of this process
//!        └── inner set (kernel) ── base sockets of shunted     edge-triggered,
//!                 │                connections                 for FIN, RST, and TCP's bytes
//!                 └── kick (eventfd): wakes a sleeper of this process
//!   ready queue (here) ── items whose connection may have news
//! ```
//!
//! The kernel's idea of a shunted socket's readiness is wrong (always writable), so its registration lives here. A
//! sleeper sleeps in the real `epoll_wait` on the program's own set; news of shunted sockets stand in the logs of the
//! links, and a call wakes a sleeper to read these. As in the kernel (`fs/eventpoll.c`) an item enters the ready
//! queue when something happens to its socket; a wait takes items from the queue, asks each socket what is ready, and
//! puts level-triggered ones back.

mod base_events;
mod carry;
mod collect;
mod follow;
mod hearing;
mod inner;
mod limit;
mod listener;
mod membership;
mod nested;
mod outside;
mod polled;
mod register;
mod restore;
mod room;
mod room_asked;
mod set;
mod shared;
mod sleepers;
mod state;
mod teardown;
mod user;
mod watch;
mod within;

pub(crate) use carry::{
    AT_ONCE, Known, begun_again, carry, give_back, give_back_of, look_again, obstacle, waiting,
};
pub(crate) use collect::{
    Gathered, LOOK_OFTEN, collect, collect_all, collect_before_sleep, has_news, has_some, is_due,
    take_events,
};
pub(crate) use inner::{inner, take_foreign};
pub(crate) use limit::Limit;
pub(crate) use listener::tell_listeners;
pub(crate) use membership::{forget, has, unregister_before_close};
pub(crate) use nested::{expose, nest};
pub(crate) use register::{leave_sets, register, see_to_chores};
pub(crate) use restore::make_way;
pub(crate) use room::Room;
pub(crate) use room_asked::look_for_room;
pub(crate) use set::{SETS, Set};
pub(crate) use shared::before_fork;
pub(crate) use sleepers::{begin_sleep, end_sleep};
pub(crate) use teardown::{after_fork_child, close_all as close_channels, forget_links};
pub(crate) use user::User;

/// Bits of a registration that are not events.
const FLAGS: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

/// Events that each registration asks for, whether the program has named them or not, as in the
/// kernel. (One that is one-shot and used up asks for none.)
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The events that a registration asks for; none: it is one-shot, and used up.
#[inline]
fn wanted(events: u32) -> u32 {
    events & !FLAGS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_no_events() {
        let events = libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT;
        assert_eq!(wanted(events as u32), libc::EPOLLIN as u32);
        assert_eq!(wanted(FLAGS), 0);
    }
}
