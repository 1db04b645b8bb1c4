//! From a kernel connection to a shunted one: when to ask, when to attach.
//!
//! A `connect` that does not block has begun once it says `EINPROGRESS` (`life/connection.rs`): from there on its connection is
//! like any other, and is asked for before it is known whether it comes about.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::message::Role;
use shunt_shm::slot;

use crate::config::{self, GIVEN_UP_AFTER, LIVES_AFTER, Upgrade};
use crate::epoll::Known;
use crate::socket::{Locked, Socket, Stage};
use crate::sys::address::{self, Names};
use crate::{control, sys, tcp};

mod again;
mod attach;
mod ends;
pub(crate) mod sync;
pub(crate) mod trial;
mod worth;

pub(crate) use again::may_return;
use attach::attach_paired;
use ends::{Ends, ends};
use worth::is_eager;
pub(crate) use worth::note_end;
/// After this many calls a connection is claimed although claims of connections from afar come to nothing just now.
const AFAR_AFTER: u32 = 64 * LIVES_AFTER;
/// A fast connection makes many calls before a daemon that gets no processor has answered. Where an answer may
/// still come, it is awaited for this many calls.
const LATE_AFTER: u32 = 64 * GIVEN_UP_AFTER;
/// Between two looks for somebody to be paired with a connection makes an eighth of the calls that it has made, but no more
/// than this.
const LONGEST_PAUSE: u32 = GIVEN_UP_AFTER / 8;
/// After this many calls the first connection of a forked child is claimed. The child has to come to the daemon for it, and to make memory:
/// that takes a millisecond, as much as some fifty exchanges save, and a server that forks for each connection has many that end sooner.
const WORTH_A_START: u32 = 32 * LIVES_AFTER;
/// At one in this many calls on a claimed connection the library looks whether the daemon that has the claim lives.
const LOOK_EVERY: u32 = 16;

/// A socket is about to connect to `port`, or has been accepted.
pub(crate) fn consider(socket: &'static Socket, fd: c_int, role: Role, port: Option<u16>) {
    socket.forget_peer();
    socket.completed.store(false, Ordering::Relaxed);
    socket.set_role(role);
    socket.set_port(port.unwrap_or(0));
    let needs_kernel = socket.settings.needs_kernel.load(Ordering::Relaxed);
    let against = config::against()
        .or((fd <= 2).then_some(Reason::Stdio))
        .or(needs_kernel.then_some(Reason::SocketOption));
    if let Some(reason) = against {
        socket.set_plain(Stage::Fresh, reason);
        return;
    }
    let eager = is_eager() || socket.tries();
    let after = if eager { 0 } else { LIVES_AFTER };
    socket.claim_after.store(after, Ordering::Relaxed);
    // Until it has shown that it will live, nobody need be asked for it.
    let alone = eager.then(|| alone(socket)).flatten();
    match alone {
        Some(reason) if is_for_now(reason) => socket.set_reason(reason),
        Some(reason) => {
            socket.set_plain(Stage::Fresh, reason);
            return;
        }
        None => socket.set_reason(Reason::Pending),
    }
    socket.move_on(Stage::Fresh, Stage::Candidate);
    if eager && alone.is_none() {
        ask_at_once(socket, fd, role);
    }
}

/// Whether this reason may pass soon, so that later calls look again for somebody to pair the connection with.
fn is_for_now(reason: Reason) -> bool {
    match reason {
        // The acceptor may be in another namespace: once it has claimed the connection, the board lists the port.
        Reason::PeerPlain => control::crosses() || control::is_fresh(),
        // The daemon was killed or is late: its successor may come.
        Reason::NoDaemon => control::has_been_served(),
        // The daemon has been greeted just now, and has not answered.
        Reason::Pending => true,
        _ => false,
    }
}

/// Takes on a connection that another program or process has made.
pub(crate) fn adopt(socket: &'static Socket) {
    if let Some(reason) = config::against() {
        socket.set_plain(Stage::Fresh, reason);
        return;
    }
    socket.adopted.store(true, Ordering::Relaxed);
    socket.move_on(Stage::Fresh, Stage::Candidate);
}

