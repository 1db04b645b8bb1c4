//! The memory of one side of a trial.

use std::sync::atomic::AtomicU64;

use shunt_rdma::bond::Lines;
use shunt_shm::ring;
use shunt_shm::slot::Slot;

/// Bytes of each ring.
const RING: usize = 64 << 10;

/// Slots and rings of all connections.
pub(crate) struct Memory {
    slots: Vec<[Slot; 2]>,
    /// Mapped: two rings for each connection.
    rings: *mut u8,
}

impl Memory {
    /// Memory for this number of connections.
    #[must_use]
    pub(crate) fn new(connections: usize) -> Self {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let bytes = 2 * connections * RING;
        // SAFETY: new memory at an address of the kernel's choice.
        let rings = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        assert_ne!(rings, libc::MAP_FAILED);
        let slots = || [Slot::default(), Slot::default()];
        Self {
            slots: (0..connections).map(|_| slots()).collect(),
            rings: rings.cast(),
        }
    }

    /// What a connection has of it.
    #[must_use]
    pub(crate) fn lines(&self, slot: usize) -> Lines<'_> {
        let [own, view] = &self.slots[slot];
        // SAFETY: the mapping has two rings for each slot, and stays as long as this lives.
        let ring = |n: usize| unsafe {
            let at = self.rings.add((2 * slot + n) * RING).cast::<AtomicU64>();
            ring::Memory::new(at, RING as u32)
        };
        Lines {
            own,
            view,
            out: ring(0),
            inward: ring(1),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let bytes = 2 * self.slots.len() * RING;
        // SAFETY: mapped in `new`; what has borrowed from it is gone.
        unsafe { libc::munmap(self.rings.cast(), bytes) };
    }
}
