//! One connection's history, from what its ends count and who has them.

use shunt_abi::Reason;

use super::seen::Seen;
use super::sockets::Side;
use super::{Story, advice};
use crate::process::Process;
use crate::ss::Connection;
use crate::ss::connection::{Left, Way};
use crate::ss::table::{age, who};

pub(super) fn of(connection: Connection, seen: &mut Seen) -> Story {
    let mut history = vec![ends(&connection)];
    history.extend(connection.age_seconds.map(|seconds| {
        let age = age(seconds);
        format!("One of them has had it for {age} or longer.")
    }));
    history.push(way(&connection));
    history.extend(connection.left.as_ref().map(left));
    let mut todo = None;
    if let (Some(name), Some(why)) = (&connection.reason, connection.why) {
        history.push(format!("{name}: {why}"));
        let reason = known(name);
        todo = match reason {
            // shuntd has told of the connection just now.
            Some(Reason::NoDaemon | Reason::DaemonLost) => Some(AGAIN.to_owned()),
            _ => reason.and_then(advice::of).map(str::to_owned),
        };
    }
    if connection.path == "tcp" {
        history.extend(own_reasons(&connection));
        if let Some(other) = unknown_end(&connection, seen) {
            let finding = other.finding();
            let who = who(&other.comm, Some(other.pid));
            history.push(format!("{who}, which has the other end, {}.", finding.what));
            todo = match finding.advice {
                // What is advised for the reason has been done.
                None if other.is_under_shunt() && is_plain(&connection) => {
                    history.push(OWN_REASON.to_owned());
                    None
                }
                None => todo.filter(|_| other.is_under_shunt()),
                advice => advice,
            };
        } else if waits_in_vain(&connection) {
            todo = Some(IN_VAIN.to_owned());
        }
        let remarks = connection.processes.iter().filter_map(|process| {
            let process = seen.process(process.pid?)?;
            Some(format!(
                "{} {}.",
                who(&process.comm, Some(process.pid)),
                process.remark()?.what
            ))
        });
        history.extend(remarks);
    }
    Story {
        connection,
        history,
        advice: todo,
    }
}

const AGAIN: &str =
    "nothing: a shuntd answers now, and the connection is looked at again after some more calls";

/// Of a program that has settled for TCP before it needed shuntd.
const OWN_REASON: &str = "It stays on TCP for a reason of its own, of which it has told nobody; `shunt run --stats FILE` has it tell.";

fn is_plain(c: &Connection) -> bool {
    c.reason.as_deref() == Some(Reason::PeerPlain.name())
}

/// Seconds: the other end would have asked for the pairing by then.
const LONG: u32 = 3;
const IN_VAIN: &str = "run the program at the other end by `shunt run`, too; if that is a proxy (docker-proxy), let its client go past it";

/// Whether one end waits to be paired, and nothing is known of the other one although the connection is not new.
fn waits_in_vain(c: &Connection) -> bool {
    c.processes.len() == 1
        && c.reason.as_deref() == Some(Reason::Pending.name())
        && c.age_seconds.is_some_and(|age| age >= LONG)
}

fn known(name: &str) -> Option<Reason> {
    Reason::ALL
        .iter()
        .copied()
        .find(|reason| reason.name() == name)
}

fn ends(c: &Connection) -> String {
    let end = |name| {
        let found = c.processes.iter().find(|process| process.end == name);
        found.map_or("a program that shuntd does not know".to_owned(), |p| {
            who(&p.comm, p.pid)
        })
    };
    format!("Accepted by {}, made by {}.", end("server"), end("client"))
}

/// Which way the bytes have gone, in the order in which that must have been.
fn way(c: &Connection) -> String {
    let sum =
        |part: fn(Way) -> u64| part(c.bytes.to_client).saturating_add(part(c.bytes.to_server));
    let (ring, kernel) = (sum(|way| way.ring), sum(|way| way.kernel));
    match (c.path, ring) {
        ("shm", _) => {
            format!("Its bytes move through shared memory: {ring} so far, and {kernel} by TCP.")
        }
        ("rdma", _) => {
            format!("Its bytes move by RDMA to another host: {ring} so far, and {kernel} by TCP.")
        }
        (_, 0) => format!("Its bytes have moved by TCP only: {kernel} so far."),
        _ => format!(
            "It was in shared memory for {ring} bytes and went back to TCP, which has moved {kernel}, before and after."
        ),
    }
}

/// How often it has gone to TCP, and why the last time.
fn left(left: &Left) -> String {
    let times = match left.times {
        1 => "once, ".to_owned(),
        times => format!("{times} times, the last time "),
    };
    let reason = left.reason.as_deref();
    let why = reason.map_or(".".to_owned(), |name| match known(name) {
        Some(reason) => format!(": {name}, {}", reason.text()),
        None => format!(": {name}."),
    });
    let ago = age(left.seconds_ago);
    format!("It went to TCP {times}{ago} ago{why}")
}

/// What each end says, where that is another reason than the connection's.
fn own_reasons(c: &Connection) -> Vec<String> {
    let others = c.processes.iter().filter(|p| p.reason != c.reason);
    let said = others.filter_map(|process| {
        let reason = known(process.reason.as_deref()?).filter(|r| !r.is_provisional())?;
        let who = who(&process.comm, process.pid);
        Some(format!("{who} says {}: {}", reason.name(), reason.text()))
    });
    said.collect()
}

