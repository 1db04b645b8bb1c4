//! What one attempt at a receive comes to.

use crate::sys::Errno;

/// As many buffers as one call hands over at once.
pub(super) const PARTS: usize = 16;

/// What one attempt came to.
pub(super) enum Step {
    Bytes,
    Empty,
    End,
    Failed(Errno),
    /// The program's buffer is bad.
    BadBuffer,
    /// The kernel must do it.
    Kernel,
    /// TCP brings what was not read in the ring, and has nothing of it yet.
    Brings,
    /// It is recalled, not known yet to come by TCP, and nothing is there.
    Asked,
    /// The peer is in the middle of withdrawing what is there.
    Withdrawn,
    /// It is to be looked for elsewhere.
    Moved,
    /// Something has come by TCP of which the peer knows nothing.
    Stray,
}
