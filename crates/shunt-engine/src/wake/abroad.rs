//! Wake channels that peers in other network namespaces can call.
//!
//! The names of channels are those of a network namespace, and a socket looks them up in the one that it was made in,
//! whichever process has it. So shuntd has a namespace in which there is nothing else, and passes sockets that it has
//! made there: one by which this process calls, and some for its channels, which wait in stock. (One from the peer's own
//! namespace would do, too, but its holder could look around there.)
//!
//! A process with peers elsewhere opens all of its channels there from then on, as long as it has such sockets. Each
//! process that is called there also has a socket by which it calls. How many sockets it wants, and when shuntd is asked
//! for them: [`super::demand`].
//!
//! Each shuntd has another such namespace. What is left from that of one before is replaced as soon as
//! this one has passed a socket.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use super::demand::{self, MOST};
use super::sending::{await_sent, is_heard, sending};
use crate::kept::Kept;
use crate::region::count;
use crate::sys;
use crate::thread::undisturbed;

/// Names with this bit are looked up in shuntd's namespace, all others in this process's own.
const BIT: u64 = 1 << 63;

/// The socket by which peers are called.
static SENDER: Kept = Kept::nothing();
/// Sockets for channels to come.
static STOCK: [Spare; MOST] = [const { Spare::nothing() }; MOST];
/// The namespace of the last socket that shuntd has passed (`SO_NETNS_COOKIE`): where peers call now.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);
/// This process has been given sockets to be called at.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// A place in stock. The thread that moves it to [`CHANGING`] changes it alone; all others pass over a place that is
/// being changed, however long that takes.
struct Spare {
    stage: AtomicU32,
    /// A socket for a channel, …
    socket: Kept,
    /// … and the namespace that it was made in.
    namespace: AtomicU64,
}

const EMPTY: u32 = 0;
const CHANGING: u32 = 1;
const FULL: u32 = 2;

impl Spare {
    const fn nothing() -> Self {
        Self {
            stage: AtomicU32::new(EMPTY),
            socket: Kept::nothing(),
            namespace: AtomicU64::new(0),
        }
    }

    fn is_in(&self, stage: u32) -> bool {
        self.stage.load(Ordering::Relaxed) == stage
    }

    /// Changes the place, if it is in the stage `from` and no other thread changes it.
    fn change<R>(&self, from: u32, change: impl FnOnce(&Self) -> (u32, R)) -> Option<R> {
        let begun =
            self.stage
                .compare_exchange(from, CHANGING, Ordering::Acquire, Ordering::Relaxed);
        begun.ok()?;
        let (to, result) = change(self);
        self.stage.store(to, Ordering::Release);
        Some(result)
    }

    /// Puts a socket into the place. `None`: there is one already, or another thread is changing the place.
    fn put(&self, fd: c_int, namespace: u64) -> Option<bool> {
        self.change(EMPTY, |spare| {
            spare.namespace.store(namespace, Ordering::Relaxed);
            let is_kept = spare.socket.keep(fd);
            (if is_kept { FULL } else { EMPTY }, is_kept)
        })
    }

    /// Takes the socket out of the place, if there is one.
    fn take(&self) -> Option<(c_int, u64)> {
        let taken = self.change(FULL, |spare| {
            let fd = spare.socket.take();
            (EMPTY, fd.zip(Some(spare.namespace.load(Ordering::Relaxed))))
        });
        taken.flatten()
    }
}

/// The form of a channel's name for the daemon's namespace (`abroad`), or for this process's own.
pub(super) fn name(name: u64, abroad: bool) -> u64 {
    if abroad { name | BIT } else { name & !BIT }
}

/// Whether a name is looked up in shuntd's namespace.
pub(super) fn is_name(name: u64) -> bool {
    name & BIT != 0
}

/// Where peers call now.
pub(super) fn namespace() -> u64 {
    NAMESPACE.load(Ordering::Relaxed)
}

/// Whether there is a socket in stock for a channel.
pub(super) fn is_any() -> bool {
    is_called() && STOCK.iter().any(|spare| spare.is_in(FULL))
}

/// How many sockets are in stock.
fn count() -> u32 {
    STOCK.iter().filter(|spare| spare.is_in(FULL)).count() as u32
}

