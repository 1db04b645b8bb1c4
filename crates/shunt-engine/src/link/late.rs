//! What threads find that come too late for a link's memory.
//!
//! A thread that has looked a descriptor up just before another one closes it may be about to take a
//! token there, however long it is kept from that. It finds empty memory: there no connection is in
//! rings, and the call is the kernel's.

use std::sync::atomic::{AtomicUsize, Ordering};

use shunt_abi::layout;
use shunt_shm::arena::{Arena, Part};

use crate::{sys, thread};

/// The most arenas whose addresses stay reserved at a time after they have gone. (Addresses only:
/// nobody writes there.)
const MOST: usize = 128;

/// The addresses of such arenas; the oldest one is the next to go.
static PLACES: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Unmaps the control lines of an arena. If there are other threads, empty lines take their place.
/// With the control lock, or in a process with one thread.
///
/// # Safety
/// No connection uses the arena any more. A thread that still looks, late, may have taken the address only while one did.
pub(super) unsafe fn leave(arena: &Arena) {
    let control = Part::Control;
    if thread::is_alone() || Arena::are_addresses_scarce() || !arena.blank(&control) {
        // SAFETY: the caller's promise.
        unsafe { arena.unmap_part(&control) };
        return;
    }
    let o = Ordering::Relaxed;
    let place = &PLACES[NEXT.fetch_add(1, o) % MOST];
    let oldest = place.swap(arena.address(), o);
    if oldest != 0 {
        sys::unmap(oldest as *mut u8, layout::RINGS_AT);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::{GRACE, Link};
    use super::*;
    use shunt_shm::slot::READY;

    #[test]
    fn who_comes_late_finds_no_connection() {
        thread::learn_pid();
        thread::not_alone();
        let (own, fd) = Arena::create(2).unwrap();
        let peer = Arena::open(fd, 2).unwrap();
        sys::close(fd);
        let link = Link::open(7, 1, own, peer).unwrap();
        let (slot, o) = (link.own().slot(1), Ordering::SeqCst);
        slot.face.state.store(READY, o);
        link.gone.store(true, o);
        let now = sys::now();
        assert!(!link.unmap_if_unused(now) && slot.face.state.load(o) == READY);
        assert!(link.unmap_if_unused(now + 2 * GRACE));
        assert_eq!(slot.face.state.load(o), 0);
        assert!(thread::try_take(&slot.sending.token));
        thread::give(&slot.sending.token);
        // Not for ever.
        for _ in 0..MOST {
            let (arena, fd) = Arena::create(1).unwrap();
            sys::close(fd);
            // SAFETY: this test alone has its addresses, and is done with them.
            unsafe {
                leave(&arena);
                arena.unmap_part(&Part::Rings(0..1));
            }
            arena.forget();
        }
        assert!(!sys::is_readable(std::ptr::from_ref(slot)));
    }
}