/// Why the socket can be paired with nobody as far as is known now; `None`: nothing speaks against
/// it. That may change: the kernel knows of a `listen` sooner than the daemon, which may be slow.
fn alone(socket: &Socket) -> Option<Reason> {
    if socket.share.is_shared() {
        Some(Reason::Forked)
    } else if !knows_daemon() {
        Some(control::why_not())
    } else if socket.role() == Role::Connector
        // The listener that another program connected it to may be gone by now.
        && !socket.adopted.load(Ordering::Relaxed)
        && !control::accelerates(socket.port())
    {
        Some(Reason::PeerPlain)
    } else {
        None
    }
}

/// Whether there is a daemon to ask. A connection that is claimed at once waits a little for it.
fn knows_daemon() -> bool {
    if is_eager() {
        control::ensure()
    } else {
        control::ensure_without_waiting()
    }
}

/// Whether this process is a forked child that has not come to the daemon, and this is the first of its connections that lives. With
/// another one it is no child of one connection.
fn is_first_of_child(socket: &Socket) -> bool {
    config::upgrade() == Upgrade::Adaptive && control::is_to_come_for(socket.index())
}

/// Asks the daemon for a pairing. A connector asks before it connects, so that
/// the acceptor, whenever it looks, finds its claim.
fn ask_at_once(socket: &'static Socket, fd: c_int, role: Role) {
    if role == Role::Connector {
        if know_cookie(socket, fd) {
            control::claim(socket, fd, None);
            trial::await_said(socket);
        }
        return;
    }
    match ends(fd) {
        // Only the next call on the socket attaches it. So a server that only hands it over to
        // another program passes on a socket that has never left the kernel.
        Ok(ends) if is_put_off(socket, &ends) => {}
        Ok(Ends { names, is_local }) if know_cookie(socket, fd) => {
            if is_local {
                claim_and_wait(socket, fd, names);
            } else {
                // Most likely it comes from another host: the call does not wait for that answer.
                control::claim(socket, fd, Some(names));
            }
        }
        Ok(_) => {}
        Err(reason) => {
            socket.set_plain(Stage::Candidate, reason);
        }
    }
}

/// Whether the connection is claimed only if it lives for long: its other end is most likely on another
/// host, as those of many connections before were.
fn is_put_off(socket: &Socket, ends: &Ends) -> bool {
    socket.afar.store(!ends.is_local, Ordering::Relaxed);
    let is_put_off = !ends.is_local && !control::AFAR.pays();
    if is_put_off {
        socket.claim_after.store(AFAR_AFTER, Ordering::Relaxed);
    }
    is_put_off
}

/// Asks for a pairing, and waits for the daemon's answer as long as the mode says.
fn claim_and_wait(socket: &'static Socket, fd: c_int, names: Names) {
    if config::upgrade() == Upgrade::Sync {
        control::claim_patiently(socket, fd, names, sync::longest());
    } else {
        control::claim_now(socket, fd, names);
    }
}

/// Asks the kernel for the name by which the daemon knows a socket. `false`: there is none, and
/// the socket is plain.
fn know_cookie(socket: &Socket, fd: c_int) -> bool {
    match sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) {
        Ok(cookie) => {
            socket.set_cookie(cookie);
            true
        }
        Err(_) => {
            socket.set_plain(Stage::Candidate, Reason::NotEstablished);
            false
        }
    }
}

/// Counts a data call on a socket that is not attached. `true`: the socket stays in its stage, and nothing else is due.
#[inline(always)]
pub(crate) fn stays(socket: &Socket) -> bool {
    match socket.stage() {
        Stage::Claimed => {
            let calls = socket.calls.load(Ordering::Relaxed).saturating_add(1);
            socket.calls.store(calls, Ordering::Relaxed);
            let is_look_due = calls.is_multiple_of(LOOK_EVERY);
            !control::has_mail() && !is_look_due && !sync::is_due(socket)
        }
        Stage::Candidate => {
            let calls = socket.calls.load(Ordering::Relaxed).saturating_add(1);
            let stays = calls < socket.claim_after();
            if stays {
                socket.calls.store(calls, Ordering::Relaxed);
            }
            stays
        }
        _ => false,
    }
}

