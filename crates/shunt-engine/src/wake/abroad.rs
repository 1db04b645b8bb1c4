//! Wake channels that peers in other network namespaces can call.
//!
//! The names of channels are those of a network namespace, and a socket looks them up in the one that it was made in,
//! whichever process has it. So shuntd has a namespace in which there is nothing else, and passes sockets that it has
//! made there: one by which this process calls, and some for its channels. (One from the peer's own namespace would
//! do, too, but its holder could look around there.)
//!
//! A process with peers elsewhere opens all of its channels there from then on, as long as it has such sockets. Each
//! process that is called there also has a socket by which it calls.
//!
//! Each shuntd has another such namespace. What is left from that of one before is replaced as soon as
//! this one has passed a socket.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;

use super::sending::{await_sent, is_heard, sending};
use crate::kept::Kept;
use crate::region::count;
use crate::sys;
use crate::thread::undisturbed;

/// Names with this bit are looked up in shuntd's namespace, all others in this process's own.
const BIT: u64 = 1 << 63;

/// So many sockets for channels are there at most until they are used.
const MOST: usize = shunt_abi::message::SOCKETS as usize;

/// The socket by which peers are called.
static SENDER: Kept = Kept::nothing();
/// Sockets for channels to come.
static STOCK: [Spare; MOST] = [const { Spare::nothing() }; MOST];
/// The namespace of the last socket that shuntd has passed (`SO_NETNS_COOKIE`): where peers call now.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);
/// This process has been given sockets to be called at.
static IS_CALLED: AtomicBool = AtomicBool::new(false);
/// A thread is changing these.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// A socket for a channel, and the namespace that it was made in.
struct Spare {
    socket: Kept,
    namespace: AtomicU64,
}

impl Spare {
    const fn nothing() -> Self {
        Self {
            socket: Kept::nothing(),
            namespace: AtomicU64::new(0),
        }
    }

    /// Whether there is a socket by which peers can call.
    fn is_of_use(&self) -> bool {
        let of = self.namespace.load(Ordering::Relaxed);
        self.socket.number() >= 0 && of == namespace()
    }
}

/// The same name, in that namespace or in this process's.
pub(super) fn name(name: u64, abroad: bool) -> u64 {
    if abroad { name | BIT } else { name & !BIT }
}

/// Whether a name is one of that namespace.
pub(super) fn is_name(name: u64) -> bool {
    name & BIT != 0
}

/// Where peers call now.
pub(super) fn namespace() -> u64 {
    NAMESPACE.load(Ordering::Relaxed)
}

/// Whether there is a socket for a channel that has none of these.
pub(super) fn is_any() -> bool {
    STOCK.iter().any(Spare::is_of_use)
}

/// Another shuntd serves this process: it is asked for sockets in place of those of the one before, if
/// there were peers elsewhere.
pub(crate) fn renew() {
    if IS_CALLED.load(Ordering::Relaxed) {
        want_sockets();
    }
}

