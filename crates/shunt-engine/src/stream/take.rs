//! How a token of a connection is taken, also from a process that died with it.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::slot::{self, Way};
use shunt_shm::token::Token;

use super::conn::Conn;
use super::errors::break_off;
use super::owed;
use super::recv::recount;
use super::tell::News;
use crate::thread::{self, Got};

impl Conn<'_> {
    /// Takes a token of this connection; `false` in a signal handler that
    /// interrupted its holder.
    #[inline(always)]
    pub(crate) fn take(&self, token: &Token) -> bool {
        self.take_while(token, || true)
    }

    /// [`Self::take`] for a caller that waits for a relative which is stopped in the middle of a call only while
    /// `patient` says so.
    #[inline(always)]
    pub(super) fn take_while(&self, token: &Token, patient: impl FnMut() -> bool) -> bool {
        match thread::take_while(token, patient) {
            Got::Token => true,
            Got::Nothing => false,
            Got::FromTheDead => {
                take_over(self, token);
                true
            }
        }
    }

    /// The peer need not pass a barrier with each publication any more.
    pub(crate) fn unfence(&self) {
        let (wait, token) = (&self.pair.own.face.wait, &self.pair.own.receiving.token);
        if wait.load(Ordering::Relaxed) & slot::FENCED != 0 && self.take(token) {
            self.socket.origin.note_fenced(false);
            publish::clear_bits(wait, slot::FENCED);
            thread::give(token);
        }
    }
}

/// With a token that a process which shared the connection held when it died:
/// finishes what it had begun. What a receiver had taken is lost with it. Only if
/// nobody can know how much that was, the connection is broken.
#[cold]
fn take_over(conn: &Conn, token: &Token) {
    let own = conn.pair.own;
    if std::ptr::eq(token, &raw const own.sending.token) {
        owed::finish(conn, conn.producer().repair());
        return;
    }
    if conn.consumer().repair() && recount(conn) {
        conn.receiver().finish(|| conn.unread_in_ring());
        // A peer that has met it in the middle of a recall. Whoever has the other token looks by itself.
        if thread::try_take(&own.sending.token) {
            conn.tell_always(News::Data);
            conn.tell_always(News::Room);
            thread::give(&own.sending.token);
        }
        return;
    }
    conn.socket.set_reason(Reason::HolderDied);
    break_off(conn);
    conn.error().store(libc::ECONNRESET, Ordering::Relaxed);
    Way::TcpAgain.store(&own.sending.way);
    Way::TcpAgain.store(&own.receiving.way);
}
