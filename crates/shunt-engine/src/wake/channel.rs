//! The receiving end of a wake channel.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::c_int;
use shunt_shm::atomic::full;
use shunt_shm::wake::Address;

use super::abroad;
use super::call::sender_to;
use super::datagram::{address, listen_for, send, take};
use super::demand;
use super::sending::sending;
use crate::kept::Kept;
use crate::sys::{self, Errno};
use crate::{config, thread};

/// A datagram socket by which peers call; or none.
pub(crate) struct Channel {
    socket: Kept,
    name: AtomicU64,
    secret: AtomicU64,
    /// The network namespace of its name, if peers in other namespaces can call it.
    namespace: AtomicU64,
    /// 1 + the number by which a thread is about to poll it, or polls it; 0: none; or [`INTERRUPTED`].
    watched: AtomicI32,
}

/// A handler has run in the thread that polled it.
const INTERRUPTED: i32 = -1;

impl Channel {
    pub(crate) const fn new() -> Self {
        Self {
            socket: Kept::nothing(),
            name: AtomicU64::new(0),
            secret: AtomicU64::new(0),
            namespace: AtomicU64::new(0),
            watched: AtomicI32::new(0),
        }
    }

    /// The socket, readable when it has been called; negative: none.
    pub(crate) fn fd(&self) -> c_int {
        self.socket.number()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_kept()
    }

    /// The number of the socket, if that still names it.
    pub(crate) fn socket(&self) -> Option<c_int> {
        self.socket.get_socket()
    }

    /// Opens the channel, unless it is open. By one thread at a time. `false`: that cannot be done.
    pub(crate) fn open(&self) -> bool {
        if self.is_open() {
            return true;
        }
        self.close();
        if thread::owns_memory()
            && !config::is_confined()
            && let Ok(fd) = self.make()
        {
            self.socket.keep(fd);
        }
        self.is_open()
    }

    fn make(&self) -> Result<c_int, Errno> {
        let taken = abroad::take();
        let fd = match taken {
            Some((fd, namespace)) => {
                self.namespace.store(namespace, Ordering::Relaxed);
                fd
            }
            None => sys::move_high(sys::datagram_socket()?),
        };
        if let Err(errno) = self.name(fd, taken.is_some()) {
            sys::close(fd);
            return Err(errno);
        }
        Ok(fd)
    }