/// Keeps a copy of a socket that shuntd has passed: the one to call by, in the place of a former one, or
/// one for a channel. With the control lock.
pub(crate) fn keep(passed: c_int, is_sender: bool) {
    let Ok(copy) = sys::copy_high(passed) else {
        return;
    };
    let cookie = sys::getsockopt(copy, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    let namespace = cookie.unwrap_or(0); // A kernel that tells none apart.
    let kept = change(|| {
        NAMESPACE.store(namespace, Ordering::Relaxed);
        let kept = if is_sender {
            &SENDER
        } else {
            IS_CALLED.store(true, Ordering::Relaxed);
            let free = STOCK.iter().find(|spare| !spare.is_of_use())?;
            free.namespace.store(namespace, Ordering::Relaxed);
            &free.socket
        };
        let former = kept.take();
        kept.keep(copy).then_some(former)
    });
    match kept.flatten() {
        Some(Some(former)) => {
            await_none_sends();
            sys::close(former);
        }
        Some(None) => {}
        None => sys::close(copy),
    }
}

/// A socket for a channel, and its namespace. Whoever gets it closes it.
pub(super) fn take() -> Option<(c_int, u64)> {
    let taken = change(|| {
        STOCK
            .iter()
            .filter(|spare| spare.is_of_use())
            .find_map(|spare| {
                let namespace = spare.namespace.load(Ordering::Relaxed);
                spare.socket.take().map(|fd| (fd, namespace))
            })
    })
    .flatten();
    if taken.is_some() && !is_any() {
        want_sockets();
    }
    taken
}

/// Sockets for channels are wished for.
static WANTED: AtomicBool = AtomicBool::new(false);

/// There are no more of them: the daemon is asked for some with the next message to it.
pub(crate) fn want_sockets() {
    WANTED.store(true, Ordering::Release);
}

/// Whether it is to be asked.
pub(crate) fn wants_sockets() -> bool {
    WANTED.load(Ordering::Acquire)
}

/// It is asked now.
pub(crate) fn asks_for_sockets() -> bool {
    WANTED.swap(false, Ordering::AcqRel)
}

/// `None`: another thread is changing something, or this one, below a signal handler.
fn change<R>(change: impl FnOnce() -> R) -> Option<R> {
    if CHANGING.swap(true, Ordering::Acquire) {
        return None;
    }
    let result = change();
    CHANGING.store(false, Ordering::Release);
    Some(result)
}

/// Waits for threads that may be sending; not in a handler that has interrupted this thread in the middle of an
/// operation.
fn await_none_sends() {
    if !undisturbed::has_begun() {
        await_sent(0);
    }
}

/// The socket to call by.
pub(super) fn sender() -> Option<c_int> {
    SENDER.get()
}

/// Sends a call to a name of that namespace. `false`: nobody has heard it.
pub(super) fn call(name: u64, secret: u64) -> bool {
    let heard = sending(|| {
        let known = SENDER.number();
        SENDER.is_kept() && is_heard(known, name, secret)
            || sender().is_some_and(|fd| fd != known && is_heard(fd, name, secret))
    });
    if heard {
        count::calls();
    }
    heard
}

/// In a forked child: what is in stock is its parent's, which would have calls for both.
pub(super) fn after_fork_child() {
    CHANGING.store(false, Ordering::Relaxed);
    IS_CALLED.store(false, Ordering::Relaxed);
    let stock = STOCK.iter().filter_map(|spare| spare.socket.take());
    stock.for_each(sys::close);
}

/// If `fd` is the number of one of them and the program wants it: moves elsewhere.
pub(super) fn make_way(fd: c_int) {
    let stock = STOCK.iter().map(|spare| &spare.socket);
    for kept in stock.chain([&SENDER]) {
        if kept.number() == fd {
            kept.make_way(fd);
            await_none_sends();
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use shunt_shm::wake::Address;

    use super::super::{Channel, call};
    use super::*;
    use crate::thread;

    #[test]
    fn a_channel_is_renewed_where_peers_elsewhere_can_call_it() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        let (channel, at) = (Channel::new(), Address::default());
        assert!(channel.open() && !channel.is_outdated());
        channel.tell(&at);
        assert!(!is_name(at.look().0) && call(&at) && channel.hear());
        let pass = |is_sender| {
            let passed = sys::datagram_socket().unwrap();
            keep(passed, is_sender);
            sys::close(passed);
        };
        pass(false);
        assert!(channel.is_outdated());
        channel.close();
        assert!(channel.open() && !channel.is_outdated() && !is_any());
        assert!(!call(&at), "nobody is at the former name");
        channel.tell(&at);
        assert!(
            is_name(at.look().0) && !call(&at),
            "there is no socket to call by"
        );
        for _ in 0..2 {
            pass(true);
            assert!(call(&at) && channel.hear());
        }
        let number = SENDER.number();
        make_way(number);
        assert_ne!(SENDER.number(), number);
        assert!(call(&at) && channel.hear());
        let unshared = || {
            // SAFETY: only this thread's network namespace changes, and the thread ends.
            let is_done = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            is_done.then(|| sys::datagram_socket().unwrap())
        };
        // As another shuntd passes it; only root can make one.
        if let Some(passed) = std::thread::spawn(unshared).join().unwrap() {
            pass(false);
            assert!(is_any() && !channel.is_outdated());
            keep(passed, true);
            assert!(channel.is_outdated() && !is_any());
            channel.close();
            assert!(channel.open() && !channel.is_outdated());
            channel.tell(&at);
            assert!(!is_name(at.look().0), "what is in stock is of the former");
            keep(passed, false);
            assert!(channel.is_outdated());
            channel.close();
            assert!(channel.open() && !channel.is_outdated());
            channel.tell(&at);
            assert!(is_name(at.look().0) && call(&at) && channel.hear());
            sys::close(passed);
        }
        sys::close(SENDER.take().unwrap());
        sys::close(number);
        channel.close();
        after_fork_child();
    }
}
