//! Connections and listeners, as shuntd tells of them.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use compact_str::CompactString;
use serde::Serialize;
use shunt_abi::Reason;
use shunt_abi::detail::{self, Detail};
use shunt_abi::message::{FLAG_REACHES, FLAG_SHUNTED, Message, comm_text};

use crate::control::Details;

/// A socket that a program under Shunt listens on.
#[derive(Serialize)]
pub(crate) struct Listener {
    pub(crate) local: SocketAddr,
    /// `None`: it lives in a PID namespace that shuntd cannot see.
    pub(crate) pid: Option<u32>,
    pub(crate) comm: CompactString,
    /// Its user, where the process is seen.
    pub(crate) uid: Option<u32>,
    /// As of a [`Process`].
    pub(crate) container: Option<CompactString>,
}

/// Payload by direction.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Bytes {
    /// From the server's end.
    pub(crate) to_client: Way,
    pub(crate) to_server: Way,
}

/// Payload by path.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Way {
    pub(crate) ring: u64,
    pub(crate) kernel: u64,
}

/// Bytes in rings that their receiver has not taken.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Queue {
    pub(crate) to_client: u64,
    pub(crate) to_server: u64,
}

/// Calls by who answered them.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Calls {
    pub(crate) user: u64,
    pub(crate) kernel: u64,
}

/// What one end counts.
#[derive(Clone, Serialize)]
pub(crate) struct Counts {
    /// Calls that sent.
    pub(crate) sent: Calls,
    pub(crate) received: Calls,
    /// Waits that went to sleep.
    pub(crate) sleeps: u64,
    /// Of the whole process: sleepers that it woke, and how often it was woken.
    pub(crate) wakeups_sent: u64,
    pub(crate) wakeups_received: u64,
}

/// One connection, seen from the accepting end.
#[derive(Serialize)]
pub(crate) struct Connection {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Those known to Shunt, the accepting end's first.
    pub(crate) processes: Vec<Process>,
    pub(crate) path: &'static str,
    pub(crate) reason: Option<Cow<'static, str>>,
    /// The reason as a sentence.
    pub(crate) why: Option<&'static str>,
    pub(crate) bytes: Bytes,
    pub(crate) queue: Option<Queue>,
    pub(crate) age_seconds: Option<u32>,
    pub(crate) left: Option<Left>,
}

/// How a connection went from shared memory to TCP, where it may be no more.
#[derive(Clone, Serialize)]
pub(crate) struct Left {
    /// How often it has.
    pub(crate) times: u32,
    /// Since the last time.
    pub(crate) seconds_ago: u32,
    /// Why, the last time.
    pub(crate) reason: Option<Cow<'static, str>>,
}

#[derive(Clone, Serialize)]
pub(crate) struct Process {
    /// `None`: it lives in a PID namespace that shuntd cannot see.
    pub(crate) pid: Option<u32>,
    pub(crate) comm: CompactString,
    /// "server" (it accepted) or "client" (it connected).
    pub(crate) end: &'static str,
    pub(crate) uid: Option<u32>,
    /// What this end says itself; `None`: its bytes move through shared memory.
    pub(crate) reason: Option<Cow<'static, str>>,
    pub(crate) counts: Option<Counts>,
    /// The container that it is in, if the asker may know that.
    pub(crate) container: Option<CompactString>,
}

pub(crate) fn end(row: &Message, i: usize) -> SocketAddr {
    let bytes = row.addresses[i];
    let ip = if row.family == libc::AF_INET as u16 {
        IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
    } else {
        IpAddr::from(bytes)
    };
    SocketAddr::new(ip, row.ports[i])
}

/// A process id, if the daemon sees the process.
fn known(pid: u32) -> Option<u32> {
    (pid != 0).then_some(pid)
}

/// A listener; `user` tells whose a process is.
pub(crate) fn listener(row: &Message, user: impl FnOnce(u32) -> Option<u32>) -> Listener {
    let pid = known(row.pids[0]);
    Listener {
        local: end(row, 0),
        pid,
        comm: comm_text(&row.name).into(),
        uid: pid.and_then(user),
        container: row.containers()[0].take().map(CompactString::from),
    }
}