/// Who has the end that shuntd knows nobody of, if we find that out.
fn unknown_end<'a>(c: &Connection, seen: &'a mut Seen) -> Option<&'a Process> {
    let [known] = &c.processes[..] else {
        return None;
    };
    let wanted = match known.end {
        "server" => Side {
            local: c.peer,
            peer: c.local,
        },
        _ => Side {
            local: c.local,
            peer: c.peer,
        },
    };
    let holders = seen.sockets.holders(known.pid, &wanted);
    seen.process(*holders.first()?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::ss::connection::connection;
    use crate::ss::connection::tests::{detail, row};
    use shunt_abi::message::{FLAG_REACHES, FLAG_SHUNTED};

    #[test]
    fn a_connection_in_shared_memory_needs_nothing() {
        let mut row = row();
        row.flags = FLAG_SHUNTED;
        let story = of(connection(&row, Some(&detail())), &mut Seen::default());
        assert_eq!(
            story.history,
            [
                "Accepted by re?is/7, made by a program that shuntd does not know.",
                "One of them has had it for 1h01m or longer.",
                "Its bytes move through shared memory: 7 so far, and 1 by TCP.",
            ]
        );
        assert_eq!(story.advice, None);
    }

    #[test]
    fn what_has_been_on_tcp_says_how_often_and_why() {
        let mut row = row();
        row.flags = FLAG_SHUNTED;
        let mut detail = detail();
        (detail.left, detail.left_ago) = (2, 61);
        detail.ends[0].left_for = Reason::Requested as u8;
        let story = of(connection(&row, Some(&detail)), &mut Seen::default());
        let text = Reason::Requested.text();
        let wanted = format!("It went to TCP 2 times, the last time 1m01s ago: REQUESTED, {text}");
        assert_eq!(story.history[3], wanted);
        (detail.left, detail.ends[0].left_for) = (1, 0);
        let story = of(connection(&row, Some(&detail)), &mut Seen::default());
        assert_eq!(story.history[3], "It went to TCP once, 1m01s ago.");
    }

    #[test]
    fn a_connection_that_went_back_says_so_and_why() {
        let mut row = row();
        row.pids = [0, 0];
        row.status = Reason::Requested as u8;
        let story = of(connection(&row, None), &mut Seen::default());
        assert!(story.history[1].starts_with("It was in shared memory for 7 bytes"));
        assert!(
            story.history[2].starts_with("REQUESTED: "),
            "{:?}",
            story.history
        );
        row.bytes[0][0] = 0;
        let story = of(connection(&row, None), &mut Seen::default());
        assert_eq!(
            story.history[1],
            "Its bytes have moved by TCP only: 1 so far."
        );
    }

    #[test]
    fn a_connection_without_a_daemon_is_tried_again_by_the_one_that_tells_of_it() {
        for reason in [Reason::NoDaemon, Reason::DaemonLost] {
            let mut row = row();
            row.status = reason as u8;
            let advice = of(connection(&row, None), &mut Seen::default())
                .advice
                .unwrap();
            assert!(
                advice.starts_with("nothing: a shuntd answers now"),
                "{advice}"
            );
        }
    }

    #[test]
    fn a_connection_by_rdma_has_not_gone_back() {
        let mut row = row();
        row.flags = FLAG_SHUNTED | FLAG_REACHES;
        row.pids = [std::process::id(), 0];
        let story = of(connection(&row, Some(&detail())), &mut Seen::default());
        assert_eq!(
            story.history[2..],
            ["Its bytes move by RDMA to another host: 7 so far, and 1 by TCP."]
        );
        assert_eq!(story.advice, None);
    }

    #[test]
    fn what_the_other_ends_of_many_connections_are_is_read_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut row = row();
        let ends = [listener.local_addr(), near.local_addr()].map(Result::unwrap);
        for (i, end) in ends.into_iter().enumerate() {
            row.addresses[i][..4].copy_from_slice(&[127, 0, 0, 1]);
            row.ports[i] = end.port();
        }
        row.pids = [std::process::id(), 0];
        row.status = Reason::PeerPlain as u8;
        let mut seen = Seen::default();
        let sentence = ", which has the other end, does not run under Shunt.";
        let mut names_it = || {
            let story = of(connection(&row, None), &mut seen);
            story.history.iter().any(|line| line.contains(sentence))
        };
        assert!(names_it());
        drop(near);
        assert!(names_it());
    }

    #[test]
    fn who_waits_long_for_an_unknown_end_is_told_to_run_that_under_shunt() {
        let mut row = row();
        row.status = Reason::Pending as u8;
        let mut connection = connection(&row, None);
        connection.age_seconds = Some(LONG - 1);
        assert!(connection.processes.len() == 1 && !waits_in_vain(&connection));
        connection.age_seconds = Some(LONG);
        assert!(waits_in_vain(&connection));
        connection.reason = Some(Reason::Held.name().into());
        assert!(!waits_in_vain(&connection));
    }

    #[test]
    fn what_an_end_says_itself_is_told_if_it_is_something_else() {
        let mut row = row();
        row.pids = [7, 8];
        row.status = Reason::Stdio as u8;
        let mut detail = detail();
        detail.ends[0].status = Reason::PeerRefused as u8;
        detail.ends[1].status = Reason::Stdio as u8;
        let said = own_reasons(&connection(&row, Some(&detail)));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("re?is/7 says PEER_REFUSED: "));
    }
}
