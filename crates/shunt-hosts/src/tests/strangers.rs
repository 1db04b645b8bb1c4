//! Who is called, or calls, and is no host that keeps the rules.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustls::Connection;

use super::{WATCHDOG, at, claim, event, events, failed, find, keys, port, setup, start, start_at};
use crate::frame::{Frame, HostId, VERSION};
use crate::key::Keys;
use crate::link::Link;
use crate::tls::Tls;
use crate::{Event, Fault, Hosts, Order};

#[test]
fn who_accepts_and_says_nothing_is_given_up() {
    let (port, first) = port();
    let one = start(port, &keys(), vec![first]);
    let listener = TcpListener::bind((at(2), port)).unwrap();
    one.order(Order::Find(at(2)));
    let _stopped = listener.accept().unwrap();
    let begun = Instant::now();
    assert_eq!(event(&one), failed(Fault::Silent, 2));
    assert!(begun.elapsed() < WATCHDOG / 2);
}

#[test]
fn what_is_no_shuntd_is_known_as_that() {
    let (port, first) = port();
    let one = start(port, &keys(), vec![first]);
    let listener = TcpListener::bind((at(2), port)).unwrap();
    one.order(Order::Find(at(2)));
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap();
    assert_eq!(event(&one), failed(Fault::Protocol, 2));
}

#[test]
fn who_is_not_admitted_is_neither_called_nor_let_in() {
    let (port, first) = port();
    let one = start(port, &keys(), vec![first]);
    assert_eq!(find(&one, 99), failed(Fault::Refused, 99));
    let stranger = TcpStream::connect((at(1), port));
    drop(stranger); // From 127.0.0.1, which is admitted: it says nothing, and goes.
    let mut later = setup(port, &keys(), Vec::new());
    later.listeners = None;
    later.admits = Arc::new(|_| false);
    assert!(matches!(event(&one), Event::TurnedAway { .. }));
    one.order(Order::Configure(later));
    assert_eq!(find(&one, 2), failed(Fault::Refused, 2));
    let mut stranger = TcpStream::connect((at(1), port)).unwrap();
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0);
    let turned = Event::TurnedAway {
        address: at(1),
        fault: Fault::Refused,
    };
    assert_eq!(event(&one), turned);
}

/// A host of the test's own making that has the key: it has been called, and has said Hello.
fn impostor(one: &Hosts, port: u16, keys: &Keys, version: u16) -> (TcpStream, Connection) {
    impostor_by(&Tls::new(keys).unwrap(), one, port, version)
}

fn impostor_by(tls: &Tls, one: &Hosts, port: u16, version: u16) -> (TcpStream, Connection) {
    let listener = TcpListener::bind((at(2), port)).unwrap();
    one.order(Order::Find(at(2)));
    let (mut stream, _) = listener.accept().unwrap();
    let mut tls = tls.answer().unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut stream).unwrap();
    }
    let mut hello = Vec::new();
    let host = HostId([1; 16]);
    Frame::Hello { version, host }.write(&mut hello);
    say(&mut tls, &mut stream, &hello);
    (stream, tls)
}

fn say(tls: &mut Connection, stream: &mut TcpStream, bytes: &[u8]) {
    for part in bytes.chunks(16 << 10) {
        tls.writer().write_all(part).unwrap();
        while tls.wants_write() {
            tls.write_tls(stream).unwrap();
        }
    }
}

/// The next `length` bytes of what the other side says.
fn listen(tls: &mut Connection, stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut at = 0;
    while at < length {
        match tls.reader().read(&mut bytes[at..]) {
            Ok(read) => at += read,
            Err(_) => {
                assert_ne!(tls.read_tls(stream).unwrap(), 0, "closed");
                tls.process_new_packets().unwrap();
            }
        }
    }
    bytes
}

#[test]
fn who_speaks_another_version_is_told_ours() {
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let (mut stream, mut tls) = impostor(&one, port, &keys, VERSION + 1);
    assert_eq!(event(&one), failed(Fault::Version, 2));
    let bytes = listen(&mut tls, &mut stream, 25);
    let (hello, _) = Frame::read(&bytes).unwrap().unwrap();
    assert!(
        matches!(
            hello,
            Frame::Hello {
                version: VERSION,
                ..
            }
        ),
        "{hello:?}"
    );
}

