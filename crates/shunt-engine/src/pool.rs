//! Objects that are reused and never freed.
//!
//! A pool grows by chunks that are never given back, so an address, once seen, stays valid: a look-up needs no lock,
//! and a reader that loses a race against the end of an object finds it free, or in its next life. A reader that must
//! tell the two apart holds the object ([`crate::hold`]), or looks once more at the place where it found it.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::sys;

const CHUNKS: usize = 1024;

/// Something a [`Pool`] holds. All-zero bytes must be a valid free object.
pub(crate) trait Pooled: 'static {
    /// Where its own index and the next free one are kept.
    fn links(&self) -> &Links;
}

/// A pooled object's place.
#[derive(Debug)]
pub(crate) struct Links {
    index: AtomicU32,
    next_free: AtomicU32,
}

impl Links {
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }
}

const PER_CHUNK: usize = 256;

/// The most objects that a pool may have.
pub(crate) const MOST: usize = CHUNKS * PER_CHUNK;

/// Objects that are reused and never freed. Allocation is lock-free and calls
/// no allocator, so it is safe wherever the program may open a socket.
pub(crate) struct Pool<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
    /// Low half: index + 1 of the first free object; high half: a tag against ABA.
    free: AtomicU64,
    used: AtomicU32,
}

impl<T: Pooled> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            free: AtomicU64::new(0),
            used: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.used.load(Ordering::Acquire) != 0
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&'static T> {
        let chunk = self
            .chunks
            .get(index as usize / PER_CHUNK)?
            .load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: a chunk has PER_CHUNK objects, valid from zeroed bytes on, never freed.
        Some(unsafe { &*chunk.add(index as usize % PER_CHUNK) })
    }

    /// An object to use, or `None` when memory is out.
    pub(crate) fn take(&self) -> Option<&'static T> {
        loop {
            let head = self.free.load(Ordering::Acquire);
            let Some(index) = (head as u32).checked_sub(1) else {
                break;
            };
            let object = self.get(index)?;
            let next = object.links().next_free.load(Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            if self
                .free
                .compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Some(object);
            }
        }
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        let home = self.chunks.get(index as usize / PER_CHUNK)?;
        if home.load(Ordering::Acquire).is_null() {
            let fresh = sys::map(PER_CHUNK * size_of::<T>().next_multiple_of(64)).cast();
            let _ = home.compare_exchange(
                std::ptr::null_mut(),
                fresh,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
        }
        let object = self.get(index)?;
        object.links().index.store(index, Ordering::Relaxed);
        Some(object)
    }

    /// Gives an object back; the caller has ended its life.
    pub(crate) fn give(&self, object: &'static T) {
        let links = object.links();
        loop {
            let head = self.free.load(Ordering::Acquire);
            links.next_free.store(head as u32, Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(links.index() + 1);
            if self
                .free
                .compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }

    /// How many objects have ever been used.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// Every object ever used, free ones included.
    pub(crate) fn each(&self) -> impl Iterator<Item = &'static T> + '_ {
        (0..self.used()).filter_map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(Links);

    impl Pooled for Thing {
        fn links(&self) -> &Links {
            &self.0
        }
    }

    #[test]
    fn each_object_has_a_number_and_is_found_by_it() {
        static POOL: Pool<Thing> = Pool::new();
        assert!(!POOL.is_any() && POOL.get(0).is_none());
        let things: Vec<_> = (0..300).map(|_| POOL.take().unwrap()).collect();
        for (thing, number) in things.iter().zip(0..) {
            assert_eq!(thing.0.index(), number);
            assert!(std::ptr::eq(POOL.get(number).unwrap(), *thing));
        }
        assert_eq!((POOL.used(), POOL.each().count()), (300, 300));
        assert!(POOL.get(MOST as u32).is_none());
    }

    #[test]
    fn what_was_given_back_last_is_used_first_and_keeps_its_number() {
        static POOL: Pool<Thing> = Pool::new();
        let [one, other] = [(); 2].map(|()| POOL.take().unwrap());
        POOL.give(one);
        POOL.give(other);
        assert!(std::ptr::eq(POOL.take().unwrap(), other));
        assert!(std::ptr::eq(POOL.take().unwrap(), one));
        assert_eq!((one.0.index(), POOL.take().unwrap().0.index()), (0, 2));
    }

    #[test]
    fn no_object_is_given_to_two_threads() {
        static POOL: Pool<Thing> = Pool::new();
        static IN_USE: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];
        let work = || {
            for _ in 0..2000 {
                let thing = POOL.take().unwrap();
                let mark = &IN_USE[thing.0.index() as usize];
                assert_eq!(mark.fetch_add(1, Ordering::AcqRel), 0);
                mark.fetch_sub(1, Ordering::AcqRel);
                POOL.give(thing);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(work);
            }
        });
        assert!(POOL.used() <= 8);
    }
}
