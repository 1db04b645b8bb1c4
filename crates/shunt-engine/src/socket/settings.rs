//! What the program has set on a socket (`setsockopt`), as far as rings must know it. Written by whichever thread
//! calls `setsockopt`, and relaxed: a thread that sleeps or sends beside that call may see either, as in the kernel.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};

/// In [`Settings::timeouts`]: the kernel has said that there is no `SO_RCVTIMEO`.
pub(crate) const NO_RCVTIMEO: u8 = 1;
/// In [`Settings::timeouts`]: the kernel has said that there is no `SO_SNDTIMEO`.
pub(crate) const NO_SNDTIMEO: u8 = 2;
/// In [`Settings::timeouts`]: the program has set one since the kernel was asked, or does so just now.
pub(crate) const SETS_TIMEOUTS: u8 = 4;

/// See the module. Zero: nothing is set.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// `SO_SNDBUF` as the program set it, or 0.
    pub(crate) sndbuf: AtomicU32,
    /// `SO_RCVTIMEO` is negative: a receive that would wait ends at once (`sock_set_timeout`
    /// in the kernel, whose `getsockopt` does not tell that from no timeout).
    pub(crate) impatient_receiver: AtomicBool,
    /// `SO_SNDTIMEO` is negative, likewise.
    pub(crate) impatient_sender: AtomicBool,
    /// What is known of its timeouts: [`NO_RCVTIMEO`] and its like. Also written by a call that has asked the kernel.
    pub(crate) timeouts: AtomicU8,
    /// `TCP_INQ`: `recvmsg` tells how much is left.
    pub(crate) tells_left: AtomicBool,
    /// `SO_TIMESTAMP` or its like, by which `recvmsg` tells when the bytes came; 0: none is set.
    pub(crate) tells_time: AtomicI32,
}

impl Settings {
    /// For the next socket.
    pub(super) fn clear(&self) {
        let o = Ordering::Relaxed;
        self.sndbuf.store(0, o);
        self.impatient_receiver.store(false, o);
        self.impatient_sender.store(false, o);
        self.timeouts.store(0, o);
        self.tells_left.store(false, o);
        self.tells_time.store(0, o);
    }

    /// What an accepted socket has from its listener, beside what the kernel tells.
    pub(crate) fn inherit(&self, listener: &Self) {
        let o = Ordering::Relaxed;
        let copy = |to: &AtomicBool, from: &AtomicBool| to.store(from.load(o), o);
        copy(&self.impatient_receiver, &listener.impatient_receiver);
        copy(&self.impatient_sender, &listener.impatient_sender);
        self.tells_time.store(listener.tells_time.load(o), o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_socket_has_its_listeners_patience() {
        let [listener, accepted] = [(); 2].map(|()| Settings::default());
        listener.impatient_receiver.store(true, Ordering::Relaxed);
        listener.tells_time.store(29, Ordering::Relaxed);
        listener.sndbuf.store(9000, Ordering::Relaxed);
        accepted.inherit(&listener);
        assert!(accepted.impatient_receiver.load(Ordering::Relaxed));
        assert!(!accepted.impatient_sender.load(Ordering::Relaxed));
        assert_eq!(accepted.tells_time.load(Ordering::Relaxed), 29);
        // The kernel tells of that one.
        assert_eq!(accepted.sndbuf.load(Ordering::Relaxed), 0);
    }
}