#[test]
fn who_does_not_say_in_tls_what_is_spoken_inside_is_none_of_ours() {
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let tls = Tls::new(&keys).unwrap().for_anything();
    let _stream = impostor_by(&tls, &one, port, VERSION);
    assert_eq!(event(&one), failed(Fault::Protocol, 2));
}

#[test]
fn who_takes_nothing_more_is_lost() {
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let stopped = impostor(&one, port, &keys, VERSION);
    let host = HostId([1; 16]);
    assert!(matches!(event(&one), Event::Found { .. }));
    one.order(Order::Tell(host, claim(1)));
    let fault = Fault::Silent;
    assert_eq!(event(&one), Event::Lost { host, fault });
    drop(stopped);
}

#[test]
fn who_breaks_the_rules_is_lost() {
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let (mut stream, mut tls) = impostor(&one, port, &keys, VERSION);
    assert!(matches!(event(&one), Event::Found { .. }));
    say(&mut tls, &mut stream, b"\x00\x03abc");
    let (host, fault) = (HostId([1; 16]), Fault::Protocol);
    assert_eq!(event(&one), Event::Lost { host, fault });
}

#[test]
fn who_says_too_much_is_heard_later_and_the_others_are_not() {
    /// More than are heard at once, and than may wait for the daemon.
    const MANY: u64 = 25_000;
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let (mut stream, mut tls) = impostor(&one, port, &keys, VERSION);
    assert!(matches!(event(&one), Event::Found { .. }));
    let flood = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        (0..MANY).for_each(|end| claim(end).write(&mut bytes));
        say(&mut tls, &mut stream, &bytes);
        (stream, tls)
    });
    let other = start_at(3, port, &keys);
    one.order(Order::Find(at(3)));
    let (mut claims, mut is_found, mut most) = (0, false, 0);
    while claims < MANY || !is_found {
        let events = events(&one);
        most = most.max(events.len());
        for event in events {
            match event {
                Event::Said { frame, .. } => {
                    assert_eq!(frame, claim(claims), "in order, and each");
                    claims += 1;
                }
                Event::Found { address, .. } => is_found |= address == at(3),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(most < 8192, "{most}");
    drop((flood.join().unwrap(), other));
}

#[test]
fn a_bounded_number_is_let_in_from_one_address() {
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let call = |_| TcpStream::connect((at(1), port)).unwrap();
    let strangers: Vec<_> = (0..9).map(call).collect();
    let turned = Event::TurnedAway {
        address: at(1),
        fault: Fault::Busy,
    };
    assert_eq!(event(&one), turned);
    drop(strangers);
}

#[test]
fn words_that_wait_leave_room_for_all_else() {
    let (_, listener) = port();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (now, tls) = (Instant::now(), Tls::new(&keys()).unwrap());
    let mut link = Link::answer(stream, at(1), &tls, now).unwrap();
    let word = Frame::Word {
        to: 1,
        from: 2,
        text: [7; 96],
    };
    (0..100_000).for_each(|_| link.say(&word));
    assert!(!link.is_late(now), "words alone cost the host");
    (0..100_000).for_each(|end| link.say(&claim(end)));
    assert!(link.is_late(now));
}

#[test]
fn strangers_that_send_anything_keep_nobody_out() {
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let mut strangers = Vec::new();
    for i in 0..100_u8 {
        let mut stranger = TcpStream::connect((at(1), port)).unwrap();
        // Some say nothing, some nonsense, some what a TLS client would, in part.
        let says: &[u8] = match i % 3 {
            0 => b"",
            1 => &[i; 300],
            _ => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        };
        let _ = stranger.write_all(says);
        strangers.push(stranger);
    }
    let other = start_at(2, port, &keys);
    one.order(Order::Find(at(2)));
    loop {
        let events = events(&one);
        if let Some(found) = events
            .iter()
            .find(|e| !matches!(e, Event::TurnedAway { .. }))
        {
            assert!(matches!(found, Event::Found { .. }), "{found:?}");
            break;
        }
    }
    drop((strangers, other));
}