/// A data or readiness call on a socket that is not attached: counts it, and
/// moves the socket on if it can be. `true` if it is attached now.
#[cold]
pub(crate) fn progress(socket: &'static Socket, fd: c_int, known: Known) -> bool {
    match socket.stage() {
        Stage::Attached => true,
        Stage::Candidate => {
            let calls = socket.calls.load(Ordering::Relaxed).saturating_add(1);
            socket.calls.store(calls, Ordering::Relaxed);
            // A connection that the parent has connected is not counted as this process's own.
            let ours = socket.is_connected()
                || socket.adopted.load(Ordering::Relaxed)
                || !socket.share.is_unknown();
            if calls >= socket.claim_after()
                && ours
                && let Some(locked) = socket.try_lock()
                && socket.stage() == Stage::Candidate
            {
                move_candidate(&locked, fd, calls);
            }
            false
        }
        Stage::Claimed => {
            sync::complete(socket, fd);
            control::check_mail();
            control::look();
            socket.stage() == Stage::Paired && attach_paired(socket, fd, known)
        }
        Stage::Paired => attach_paired(socket, fd, known),
        _ => false,
    }
}

/// Finds out the role of a connection that another program has made, when it is due to be claimed. `false`: not yet.
fn know_adopted(socket: &'static Socket, fd: c_int) -> bool {
    let names = |fd| Socket::of(fd).is_some_and(|s| std::ptr::eq(s, socket));
    if names(2) || (0..=1).any(names) && sys::are_streams_in_reach() {
        socket.set_reason(Reason::Stdio);
        socket.put_off();
        return false;
    }
    let Some(role) = tcp::role(fd) else {
        socket.set_reason(Reason::NotEstablished);
        socket.put_off();
        return false;
    };
    socket.set_role(role);
    if role == Role::Connector
        && let Ok(peer) = sys::name(fd, true)
    {
        socket.set_port(address::parts(&peer).1);
    }
    true
}

/// Before a fork: leaves the upgrade to the process that will have the connection alone. `false`: that cannot be done.
pub(crate) fn share(socket: &'static Socket) -> bool {
    let Some(socket) = socket.lock() else {
        return false;
    };
    match socket.stage() {
        // A claim that has been made stays this process's.
        Stage::Candidate | Stage::Claimed => socket.share.before_fork(),
        // No process honours its rings before one has it alone.
        Stage::Paired if socket.items.is_empty() => share_pair(&socket),
        _ => false,
    }
}

fn share_pair(socket: &Socket) -> bool {
    let Some(pair) = socket.pair() else {
        return false;
    };
    let shared = socket.share.before_fork();
    if shared {
        let forked = &pair.own.options.forked;
        forked.store(slot::SHARED, Ordering::Release);
    }
    shared
}

/// At which call a connection that can be paired with nobody looks again, after `calls` of them. `None`: it has made
/// `most` calls, and looks no more.
fn next_look(calls: u32, most: u32) -> Option<u32> {
    let pause = 1 + (calls / 8).min(LONGEST_PAUSE);
    (calls < most).then(|| calls + pause)
}

/// A connection that lives: asks for a pairing, if there may be somebody.
fn move_candidate(locked: &Locked, fd: c_int, calls: u32) {
    let socket = locked.socket;
    if !socket.share.is_shared() {
        // Not earlier: a process that shares it may be confined to few system calls.
        if socket.adopted.load(Ordering::Relaxed) && !know_adopted(socket, fd) {
            return;
        }
        // Also if the parent has connected it.
        socket.set_connected(true);
        if calls < WORTH_A_START && is_first_of_child(socket) {
            socket.set_reason(Reason::Pending);
            socket.claim_after.store(WORTH_A_START, Ordering::Relaxed);
            return;
        }
    }
    if let Some(reason) = alone(socket) {
        // A peer that is on TCP stays there: no late answer is expected of it.
        let may_come = reason != Reason::PeerPlain && is_for_now(reason);
        let most = match may_come {
            _ if control::is_fresh() => u32::MAX,
            true => LATE_AFTER,
            false => GIVEN_UP_AFTER,
        };
        if let Some(next) = next_look(calls, most) {
            socket.set_reason(reason);
            socket.claim_after.store(next, Ordering::Relaxed);
        } else {
            socket.set_plain(Stage::Candidate, reason);
        }
        return;
    }
    socket.set_reason(Reason::Pending);
    match ends(fd) {
        Ok(ends) if calls < AFAR_AFTER && is_put_off(socket, &ends) => {}
        Ok(Ends { names, .. }) if know_cookie(socket, fd) => {
            control::claim(socket, fd, Some(names));
        }
        Ok(_) => {}
        Err(reason) => {
            socket.set_plain(Stage::Candidate, reason);
        }
    }
}

