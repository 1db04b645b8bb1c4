//! Wake channels: how a peer calls a thread that sleeps here, beside the stream.
//!
//! A channel is a datagram socket. Its address lies in the arena where the sleeper says that it sleeps (a
//! connection's wait word, an epoll set's door), with a word that each call must say: the names of such sockets are
//! no secret (`/proc/net/unix`), and the kernel drops what does not say it. A full queue is a call that is pending.
//! Some threads cannot be called. Before such a thread waits for a connection, the connection goes to TCP, and the
//! thread waits for it there.
//!
//! * [`channel`]: the receiving end. An epoll set has one of its own.
//! * [`place`]: the channels of threads that sleep in other calls.
//! * [`caller`]: the sending end.
//! * [`abroad`]: channels that peers in other network namespaces can call.
//! * [`demand`]: how many of these are wanted.

mod abroad;
mod call;
mod caller;
mod channel;
mod datagram;
mod demand;
mod place;
mod sending;

pub(crate) use abroad::{keep as keep_abroad, renew as renew_abroad};
pub(crate) use call::{call, is_there};
pub(crate) use caller::is_able;
pub(crate) use channel::Channel;
pub(crate) use demand::{
    begin_question, expect_sleeper, lacks_sockets, note_answer, note_lost, put_off_question,
    wants_sockets,
};
pub(crate) use place::{Place, Places, do_without, enter, wake_all};

use crate::sys;

/// In a forked child: forgets the channels, which are the parent's, and what its other threads were in the middle
/// of.
pub(crate) fn after_fork_child() {
    caller::after_fork_child();
    abroad::after_fork_child();
    place::after_fork_child();
}

/// Copies a descriptor although the process can have no more: the copy takes the number of a channel in which no thread
/// sleeps, or else of the socket by which this process calls. The connections that would have needed it go to TCP.
#[cold]
pub(crate) fn copy_to_spare(fd: libc::c_int) -> Option<libc::c_int> {
    let spare = place::spare().or_else(caller::give_up)?;
    let copied = sys::dup3(fd, spare, libc::O_CLOEXEC).is_ok();
    if !copied {
        sys::close(spare);
    }
    copied.then_some(spare)
}

/// Moves a channel, or a socket to call by, to another number, if the program wants its number `fd`.
pub(crate) fn make_way(fd: libc::c_int) {
    caller::make_way(fd);
    abroad::make_way(fd);
    place::make_way(fd);
}
