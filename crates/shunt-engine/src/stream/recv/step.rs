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
    /// TCP brings what was not read in the ring.
    Brings,
    /// It is recalled, and not known yet to come by TCP.
    Asked,
    /// It is to be looked for elsewhere.
    Moved,
    /// Something has come by TCP of which the peer knows nothing.
    Stray,
}