/// Another program will have the connection, too: it is paired only when that program has it no
/// more. `false`: it is no candidate.
pub(crate) fn share_with_program(socket: &'static Socket) -> bool {
    if socket.stage() != Stage::Candidate {
        return false;
    }
    let still = |socket: &Locked| socket.stage() == Stage::Candidate;
    let Some(socket) = socket.lock().filter(still) else {
        return false;
    };
    socket.adopted.store(true, Ordering::Relaxed);
    socket.set_reason(Reason::Inherited);
    true
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::one_at_a_time;
    use crate::hold::Held;
    use crate::table::{self, Word};

    /// What becomes of a socket that has just been accepted.
    fn accepted(needs_kernel: bool) -> (Stage, Reason) {
        let _alone = one_at_a_time();
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        let socket = Socket::enter(fd, Stage::Fresh).unwrap();
        socket
            .settings
            .needs_kernel
            .store(needs_kernel, Ordering::Relaxed);
        consider(socket, fd, Role::Acceptor, None);
        let became = (socket.stage(), socket.reason());
        table::enter(fd, Word::NOTHING);
        socket.unhold();
        sys::close(fd);
        became
    }

    #[test]
    fn a_socket_that_needs_the_kernel_is_no_candidate() {
        assert_eq!(accepted(false), (Stage::Candidate, Reason::Pending));
        assert_eq!(accepted(true), (Stage::Plain, Reason::SocketOption));
    }

    #[test]
    fn what_comes_from_another_process_is_a_candidate_and_known_to_come_from_there() {
        let _alone = one_at_a_time();
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        let socket = Socket::enter(fd, Stage::Fresh).unwrap();
        adopt(socket);
        assert_eq!(socket.stage(), Stage::Candidate);
        assert!(socket.adopted.load(Ordering::Relaxed));
        table::enter(fd, Word::NOTHING);
        socket.unhold();
        sys::close(fd);
    }

    /// How often a connection looks that can be paired with nobody, and after how many calls the last time.
    fn looks(most: u32) -> (u32, u32) {
        let (mut calls, mut looks) = (LIVES_AFTER, 0);
        while let Some(next) = next_look(calls, most) {
            calls = next;
            looks += 1;
        }
        (looks, calls)
    }

    #[test]
    fn a_connection_looks_less_and_less_for_somebody_to_be_paired_with_but_not_for_ever() {
        assert_eq!(
            next_look(LIVES_AFTER, GIVEN_UP_AFTER),
            Some(LIVES_AFTER + 1)
        );
        assert_eq!(next_look(80, GIVEN_UP_AFTER), Some(91));
        assert_eq!(next_look(GIVEN_UP_AFTER, GIVEN_UP_AFTER), None);
        let (looks, calls) = looks(GIVEN_UP_AFTER);
        assert!(
            looks < 70 && calls < GIVEN_UP_AFTER * 9 / 8 + 1,
            "{looks} {calls}"
        );
    }

    #[test]
    fn it_looks_longer_where_a_late_daemon_may_say_something() {
        let (looks, calls) = looks(LATE_AFTER);
        assert!((500..600).contains(&looks), "{looks}");
        assert!((LATE_AFTER..=LATE_AFTER + LONGEST_PAUSE).contains(&calls));
    }
}