/// Whether peers elsewhere call this process.
pub(super) fn is_called() -> bool {
    IS_CALLED.load(Ordering::Relaxed)
}

/// Another shuntd serves this process: it is asked for sockets in place of those of the one before, if
/// there were peers elsewhere. With the control lock.
pub(crate) fn renew() {
    demand::renew(is_called(), count());
}

/// Keeps a copy of a socket that shuntd has passed: the one to call by, in the place of a former one, or
/// one for a channel. With the control lock.
pub(crate) fn keep(passed: c_int, is_sender: bool) {
    let Ok(copy) = sys::copy_high(passed) else {
        return demand::note_no_room();
    };
    let cookie = sys::getsockopt(copy, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    let namespace = cookie.unwrap_or(0); // A kernel that tells none apart.
    if NAMESPACE.swap(namespace, Ordering::Relaxed) != namespace {
        empty(); // Nobody calls there any more.
    }
    if is_sender {
        let former = SENDER.take();
        SENDER.keep(copy);
        if let Some(former) = former {
            await_none_sends();
            sys::close(former);
        }
        return;
    }
    IS_CALLED.store(true, Ordering::Relaxed);
    match STOCK.iter().find_map(|spare| spare.put(copy, namespace)) {
        Some(true) => demand::note_given(),
        Some(false) => demand::note_no_room(),
        None => {
            sys::close(copy);
            demand::note_no_room();
        }
    }
}

/// A socket for a channel, and its namespace. Whoever gets it closes it.
pub(super) fn take() -> Option<(c_int, u64)> {
    if !is_called() {
        return None;
    }
    let taken = STOCK.iter().find_map(Spare::take);
    demand::note_taken(taken.is_some(), count());
    taken
}

fn empty() {
    let stock = STOCK.iter().filter_map(Spare::take);
    stock.for_each(|(fd, _)| sys::close(fd));
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

/// Sends a call to a name of shuntd's namespace. `false`: nobody has heard it.
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

/// In a forked child: drops the stock, which is the parent's. If both used it, each would get calls for the other.
pub(super) fn after_fork_child() {
    IS_CALLED.store(false, Ordering::Relaxed);
    demand::forget();
    for spare in &STOCK {
        // What is empty is left as it is: a write would copy its page. Also places that a thread of the parent was just changing.
        if spare.stage.load(Ordering::Relaxed) == EMPTY {
            continue;
        }
        spare.stage.store(EMPTY, Ordering::Relaxed);
        if let Some(fd) = spare.socket.take() {
            sys::close(fd);
        }
    }
}

/// Moves one of these sockets to another number, if the program wants its number `fd`.
pub(super) fn make_way(fd: c_int) {
    for spare in STOCK.iter().filter(|spare| spare.socket.number() == fd) {
        spare.change(FULL, |spare| (FULL, spare.socket.make_way(fd)));
    }
    if SENDER.number() == fd {
        SENDER.make_way(fd);
        await_none_sends();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use shunt_shm::wake::Address;

    use super::super::{Channel, call};
    use super::*;
    use crate::thread;

    /// As shuntd passes one.
    fn pass(is_sender: bool) {
        let passed = sys::datagram_socket().unwrap();
        keep(passed, is_sender);
        sys::close(passed);
    }

    #[test]
    fn a_thread_that_is_changing_a_place_in_stock_keeps_no_other_socket_from_coming_or_going() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        pass(false);
        // Two threads stop, one in the middle of taking this, one of putting another one there.
        for stage in [FULL, EMPTY] {
            let of = STOCK.iter().find(|spare| spare.is_in(stage)).unwrap();
            of.stage.store(CHANGING, Ordering::Relaxed);
        }
        assert!(!is_any());
        pass(false);
        pass(false);
        for _ in 0..2 {
            sys::close(take().unwrap().0);
        }
        assert!(take().is_none());
        after_fork_child();
        assert!(STOCK.iter().all(|spare| spare.is_in(EMPTY)));
    }

    #[test]
    fn a_channel_is_renewed_where_peers_elsewhere_can_call_it() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        let (channel, at) = (Channel::new(), Address::default());
        assert!(channel.open() && !channel.is_outdated());
        channel.tell(&at);
        assert!(!is_name(at.look().0) && call(&at) && channel.hear());
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