/// The name of a reason, also of one that this version does not know; `None`: shunted.
fn name(status: u8) -> Option<Cow<'static, str>> {
    let text = || match Reason::from_number(status) {
        Some(reason) => reason.name().into(),
        None => format!("REASON_{status}").into(),
    };
    (status != 0).then(text)
}

/// All connections that daemons tell of, by their addresses. They are large: what they are made of is put in order.
pub(crate) fn in_order(found: &[Details]) -> Vec<Connection> {
    let mut rows: Vec<_> = found.iter().flat_map(|found| &found.connections).collect();
    rows.sort_by_cached_key(|(row, _)| [end(row, 0), end(row, 1)]);
    let rows = rows.into_iter();
    rows.map(|(row, detail)| connection(row, detail.as_ref()))
        .collect()
}

pub(crate) fn connection(row: &Message, detail: Option<&Detail>) -> Connection {
    let way = |i: usize| Way {
        ring: row.bytes[i][0],
        kernel: row.bytes[i][1],
    };
    let shunted = row.flags & FLAG_SHUNTED != 0;
    let [of_server, of_client] = row.containers();
    let ends = [0, 1].map(|i| detail.map(|detail| detail.ends[i]));
    let has_moved = row.bytes.iter().flatten().any(|&bytes| bytes != 0);
    let ends = ends.map(|end| end.map(|end| without_calls(end, has_moved)));
    let processes = [
        process(row.pids[0], &row.name, "server", ends[0], of_server),
        process(row.pids[1], &row.peer_name, "client", ends[1], of_client),
    ];
    let reason = Reason::from_number(row.status).filter(|_| !shunted);
    let counted = |detail: &&Detail| detail.ends.iter().all(|end| end.counted != 0);
    let queue = detail.filter(counted).map(|detail| Queue {
        to_client: detail.ends[1].queued,
        to_server: detail.ends[0].queued,
    });
    Connection {
        local: end(row, 0),
        peer: end(row, 1),
        processes: processes.into_iter().flatten().collect(),
        path: match (shunted, row.flags & FLAG_REACHES != 0) {
            (false, _) => "tcp",
            (true, false) => "shm",
            (true, true) => "rdma",
        },
        reason: name(row.status).filter(|_| !shunted),
        why: reason.map(Reason::text),
        bytes: Bytes {
            to_client: way(0),
            to_server: way(1),
        },
        // What lay in a ring when it went to TCP was sent again there, and is not taken out of the ring.
        queue: queue.filter(|_| shunted && detail.is_some_and(|detail| detail.left == 0)),
        age_seconds: detail.and_then(|detail| given(detail.age)),
        left: detail.and_then(left),
    }
}

fn left(detail: &Detail) -> Option<Left> {
    // The end that went says why; its peer at most that it had to follow.
    let reasons = detail.ends.map(|end| end.left_for);
    let follows = |reason: &u8| {
        [Reason::PeerLeft, Reason::PeerPlain]
            .map(|r| r as u8)
            .contains(reason)
    };
    let given = || reasons.into_iter().filter(|reason| *reason != 0);
    let reason = given()
        .find(|reason| !follows(reason))
        .or_else(|| given().next());
    (detail.left != 0).then(|| Left {
        times: detail.left,
        seconds_ago: detail.left_ago,
        reason: reason.and_then(name),
    })
}

/// An end that has counted no call of a connection which has moved bytes does not count: it is on TCP.
fn without_calls(mut end: detail::End, has_moved: bool) -> detail::End {
    let has_called = end
        .sent
        .iter()
        .chain(&end.received)
        .any(|&calls| calls != 0);
    if has_moved && !has_called {
        end.counted = 0;
    }
    end
}

fn given(number: u32) -> Option<u32> {
    (number != detail::UNKNOWN).then_some(number)
}

fn process(
    pid: u32,
    comm: &[u8; 16],
    end: &'static str,
    detail: Option<detail::End>,
    container: Option<Cow<'_, str>>,
) -> Option<Process> {
    // Who has introduced itself has a name, also where its process is not seen.
    (pid != 0 || comm[0] != 0).then(|| Process {
        pid: known(pid),
        comm: comm_text(comm).into(),
        end,
        uid: detail.and_then(|detail| given(detail.uid)),
        reason: detail.and_then(|detail| name(detail.status)),
        counts: detail.filter(|detail| detail.counted != 0).map(counts),
        container: container.map(CompactString::from),
    })
}

