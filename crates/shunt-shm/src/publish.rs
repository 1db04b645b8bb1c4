//! How words are written that a peer reads with acquire order, in one place, so that the orders are the same
//! everywhere. (Tokens, and words that several threads of a side change at once, are written where they are kept.)
//!
//! Payload bytes are written by [`crate::ring`] before the header that
//! publishes them and need no call of their own: a mirror sends everything up
//! to the published word.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Publishes a word: everything written before is visible to a reader of it with acquire order.
#[inline(always)]
pub fn word(at: &AtomicU64, value: u64) {
    at.store(value, Ordering::Release);
}

/// Publishes a half word, ordered like [`word`].
#[inline(always)]
pub fn half(at: &AtomicU32, value: u32) {
    at.store(value, Ordering::Release);
}

/// Sets bits in a half word that several threads of the owner change; what was
/// there before.
#[inline(always)]
pub fn set_bits(at: &AtomicU32, bits: u32) -> u32 {
    at.fetch_or(bits, Ordering::AcqRel)
}

/// Clears bits in a half word that several threads of the owner change.
#[inline(always)]
pub fn clear_bits(at: &AtomicU32, bits: u32) {
    at.fetch_and(!bits, Ordering::AcqRel);
}
