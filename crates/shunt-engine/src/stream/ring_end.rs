//! Ends our own ring.

use super::conn::Conn;
use super::errors::abort;

/// Ends the ring: the stream continues over TCP at this offset of TCP. With the sending token.
pub(super) fn end_ring(conn: &Conn, offset: u64) {
    let ended = conn.sender().leave(offset, |at| conn.producer().leave(at));
    if ended.is_err() {
        abort(conn);
    }
}