    /// Gives its socket a new name, and a word that is heard there.
    fn name(&self, fd: c_int, is_abroad: bool) -> Result<(), Errno> {
        let (name, secret) = (abroad::name(sys::random()?, is_abroad), sys::random()?);
        let (address, length) = address(name);
        listen_for(fd, secret)?;
        sys::bind(fd, &address, length)?;
        self.name.store(name, Ordering::Relaxed);
        self.secret.store(secret, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the channel should be closed and opened again: peers in other network namespaces cannot
    /// call it now, and could then; or it is in a former shuntd's namespace, where new peers cannot call
    /// it.
    pub(crate) fn is_outdated(&self) -> bool {
        if abroad::is_name(self.name.load(Ordering::Relaxed)) {
            self.namespace.load(Ordering::Relaxed) != abroad::namespace()
        } else {
            abroad::is_any()
        }
    }

    /// Whether peers in other network namespaces cannot call this channel now, but can as soon as shuntd has passed more
    /// sockets, for which it is asked.
    pub(crate) fn awaits_socket(&self) -> bool {
        let is_reached = self.is_open() && abroad::is_name(self.called());
        abroad::is_called() && !is_reached && !abroad::is_any() && demand::wants_some()
    }

    /// Writes into `at` where the channel can be called.
    pub(crate) fn tell(&self, at: &Address) {
        let o = Ordering::Relaxed;
        at.say(self.name.load(o), self.secret.load(o));
    }

    /// Takes over an address that has named `former` until now.
    pub(crate) fn take_over(&self, at: &Address, former: u64) -> bool {
        let o = Ordering::Relaxed;
        at.take(former, self.name.load(o), self.secret.load(o))
    }

    /// The name that it got when it was last opened.
    pub(crate) fn called(&self) -> u64 {
        self.name.load(Ordering::Relaxed)
    }

    /// Whether an address still names this channel.
    pub(crate) fn is_told(&self, at: &Address) -> bool {
        at.says(self.name.load(Ordering::Relaxed))
    }

    /// Takes a call out; if there are more, the kernel says so again. `false`: there is none. If the program has
    /// closed the number behind our back, the channel is closed, and a thread that needs one opens another.
    pub(crate) fn hear(&self) -> bool {
        let Some(fd) = self.socket.get() else {
            if self.is_open() {
                self.close();
            }
            return false;
        };
        take(fd)
    }

    /// [`Self::hear`] without asking first what the number names. The caller knows that it names the channel,
    /// since the kernel's set has told of it; or expects it, since the thread that was called has found what
    /// it waited for.
    pub(crate) fn hear_sure(&self) -> bool {
        self.is_open() && (take(self.fd()) || self.hear())
    }

    /// Calls a sleeper from within this process. Calls of peers use up no room for this.
    pub(super) fn wake(&self) {
        // A thread that sleeps has the socket also where the number names it no more.
        let o = Ordering::Relaxed;
        let sender = || {
            let name = self.is_open().then(|| self.name.load(o));
            name.and_then(sender_to)
        };
        sending(|| {
            if let Some(fd) = self.socket.get().or_else(sender) {
                let _ = send(fd, self.name.load(o), self.secret.load(o));
            }
        });
    }

    /// Closes the channel: nobody can call it any more, and calls in its queue are dropped. It may
    /// be opened again.
    pub(crate) fn close(&self) {
        if let Some(fd) = self.socket.take() {
            sys::close(fd);
        }
    }

    /// Gives its socket up. The caller closes it, or makes its number name something else.
    pub(super) fn give_up(&self) -> Option<c_int> {
        self.socket.take()
    }

    /// The number to poll it by, which names it until [`unwatch`](Self::unwatch). By one thread at a time.
    pub(super) fn watch(&self) -> c_int {
        loop {
            let fd = self.fd();
            // In this order: a thread that changes the number either sees this word, or its change is seen here.
            self.watched.store(fd + 1, Ordering::SeqCst);
            if self.fd() == fd {
                return fd;
            }
        }
    }

    /// In a signal handler of the thread that polls it: that thread polls no more, and will not begin to.
    pub(super) fn interrupt(&self) {
        self.watched.store(INTERRUPTED, Ordering::Release);
    }

    /// Whether a handler has run in the thread that polled it, and the thread has not continued.
    pub(super) fn is_interrupted(&self) -> bool {
        self.watched.load(Ordering::Acquire) == INTERRUPTED
    }

    /// Nobody polls it any more.
    pub(super) fn unwatch(&self) {
        self.watched.store(0, Ordering::Release);
    }

    /// Moves to another number, if the program wants its number `fd`. A thread that polls the old number sleeps on
    /// the same socket until something wakes it; then the kernel looks the number up anew (`ppoll`). So this wakes
    /// that thread while the old number still names the socket, and waits until it polls no more, if the caller
    /// `may_wait`. It does not wait if no other number is free: the thread cannot be called then.
    pub(crate) fn make_way(&self, fd: c_int, may_wait: bool) {
        if self.fd() != fd {
            return;
        }
        self.socket.make_way(fd);
        full();
        self.wake();
        while may_wait && self.is_open() && self.watched.load(Ordering::SeqCst) == fd + 1 {
            sys::sched_yield();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_names_something_else_is_neither_heard_nor_kept() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        let (channel, at) = (Channel::new(), Address::default());
        assert!(channel.open());
        channel.tell(&at);
        super::super::call(&at);
        assert!(channel.is_told(&at) && channel.hear());
        let (number, theirs) = (channel.fd(), sys::datagram_socket().unwrap());
        // Whoever sleeps has the socket still.
        let asleep = sys::fcntl(number, libc::F_DUPFD_CLOEXEC, 0).unwrap() as c_int;
        // SAFETY: both descriptors are this test's.
        assert!(unsafe { libc::dup2(theirs, number) } == number);
        channel.wake();
        assert_eq!(sys::ready(asleep, libc::POLLIN), libc::POLLIN);
        assert!(!channel.hear() && !channel.is_open());
        assert!(sys::file(number).is_some());
        assert!(channel.open() && channel.fd() != number);
        channel.close();
        [number, theirs, asleep].into_iter().for_each(sys::close);
    }

    #[test]
    fn a_number_goes_to_the_program_when_nobody_polls_it_any_more() {
        let _alone = crate::both_ends::one_at_a_time();
        use std::sync::atomic::AtomicBool;
        thread::learn_pid();
        static CHANNEL: Channel = Channel::new();
        static IS_AWAKE: AtomicBool = AtomicBool::new(false);
        assert!(CHANNEL.open());
        let number = CHANNEL.watch();
        let sleeper = std::thread::spawn(move || {
            let polled = libc::pollfd {
                fd: number,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid entry.
            let woken = unsafe { libc::poll(&mut [polled] as *mut _, 1, 10_000) };
            IS_AWAKE.store(true, Ordering::SeqCst);
            CHANNEL.unwatch();
            woken
        });
        CHANNEL.make_way(number, true);
        assert!(IS_AWAKE.load(Ordering::SeqCst) && CHANNEL.fd() != number);
        assert_eq!(sleeper.join().unwrap(), 1);
        sys::close(number);
        CHANNEL.close();
    }

    #[test]
    fn nothing_is_taken_from_a_stream_at_its_number() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        let channel = Channel::new();
        assert!(channel.open());
        let (number, mut pair) = (channel.fd(), [0; 2]);
        // SAFETY: a local array; and both descriptors are this test's.
        unsafe {
            let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            assert_eq!(
                libc::socketpair(libc::AF_UNIX, stream, 0, pair.as_mut_ptr()),
                0
            );
            assert_eq!(libc::dup2(pair[0], number), number);
        }
        assert_eq!(sys::send(pair[1], &[0]), Ok(1));
        assert!(!channel.hear_sure() && !channel.is_open());
        assert_eq!(sys::ioctl_int(number, libc::FIONREAD), Ok(1));
        [number, pair[0], pair[1]].into_iter().for_each(sys::close);
    }
}
