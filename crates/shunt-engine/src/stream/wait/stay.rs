//! A call that goes on although the last descriptor has been closed under it.

use libc::c_int;

use crate::hold::Taken;
use crate::socket::Socket;
use crate::stream::{Conn, close};

/// What it has taken over, if anything: the connection's descriptor, and a hold of it. No
/// destructor: a cancelled thread runs none.
#[derive(Default)]
pub(in crate::stream) struct Stay(Option<Goes>);

/// See [`Stay`].
#[derive(Clone, Copy)]
pub(super) struct Goes {
    socket: &'static Socket,
    fd: c_int,
    since: Taken,
}

impl Stay {
    /// The descriptor by which it goes on.
    #[inline(always)]
    pub(in crate::stream) fn fd(&self) -> Option<c_int> {
        self.0.map(|goes| goes.fd)
    }

    /// Looks whether it has been closed.
    pub(super) fn look(&mut self, conn: &Conn) {
        if self.0.is_none()
            && let Some(fd) = conn.socket.handed.take()
        {
            conn.socket.hold();
            self.0 = Some(Goes {
                socket: conn.socket,
                fd,
                since: Taken::now(),
            });
        }
    }

    /// The call ends.
    #[inline(always)]
    pub(in crate::stream) fn leave(self) {
        if let Some(goes) = self.0 {
            goes.leave();
        }
    }

    /// For a thread that may be cancelled.
    pub(in crate::stream) fn leaver(&self) -> impl Fn() + use<> {
        let goes = self.0;
        move || {
            if let Some(goes) = goes {
                goes.leave();
            }
        }
    }
}

impl Goes {
    #[cold]
    fn leave(self) {
        if !self.since.lasts() {
            return;
        }
        close::leave_handed(self.socket);
        self.socket.unhold();
    }
}
