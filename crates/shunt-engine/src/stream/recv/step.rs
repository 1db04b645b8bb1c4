//! The outcome of one attempt at a receive.

use crate::sys::Errno;

/// The most buffers that one system call gets.
pub(super) const PARTS: usize = 16;

/// What one attempt came to.
pub(super) enum Step {
    Bytes,
    Empty,
    End,
    Failed(Errno),
    /// The program's buffer is bad.
    BadBuffer,
    /// The kernel must do the rest.
    Kernel,
    /// TCP brings what was unread in the ring, and none of it has come yet.
    Brings,
    /// The stream is recalled, the peer has not answered yet, and nothing has come.
    Asked,
    /// The peer is in the middle of withdrawing what is there.
    Withdrawn,
    /// The bytes are now elsewhere: the caller tries again there.
    Moved,
    /// Something has come by TCP of which the peer knows nothing.
    Stray,
}
