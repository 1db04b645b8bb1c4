//! What has not been read of a ring, written into a memory file for the daemon to send.

use libc::c_int;
use shunt_shm::path::unread::Unread;
use shunt_shm::ring::Memory;

use crate::sys;

/// Such a file, as long as this lives.
pub(in crate::stream) struct Written(c_int);

impl Written {
    /// `None`: there is no memory for it, or the ring is broken.
    pub(in crate::stream) fn new(unread: &Unread, ring: Memory) -> Option<Self> {
        if !sys::may_grow_to(u64::from(ring.size())) {
            return None;
        }
        let written = Self(sys::memory_file(c"shunt-resend", 0)?);
        written.fill(unread, ring)?;
        Some(written)
    }

    pub(in crate::stream) fn file(&self) -> c_int {
        self.0
    }

    fn fill(&self, unread: &Unread, ring: Memory) -> Option<()> {
        // A wrong word in the ring may lead into payload, and payload may lead round in circles.
        let mut most = ring.size() as usize;
        unread.read_by(ring, |consumer| {
            loop {
                let write = |from, n| sys::write(self.0, from, n);
                match consumer.drain(most, write) {
                    Ok(Ok(0)) => {
                        return (!consumer.is_ready() || consumer.has_ended()).then_some(());
                    }
                    Ok(Ok(n)) => most -= n,
                    Ok(Err(libc::EINTR)) => {}
                    Ok(Err(_)) | Err(_) => return None,
                }
            }
        })?
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}
