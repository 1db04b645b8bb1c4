//! What the daemon has sent: taken out and handled.

use super::state::{LOCK, SOCKET, WISHES, has_reader, intact};
use super::to_daemon::drop_connection;
use super::{answer, board, due, wire};
use crate::link::Link;
use crate::{sys, thread, wake};
use shunt_abi::Reason;
use std::sync::atomic::Ordering;

/// Whether some connection should go back to TCP and no thread has taken that on. Also handles what the daemon has
/// sent. Takes two loads if there is nothing. (A `vfork` child leaves both to its parent.)
#[inline]
pub(crate) fn take_wishes() -> bool {
    check_mail();
    WISHES.load(Ordering::Relaxed) && thread::owns_memory() && WISHES.swap(false, Ordering::Acquire)
}

/// Handles what the daemon has sent since the last look: one load if nothing.
#[inline]
pub(crate) fn check_mail() {
    if board::has_mail() {
        drain(read_counted);
    }
}

/// Whether the sockets at which peers in other network namespaces can call this process are still on their way. A thread
/// that began to sleep on such a connection now could not be called, and the connection would go back to TCP. Asks for
/// the sockets, and handles what has come.
pub(crate) fn lacks_sockets() -> bool {
    if SOCKET.number() < 0 || !wake::lacks_sockets() {
        return false;
    }
    check_mail();
    if wake::wants_sockets() {
        drain(read_all);
    }
    wake::lacks_sockets()
}

/// Reads and handles messages, unless another thread is about to.
#[cold]
pub(super) fn drain(read: fn()) {
    // What comes with a message would be a descriptor of the `vfork` child's, known in memory as the parent's.
    // The thread that has the lock may do something else: then the mail stays unread, and the next look finds it.
    if !thread::owns_memory() || !LOCK.try_take() {
        return;
    }
    if !has_reader() {
        read();
    }
    LOCK.give();
}

/// Reads and handles every waiting message, and says what is due. With the lock.
pub(super) fn read_all() {
    // A message is sent before it is counted.
    let mail = board::mail();
    while SOCKET.number() >= 0 && receive() {}
    if let Some(mail) = mail {
        board::set_seen(mail);
    }
    catch_up();
}

/// Reads and handles the messages that the daemon has counted, which spares the last `recvmsg` that finds none. With the
/// lock.
pub(super) fn read_counted() {
    let Some(mail) = board::mail() else {
        return read_all();
    };
    for _ in 0..board::unseen(mail) {
        // Another thread may have read some before they were counted.
        if SOCKET.number() < 0 || !receive() {
            break;
        }
    }
    board::set_seen(mail);
    catch_up();
}

pub(super) fn catch_up() {
    due::catch_up();
    Link::sweep();
}

/// Receives and handles one message, with the lock held.
fn receive() -> bool {
    let Some(fd) = intact() else { return false };
    match wire::receive(fd) {
        Ok(Some((m, passed))) => {
            answer::handle(&m, passed);
            if let Some(passed) = passed {
                sys::close(passed);
            }
            true
        }
        Ok(None) => false,
        Err(()) => {
            drop_connection(Reason::NoDaemon);
            false
        }
    }
}
