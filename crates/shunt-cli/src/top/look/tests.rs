use std::process::Command;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use shunt_abi::message::{Kind, MESSAGE_BYTES};
use zerocopy::IntoBytes as _;

use super::*;
use crate::control::Control;
use crate::ss::connection::connection;
use crate::ss::connection::tests::{detail, row};

/// Whoever looks asks a daemon that answers so often, and has one connection, which has moved a kilobyte more each time.
fn looker(delay: Duration, answers: usize) -> Looker {
    let kind = SocketType::SEQPACKET;
    let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let (own, daemon) = pair.unwrap();
    std::thread::spawn(move || {
        let mut row = row();
        for _ in 0..answers {
            recv(&daemon, &mut [0; MESSAGE_BYTES][..], RecvFlags::empty()).unwrap();
            row.bytes[0][0] += 1000;
            for message in [row, Message::new(Kind::End)] {
                send(&daemon, message.as_bytes(), SendFlags::NOSIGNAL).unwrap();
            }
        }
    });
    Looker {
        source: Source::of(Control::at_other_end(own)),
        ..Looker::new(delay)
    }
}

#[test]
fn looks_are_told_when_a_screen_is_due_and_the_others_with_them() {
    let mut looker = looker(Duration::from_millis(200), 4);
    let first = looker.next().unwrap().unwrap();
    assert_eq!((first.connections.len(), first.glances.len()), (1, 0));
    assert!(looker.next().is_none() && looker.next().is_none());
    let second = looker.next().unwrap().unwrap();
    let key = key(&second.connections[0]);
    let [from, to] = [&first, &second].map(|look| moved(ways(&look.connections[0])));
    let seen = second.glances.iter().map(|glance| glance.moved[&key]);
    assert_eq!(seen.collect::<Vec<_>>(), [from + 1000.0, from + 2000.0]);
    assert_eq!(to, from + 3000.0);
}

#[test]
fn a_look_after_one_that_has_found_nothing_is_told_at_once() {
    let mut looker = looker(Duration::from_millis(100), 3);
    assert!(looker.next().is_some() && looker.next().is_none());
    looker.shown = None;
    assert!(looker.next().is_some());
}

#[test]
fn a_look_long_after_the_last_screen_is_told() {
    let mut looker = looker(Duration::from_millis(100), 3);
    assert!(looker.next().is_some() && looker.next().is_none());
    looker.shown = Instant::now().checked_sub(LATE);
    assert_eq!(looker.next().unwrap().unwrap().glances.len(), 1);
}

#[test]
fn looks_that_are_far_apart_are_all_shown() {
    let looks = |millis| Looker::new(Duration::from_millis(millis)).looks;
    assert_eq!([10, 100, 300, 500, 1000].map(looks), [50, 5, 2, 1, 1]);
    assert_eq!(Looker::new(Duration::MAX).looks, 1);
}

#[test]
fn each_look_is_a_bar_and_numbers_are_of_all_since_the_last_screen() {
    let connection = |moved: u64| {
        let mut row = row();
        row.pids = [7, 8];
        row.bytes = [[moved, 0], [0; 2]];
        connection(&row, None)
    };
    let from = Instant::now();
    let at = |second| from + Duration::from_secs(second);
    let seen = |second, moved: &[f64]| Glance {
        at: at(second),
        moved: moved
            .iter()
            .map(|moved| (key(&connection(0)), *moved))
            .collect(),
    };
    // One has not seen it.
    let glances = [seen(1, &[40.0]), seen(2, &[]), seen(4, &[100.0])];
    let look = |before: (Vec<Flow>, Vec<Program>), moved, to, glances| {
        let span = Span { from, to, glances };
        let flows = flows(before.0, vec![connection(moved)], &span);
        let programs = programs(&flows, before.1, [&HashMap::new(); 2], &span);
        (flows, programs)
    };
    let first = look((Vec::new(), Vec::new()), 10, from, &[]);
    let (flows, programs) = look(first, 130, at(5), &glances);
    assert_eq!(flows[0].past, [30, 30, 0, 30]);
    assert_eq!(flows[0].rates.unwrap().both(), 24.0);
    let server = programs.iter().find(|program| program.who.pid == Some(7));
    let past = server.unwrap().past.iter().copied();
    assert_eq!(past.collect::<Vec<_>>(), [30, 30, 0, 30, 0]);
}

