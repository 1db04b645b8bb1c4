//! The lock of a socket: it guards attaching, and the registrations in epoll sets. What only its holder may do takes a
//! [`Locked`], which nobody else has.

use std::marker::PhantomData;
use std::ops::Deref;

use super::Socket;
use super::items::Places;

/// Proof that this thread has the socket's lock, until it is dropped.
pub(crate) struct Locked {
    pub(crate) socket: &'static Socket,
    /// The thread that took the lock must give it back.
    of_this_thread: PhantomData<*const ()>,
}

impl Socket {
    /// Takes the lock, waiting for another thread. `None`: this thread has it, and is in a signal handler.
    #[inline]
    pub(crate) fn lock(&'static self) -> Option<Locked> {
        self.lock.take().then(|| Locked::of(self))
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub(crate) fn try_lock(&'static self) -> Option<Locked> {
        self.lock.try_take().then(|| Locked::of(self))
    }

    /// Frees the lock in a forked child, whose other threads do not exist.
    pub(crate) fn reset_lock(&self) {
        self.lock.reset();
    }
}

impl Locked {
    /// The lock has just been taken.
    fn of(socket: &'static Socket) -> Self {
        Self {
            socket,
            of_this_thread: PhantomData,
        }
    }

    /// The registrations: set and item of each.
    pub(crate) fn places(&self) -> &Places {
        // SAFETY: nobody else has the lock, and a change borrows this.
        unsafe { self.socket.items.list() }
    }

    /// Changes the registrations.
    pub(crate) fn change_places<R>(&mut self, change: impl FnOnce(&mut Places) -> R) -> R {
        // SAFETY: as in `places`.
        unsafe { self.socket.items.change(change) }
    }
}

impl Deref for Locked {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        self.socket
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.socket.lock.give();
    }
}

#[cfg(test)]
mod tests {
    use crate::both_ends::BothEnds;

    #[test]
    fn a_lock_is_held_until_its_end() {
        let ends = BothEnds::attached();
        let socket = ends.sockets[0];
        let held = socket.lock().unwrap();
        assert!(socket.lock().is_none() && socket.try_lock().is_none());
        drop(held);
        assert!(socket.try_lock().is_some());
    }

    #[test]
    fn who_has_no_lock_sees_whether_there_are_registrations() {
        let ends = BothEnds::attached();
        let socket = ends.sockets[0];
        let mut held = socket.lock().unwrap();
        held.change_places(|places| places.push((7, 3)));
        assert!(!socket.items.is_empty());
        assert_eq!(held.places(), &[(7, 3)]);
        held.change_places(|places| places.clear());
        assert!(socket.items.is_empty());
    }
}
