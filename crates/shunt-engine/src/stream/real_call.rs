//! Real calls that send, which the program makes and the kernel alone can serve.

use super::Conn;
use super::errors::is_over;
use super::owed;
use super::send::{enter_kernel, leave_kernel, send};
use crate::config::hesitate;
use crate::thread::give;
use crate::{Outcome, real};

/// Makes a real call that sends, after what the peer has recalled has been sent. The direction cannot switch during
/// the call. `None`: it is on the ring, and no call was made.
pub(super) fn by_kernel(conn: &Conn, call: impl FnOnce() -> isize) -> Option<Outcome> {
    let token = &conn.pair.own.sending.token;
    loop {
        if !conn.take(token) {
            return Some(Outcome::Fail(libc::EAGAIN));
        }
        if !owed::is_due(conn) || !owed::pay(conn).is_open() {
            break;
        }
        give(token);
        // A send of no bytes waits until that is sent, if it may. SAFETY: no bytes.
        match unsafe { send(conn, &[], libc::MSG_NOSIGNAL) } {
            Outcome::Done(_) => {}
            other => return Some(other),
        }
    }
    let on_ring = conn.is_on_ring() && !is_over(conn);
    if !on_ring {
        enter_kernel(conn);
    }
    give(token);
    if on_ring {
        return None;
    }
    hesitate();
    let sent = real::quietly(call);
    hesitate();
    leave_kernel(conn);
    Some(sent.map_or_else(Outcome::Fail, Outcome::Done))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use shunt_shm::publish;
    use shunt_shm::slot;

    use super::*;
    use crate::both_ends::BothEnds;
    use crate::{sys, wake};

    #[test]
    fn a_call_of_the_kernels_waits_for_what_the_peer_recalls_if_it_may() {
        let ends = BothEnds::attached();
        let [conn, peer] = &ends.conns();
        ends.send(b"x");
        assert_eq!(ends.receive::<1>(), b"x");
        // The peer is in the middle of its recall, for longer than anybody waits for one that runs.
        publish::set_bits(&peer.pair.own.face.state, slot::RECALLED);
        conn.socket.hints.note_recall(true);
        assert!(owed::is_due(conn) && owed::cannot_send(conn));
        let asleep = || conn.pair.own.face.wait.load(Ordering::Acquire) & slot::WAIT_TX != 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !asleep() {
                    std::thread::yield_now();
                }
                let stage = &peer.pair.own.recall.stage;
                stage.store(slot::Recall::ASKED, Ordering::Release);
                wake::wake_all();
            });
            let sent = by_kernel(conn, || sys::send(conn.fd, b"y").unwrap() as isize);
            assert_eq!(sent, Some(Outcome::Done(1)));
        });
    }
}