#[test]
fn processor_time_is_that_of_the_same_process() {
    let stat = "7 (a) b) S 1 1 1 0 -1 4194560 9 9 9 9 120 30 0 0 20 0";
    assert_eq!(ticks(stat, "a) b"), Some(150));
    assert_eq!(ticks(stat, "other"), None);
    assert_eq!(ticks("", ""), None);
    let own = std::process::id();
    assert!(
        Looker::default()
            .worked(own, "no such name", None)
            .is_none()
    );
}

#[test]
fn the_file_of_a_process_is_opened_once_and_tells_of_no_other_one() {
    let mut looker = Looker::default();
    let own = std::process::id();
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    let comm = comm.trim_end();
    assert!(looker.worked(own, comm, None).is_some());
    let file = looker.files.remove(&own).unwrap();
    // By this flag, which changes nothing here, the open file is known again.
    fcntl_setfl(&file, OFlags::NONBLOCK).unwrap();
    assert!(looker.worked(own, comm, Some(file)).is_some());
    let flags = fcntl_getfl(&looker.files[&own]).unwrap();
    assert!(flags.contains(OFlags::NONBLOCK));
    // That of a process which has ended says nothing: another one may have its number.
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let ended = File::open(format!("/proc/{}/stat", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ticks_in(&ended, "sleep"), None);
    assert!(looker.worked(own, comm, Some(ended)).is_some());
}

/// Two looks, two seconds apart.
fn between(before: Connection, now: Connection) -> Rates {
    let from = Instant::now();
    let span = Span {
        from,
        to: from + Duration::from_secs(2),
        glances: &[],
    };
    let before = flows(Vec::new(), vec![before], &span);
    assert_eq!(before[0].rates, None);
    let now = flows(before, vec![now], &span);
    assert_eq!(now[0].past.len(), 1);
    now[0].rates.unwrap()
}

#[test]
fn rates_are_per_second_and_by_direction() {
    let mut row = row();
    row.pids = [7, 8];
    let before = connection(&row, Some(&detail()));
    row.bytes = [[17, 1], [0, 4]];
    let mut later = detail();
    later.ends[0].sent[0] += 6;
    later.ends[1].sent[1] += 2;
    later.ends[1].sleeps += 1;
    let rates = between(before, connection(&row, Some(&later)));
    assert_eq!(rates.bytes, [[5.0, 0.0], [0.0, 2.0]]);
    assert_eq!(rates.messages, [Some(3.0), Some(1.0)]);
    assert_eq!(rates.calls, [3.0, 1.0]);
    assert_eq!(rates.sleeps, [Some(0.0), Some(0.5)]);
}

#[test]
fn a_connection_that_has_counted_less_is_another_one() {
    let row = row();
    let mut smaller = row;
    smaller.bytes = [[0; 2]; 2];
    let rates = between(connection(&row, None), connection(&smaller, None));
    assert_eq!(rates.both(), 0.0);
    assert_eq!(rates.messages, [None; 2]);
}

#[test]
fn messages_of_an_unknown_sender_are_those_received() {
    let mut row = row();
    let mut later = detail();
    later.ends[0].received[0] += 8;
    let [before, now] = [detail(), later].map(|detail| connection(&row, Some(&detail)));
    assert_eq!(between(before, now).messages, [Some(0.0), Some(4.0)]);
    // Bytes that nobody's calls have moved: calls are not counted.
    let before = connection(&row, Some(&detail()));
    row.bytes[0][1] += 9;
    let now = connection(&row, Some(&detail()));
    assert_eq!(between(before, now).messages, [None; 2]);
}
