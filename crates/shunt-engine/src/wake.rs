//! Wake channels: how who sleeps here is called by a peer, beside the stream.
//!
//! A channel is a datagram socket. Its address lies in the arena where the sleeper says
//! that it sleeps (a connection's wait word, an epoll set's door), with a word that each
//! call must say: the names of such sockets are no secret (`/proc/net/unix`), and the kernel
//! drops what does not say it. A full queue is a call that is pending. A connection that somebody
//! is about to wait for who cannot be called goes to TCP before, and is waited for there.
//!
//! * [`channel`]: the receiving end. An epoll set has one of its own.
//! * [`place`]: the channels of threads that sleep in other calls.
//! * [`caller`]: the sending end.
//! * [`abroad`]: channels that peers in other network namespaces can call.

mod abroad;
mod call;
mod caller;
mod channel;
mod datagram;
mod place;
mod sending;

pub(crate) use abroad::{
    asks_for_sockets, keep as keep_abroad, renew as renew_abroad, want_sockets, wants_sockets,
};
pub(crate) use call::{call, is_there};
pub(crate) use caller::is_able;
pub(crate) use channel::Channel;
pub(crate) use place::{Place, Places, do_without, enter, wake_all};

use crate::sys;

/// In a forked child: what other threads were about is done by nobody, and the channels are
/// its parent's.
pub(crate) fn after_fork_child() {
    caller::after_fork_child();
    abroad::after_fork_child();
    place::after_fork_child();
}

/// A copy of a descriptor where the process can have no more: in the place of one of ours that can be done
/// without. Who would need that goes to TCP.
#[cold]
pub(crate) fn copy_to_spare(fd: libc::c_int) -> Option<libc::c_int> {
    let spare = place::spare().or_else(caller::give_up)?;
    let copied = sys::dup3(fd, spare, libc::O_CLOEXEC).is_ok();
    if !copied {
        sys::close(spare);
    }
    copied.then_some(spare)
}

/// If `fd` is a number of ours that the program wants: moves elsewhere.
pub(crate) fn make_way(fd: libc::c_int) {
    caller::make_way(fd);
    abroad::make_way(fd);
    place::make_way(fd);
}
