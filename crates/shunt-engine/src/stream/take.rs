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

    /// [`Self::take`], but a relative that is stopped in the middle of a call is waited for only as long as
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

    /// Tells the peer that it need not pass a full barrier with each publication any more.
    pub(crate) fn unfence(&self) {
        let (wait, token) = (&self.pair.own.face.wait, &self.pair.own.receiving.token);
        if wait.load(Ordering::Relaxed) & slot::FENCED != 0 && self.take(token) {
            self.socket.origin.note_fenced(false);
            publish::clear_bits(wait, slot::FENCED);
            thread::give(token);
        }
    }
}

/// Finishes what a process that shared the connection had begun when it died with this token. Bytes
/// that a dead receiver had taken are lost with it. If nobody can know how many these were, the
/// connection is broken.
#[cold]
fn take_over(conn: &Conn, token: &Token) {
    let own = conn.pair.own;
    if std::ptr::eq(token, &raw const own.sending.token) {
        owed::finish(conn, conn.producer().repair());
        return;
    }
    if conn.consumer().repair() && recount(conn) {
        conn.receiver().finish(|| conn.unread_in_ring());
        // Wakes a peer that has met the dead process in the middle of a recall. (If another thread
        // has the sending token, that one will look.)
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