fn counts(end: detail::End) -> Counts {
    let calls = |[user, kernel]: [u64; 2]| Calls { user, kernel };
    Counts {
        sent: calls(end.sent),
        received: calls(end.received),
        sleeps: end.sleeps,
        wakeups_sent: end.wakeups[0],
        wakeups_received: end.wakeups[1],
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use shunt_abi::message::Kind;

    /// A connection of redis (pid 7), which has sent 7 bytes through a ring and one by TCP.
    pub(crate) fn row() -> Message {
        let mut row = Message::new(Kind::Row);
        row.family = libc::AF_INET as u16;
        row.addresses[0][..4].copy_from_slice(&[127, 0, 0, 1]);
        row.addresses[1][..4].copy_from_slice(&[127, 0, 0, 1]);
        row.ports = [6379, 40_000];
        row.pids = [7, 0];
        row.bytes[0] = [7, 1];
        row.name[..5].copy_from_slice(b"re\x1bis");
        row
    }

    /// Counters of both ends, root's and another user's.
    pub(crate) fn detail() -> Detail {
        let mut detail = Detail::unknown();
        detail.age = 3661;
        for (end, uid) in detail.ends.iter_mut().zip([0, 4_000_000]) {
            (end.uid, end.counted, end.sleeps) = (uid, 1, 4);
            (end.sent, end.received, end.wakeups) = ([3, 1], [2, 0], [5, 6]);
        }
        detail.ends[1].queued = 9;
        detail
    }

    #[test]
    fn a_shunted_connection_has_no_reason() {
        let mut row = row();
        row.flags = FLAG_SHUNTED;
        let json = serde_json::to_value(connection(&row, None)).unwrap();
        assert_eq!(json["local"], "127.0.0.1:6379");
        assert_eq!(json["peer"], "127.0.0.1:40000");
        assert_eq!(json["path"], "shm");
        row.flags |= FLAG_REACHES;
        assert_eq!(connection(&row, None).path, "rdma");
        assert!(json["reason"].is_null() && json["why"].is_null());
        assert_eq!(json["bytes"]["to_client"]["ring"], 7);
        assert_eq!(json["bytes"]["to_server"]["kernel"], 0);
        assert_eq!(json["processes"].as_array().unwrap().len(), 1);
        assert!(json["queue"].is_null() && json["age_seconds"].is_null());
    }

    #[test]
    fn who_went_to_tcp_says_why_and_not_who_followed() {
        let mut row = row();
        (row.flags, row.pids) = (FLAG_SHUNTED, [7, 8]);
        let mut detail = detail();
        let shown = connection(&row, Some(&detail));
        assert!(shown.left.is_none() && shown.queue.is_some());
        (detail.left, detail.left_ago) = (2, 60);
        let reasons = [Reason::PeerLeft, Reason::Requested];
        for (end, reason) in detail.ends.iter_mut().zip(reasons) {
            end.left_for = reason as u8;
        }
        assert!(connection(&row, Some(&detail)).queue.is_none());
        let left = connection(&row, Some(&detail)).left.unwrap();
        assert_eq!((left.times, left.seconds_ago), (2, 60));
        assert_eq!(left.reason.as_deref(), Some("REQUESTED"));
    }

    #[test]
    fn a_detail_tells_of_both_ends() {
        let mut row = row();
        (row.flags, row.pids) = (FLAG_SHUNTED, [7, 8]);
        let json = serde_json::to_value(connection(&row, Some(&detail()))).unwrap();
        assert_eq!(json["age_seconds"], 3661);
        assert_eq!(json["queue"]["to_client"], 9);
        let [server, client] = [0, 1].map(|i| &json["processes"][i]);
        assert_eq!(server["uid"], 0);
        assert_eq!(client["uid"], 4_000_000);
        assert_eq!(client["counts"]["sent"]["user"], 3);
        assert_eq!(client["counts"]["wakeups_received"], 6);
        // Bytes that were in a ring have been sent again by TCP.
        (row.flags, row.status) = (0, Reason::Requested as u8);
        let json = serde_json::to_value(connection(&row, Some(&detail()))).unwrap();
        assert!(json["queue"].is_null());
        assert_eq!(json["why"], Reason::Requested.text());
    }
}
