//! What is on its way.

use crate::transport::{NOTE_BYTES, Target};

/// Writes of up to this many bytes are read as they are posted.
pub(super) const INLINE: usize = 64;

pub(super) enum Source {
    Inline([u64; INLINE / 8]),
    Memory {
        key: u32,
        offset: usize,
        length: usize,
        trailer: Option<usize>,
    },
}

pub(super) enum Body {
    Write {
        source: Source,
        /// The trailer's included.
        bytes: usize,
        target: Target,
        immediate: u32,
    },
    Note {
        bytes: [u8; NOTE_BYTES],
        length: usize,
    },
}

pub(super) struct Request {
    pub(super) body: Body,
    /// When it has come.
    pub(super) due: u64,
    pub(super) tag: Option<u64>,
    /// Words that are still to be placed, where that is done out of order; `None`: all, in order.
    pub(super) unplaced: Option<Vec<u32>>,
    /// Which post of its queue pair it is, from 1 on.
    pub(super) number: u64,
}

impl Request {
    pub(super) fn new(body: Body, due: u64, tag: Option<u64>) -> Self {
        Self {
            body,
            due,
            tag,
            unplaced: None,
            number: 0,
        }
    }

    /// Words of a write.
    pub(super) fn words(&self) -> u32 {
        match &self.body {
            Body::Write { bytes, .. } => bytes.div_ceil(8) as u32,
            Body::Note { .. } => 0,
        }
    }
}
