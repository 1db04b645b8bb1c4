//! What the program has set on a socket (`setsockopt`), as far as rings must know it. The thread that calls
//! `setsockopt` writes it with relaxed order: a thread that sleeps or sends at the same time may see the old value
//! or the new one, as in the kernel.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};

use libc::c_int;

use crate::sys;

/// Options that are on or off, and that a base socket which is used again can be told.
pub(crate) const RESTORED: [(c_int, c_int); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
];

/// `TCP_CORK` among them.
const CORK: u32 = 1 << 1;

/// The options that tell how `SO_KEEPALIVE` works. A base socket that is used again gets back the values that it had
/// before the program set them.
pub(crate) const KEEPALIVE: [c_int; 3] =
    [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];

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
    /// `SO_SNDTIMEO` is negative: a send that would wait ends at once.
    pub(crate) impatient_sender: AtomicBool,
    /// What is known of its timeouts: [`NO_RCVTIMEO`] and its like. Also written by a call that has asked the kernel.
    pub(crate) timeouts: AtomicU8,
    /// `TCP_INQ`: `recvmsg` tells how much is left.
    pub(crate) tells_left: AtomicBool,
    /// Which of the options are on that a connection put aside can be told anew ([`RESTORED`]), a bit each.
    pub(crate) on: AtomicU32,
    /// The kernel may have been told of `TCP_CORK`, and so it is at once whenever that changes ([`Settings::keeps_cork`]).
    tells_cork: AtomicBool,
    /// Of a connection, what it had of [`KEEPALIVE`] before the program set that; 0: it has not.
    pub(crate) keepalive: [AtomicI32; 3],
    /// Some other option has been set, so that nobody knows whether the socket is like a new one.
    pub(crate) is_odd: AtomicBool,
    /// `SO_TIMESTAMP` or its like, by which `recvmsg` tells when the bytes came; 0: none is set.
    pub(crate) tells_time: AtomicI32,
    /// An option is set that only the kernel can do, and that what a listener accepts has, too: a peek that begins where the last
    /// one has ended (`SO_PEEK_OFF`), a filter, times of packets.
    pub(crate) needs_kernel: AtomicBool,
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
        self.needs_kernel.store(false, o);
        self.on.store(0, o);
        self.tells_cork.store(false, o);
        self.keepalive.iter().for_each(|before| before.store(0, o));
        self.is_odd.store(false, o);
    }

    /// The program sets an option to this number; `None`: to something else.
    pub(crate) fn note(&self, level: c_int, name: c_int, number: Option<c_int>) {
        const NO_LINGER: (c_int, c_int, Option<c_int>) =
            (libc::SOL_SOCKET, libc::SO_LINGER, Some(0));
        if (level, name, number) == NO_LINGER {
            return;
        }
        let known = RESTORED.iter().position(|&known| known == (level, name));
        let (Some(known), Some(number)) = (known, number) else {
            self.is_odd.store(true, Ordering::Relaxed);
            return;
        };
        // Before the kernel is told: `tell_cork` looks at it behind its own word to the kernel.
        if number == 0 {
            self.on.fetch_and(!(1 << known), Ordering::SeqCst);
        } else {
            self.on.fetch_or(1 << known, Ordering::SeqCst);
        }
    }

    /// Whether `TCP_CORK` need not be told to the kernel on a connection that sends by its ring, which holds nothing back. (A server
    /// that corks sets and unsets it for each answer.)
    pub(crate) fn keeps_cork(&self) -> bool {
        !self.tells_cork.load(Ordering::Relaxed)
    }

    /// The kernel has it off, and is not told from now on.
    pub(crate) fn keep_cork(&self) {
        self.tells_cork.store(false, Ordering::SeqCst);
    }

    /// The kernel or another process is about to answer for the socket that `fd` names: from now on the kernel is told of `TCP_CORK`.
    pub(crate) fn tell_cork(&self, fd: c_int) {
        let is_kept = self.keeps_cork() && !self.tells_cork.swap(true, Ordering::SeqCst);
        let is_on = || self.on.load(Ordering::SeqCst) & CORK != 0;
        let tell = |on: c_int| {
            let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &on);
        };
        if is_kept && is_on() {
            tell(1);
            // Another thread may have told the kernel just before that it is off again.
            if !is_on() {
                tell(0);
            }
        }
    }

    /// Another connection gets the base socket, with these of [`RESTORED`]. Returns those of which the kernel has to be told.
    pub(crate) fn set_anew(&self, on: u32) -> u32 {
        let untold = if self.keeps_cork() { CORK } else { 0 };
        self.tells_cork.store(on & CORK != 0, Ordering::Relaxed);
        (self.on.swap(on, Ordering::Relaxed) & !untold) ^ on
    }

    /// What an accepted socket has from its listener, beside what the kernel tells; or one that is connected anew from before.
    pub(crate) fn inherit(&self, listener: &Self) {
        let o = Ordering::Relaxed;
        let copy = |to: &AtomicBool, from: &AtomicBool| to.store(from.load(o), o);
        copy(&self.impatient_receiver, &listener.impatient_receiver);
        copy(&self.impatient_sender, &listener.impatient_sender);
        copy(&self.needs_kernel, &listener.needs_kernel);
        copy(&self.tells_left, &listener.tells_left);
        self.tells_time.store(listener.tells_time.load(o), o);
        self.on.store(listener.on.load(o), o);
        let corks = !listener.keeps_cork() || listener.on.load(o) & CORK != 0;
        self.tells_cork.store(corks, o);
        copy(&self.is_odd, &listener.is_odd);
        self.sndbuf.store(listener.sndbuf.load(o), o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_socket_has_what_its_listener_was_set_to() {
        let [listener, accepted] = [(); 2].map(|()| Settings::default());
        listener.impatient_receiver.store(true, Ordering::Relaxed);
        listener.tells_time.store(29, Ordering::Relaxed);
        listener.needs_kernel.store(true, Ordering::Relaxed);
        listener.tells_left.store(true, Ordering::Relaxed);
        listener.sndbuf.store(9000, Ordering::Relaxed);
        accepted.inherit(&listener);
        assert!(accepted.impatient_receiver.load(Ordering::Relaxed));
        assert!(!accepted.impatient_sender.load(Ordering::Relaxed));
        assert_eq!(accepted.tells_time.load(Ordering::Relaxed), 29);
        assert!(accepted.needs_kernel.load(Ordering::Relaxed));
        assert!(accepted.tells_left.load(Ordering::Relaxed));
        assert_eq!(accepted.sndbuf.load(Ordering::Relaxed), 9000);
    }

    #[test]
    fn options_that_can_be_told_anew_are_known_and_others_are_odd() {
        let settings = Settings::default();
        settings.note(libc::IPPROTO_TCP, libc::TCP_NODELAY, Some(1));
        settings.note(libc::SOL_SOCKET, libc::SO_KEEPALIVE, Some(7));
        settings.note(libc::IPPROTO_TCP, libc::TCP_NODELAY, Some(0));
        settings.note(libc::SOL_SOCKET, libc::SO_LINGER, Some(0));
        assert_eq!(settings.on.load(Ordering::Relaxed), 0b100);
        assert!(!settings.is_odd.load(Ordering::Relaxed));
        settings.note(libc::SOL_SOCKET, libc::SO_KEEPALIVE, None);
        assert!(settings.is_odd.load(Ordering::Relaxed));
        let other = Settings::default();
        other.note(libc::SOL_SOCKET, libc::SO_LINGER, Some(1));
        assert!(other.is_odd.load(Ordering::Relaxed));
    }
}
