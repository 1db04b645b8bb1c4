//! Registered memory of a real NIC.

use std::ffi::c_void;
use std::sync::Arc;

use super::abi::{Mr, value};
use super::nic::Opened;
use crate::transport::{Access, Refused, Region, Target};

/// Memory that is pinned and known to the NIC, until it is dropped.
pub struct Pinned {
    opened: Arc<Opened>,
    mr: *mut Mr,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for Pinned {}
// SAFETY: as above; this type only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// # Safety
    /// As [`Transport::register`](crate::transport::Transport::register) demands.
    pub(super) unsafe fn new(
        opened: &Arc<Opened>,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Self, Refused> {
        let flags = match access {
            Access::Source => 0,
            Access::Target => value::ACCESS_LOCAL_WRITE | value::ACCESS_REMOTE_WRITE,
        };
        // SAFETY: the caller's promise.
        let mr = unsafe { (opened.library.reg_mr)(opened.pd, at.cast::<c_void>(), bytes, flags) };
        if mr.is_null() {
            return Err(super::nic::refused("pinned memory"));
        }
        Ok(Self {
            opened: Arc::clone(opened),
            mr,
        })
    }

    /// Its key for this side's NIC.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: registered until dropped.
        unsafe { (*self.mr).lkey }
    }

    /// Of its first byte.
    pub(super) fn address(&self) -> u64 {
        // SAFETY: registered until dropped.
        unsafe { (*self.mr).addr as u64 }
    }

    /// How many bytes.
    pub(super) fn length(&self) -> usize {
        // SAFETY: registered until dropped.
        unsafe { (*self.mr).length }
    }
}

impl Region for Pinned {
    fn target(&self) -> Target {
        Target {
            // SAFETY: registered until dropped.
            key: unsafe { (*self.mr).rkey },
            address: self.address(),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: registered above, and nobody uses it after this. What the NIC answers changes nothing.
        unsafe { (self.opened.library.dereg_mr)(self.mr) };
    }
}
