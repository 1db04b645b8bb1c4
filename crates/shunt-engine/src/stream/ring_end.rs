//! The end of our ring.

use super::conn::Conn;
use super::errors::abort;

/// Ends the ring: the stream goes on by TCP at that offset of it. With the sending token.
pub(super) fn end_ring(conn: &Conn, offset: u64) {
    let ended = conn.sender().leave(offset, |at| conn.producer().leave(at));
    if ended.is_err() {
        abort(conn);
    }
}
