//! Two or more threads that talk to each other by the loopback interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::frame::{Claim, Frame, HostId, Numbers, Side};
use crate::key::{Keys, generate};
use crate::{Event, Fault, Hosts, Order, Setup};

mod strangers;

/// A test waits no longer for what must come.
const WATCHDOG: Duration = Duration::from_secs(30);

const fn at(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

fn keys() -> Keys {
    Keys::parse(generate().unwrap().as_bytes()).unwrap()
}

/// A port of this test alone, and who listens there at the first address.
fn port() -> (u16, TcpListener) {
    let listener = TcpListener::bind((at(1), 0)).unwrap();
    (listener.local_addr().unwrap().port(), listener)
}

fn setup(port: u16, keys: &Keys, listeners: Vec<TcpListener>) -> Setup {
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    Setup {
        listeners: Some(listeners),
        port,
        keys: keys.clone(),
        admits: Arc::new(|address| address.is_loopback() && address != at(99)),
    }
}

fn start(port: u16, keys: &Keys, listeners: Vec<TcpListener>) -> Hosts {
    Hosts::start(setup(port, keys, listeners), || ()).unwrap()
}

/// One that listens at this address.
fn start_at(last: u8, port: u16, keys: &Keys) -> Hosts {
    let listeners = crate::listen(&[SocketAddr::new(at(last), port)]).unwrap();
    start(port, keys, listeners)
}

fn readable(bell: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut bell = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
    let patience = Timespec::try_from(patience).unwrap();
    rustix::event::poll(&mut bell, Some(&patience)).unwrap() != 0
}

/// The next events, of which there must be some.
fn events(hosts: &Hosts) -> Vec<Event> {
    loop {
        assert!(readable(hosts.bell(), WATCHDOG), "nothing has happened");
        let events = hosts.events(usize::MAX);
        if !events.is_empty() {
            return events;
        }
    }
}

/// The next event, which must come alone.
fn event(hosts: &Hosts) -> Event {
    let events = events(hosts);
    assert_eq!(events.len(), 1, "{events:?}");
    events[0].clone()
}

fn find(hosts: &Hosts, last: u8) -> Event {
    hosts.order(Order::Find(at(last)));
    event(hosts)
}

fn found(hosts: &Hosts, last: u8) -> HostId {
    match find(hosts, last) {
        Event::Found { address, host } if address == at(last) => host,
        other => panic!("{other:?}"),
    }
}

fn failed(fault: Fault, last: u8) -> Event {
    let address = at(last);
    Event::Failed { address, fault }
}

fn claim(end: u64) -> Frame {
    Frame::Claim(Claim {
        end,
        process: 1,
        side: Side::Connector,
        numbers: Some(Numbers {
            sent: 1,
            received: 2,
        }),
        local: "10.0.0.1:40000".parse().unwrap(),
        peer: "10.0.0.2:80".parse().unwrap(),
        obstacle: 0,
    })
}

/// Two that have met: the first has called the second, at 127.0.0.2.
fn two() -> ([Hosts; 2], [HostId; 2]) {
    let (port, first) = port();
    let keys = keys();
    let hosts = [start(port, &keys, vec![first]), start_at(2, port, &keys)];
    let second = found(&hosts[0], 2);
    let Event::Found {
        address,
        host: first,
    } = event(&hosts[1])
    else {
        panic!("the second does not know the first");
    };
    assert_eq!(address, at(1));
    (hosts, [first, second])
}

#[test]
fn two_with_one_key_find_each_other_and_hear_what_they_say() {
    let (hosts, [first, second]) = two();
    assert_ne!(first, second);
    hosts[0].order(Order::Tell(second, claim(7)));
    hosts[1].order(Order::Tell(first, Frame::Drop(9)));
    let said = |host, frame| Event::Said { host, frame };
    assert_eq!(event(&hosts[1]), said(first, claim(7)));
    assert_eq!(event(&hosts[0]), said(second, Frame::Drop(9)));
    assert_eq!(found(&hosts[0], 2), second, "known without a call");
}

#[test]
fn the_end_of_one_is_told_to_the_other() {
    let ([one, other], [_, second]) = two();
    drop(other);
    let lost = Event::Lost {
        host: second,
        fault: Fault::Silent,
    };
    assert_eq!(event(&one), lost);
    // It is called anew, and not taken for one that does not answer.
    assert_eq!(find(&one, 2), failed(Fault::Silent, 2));
}

#[test]
fn who_has_another_key_is_turned_away_and_turns_away() {
    let (port, first) = port();
    let one = start(port, &keys(), vec![first]);
    let other = start_at(2, port, &keys());
    assert_eq!(find(&one, 2), failed(Fault::Key, 2));
    let turned = Event::TurnedAway {
        address: at(1),
        fault: Fault::Key,
    };
    assert_eq!(event(&other), turned);
}

#[test]
fn a_key_is_changed_host_by_host() {
    let (port, first) = port();
    let [old, new] = [(); 2].map(|()| generate().unwrap());
    let of = |texts: &[&String]| {
        let text: String = texts.iter().map(|text| text.as_str()).collect();
        Keys::parse(text.as_bytes()).unwrap()
    };
    let one = start(port, &of(&[&old, &new]), vec![first]);
    let other = start_at(2, port, &of(&[&new, &old]));
    let host = found(&one, 2);
    event(&other);
    // The old one is taken out, and they meet anew.
    let mut later = setup(port, &of(&[&new]), Vec::new());
    later.listeners = None;
    one.order(Order::Configure(later));
    let lost = Event::Lost {
        host,
        fault: Fault::Refused,
    };
    assert_eq!(event(&one), lost);
    assert!(matches!(event(&other), Event::Lost { .. }));
    assert_eq!(found(&one, 2), host);
}

#[test]
fn who_only_asks_is_answered_and_no_host_that_is_found_and_lost() {
    let (port, first) = port();
    let keys = keys();
    let [one, other] = [start(port, &keys, vec![first]), start_at(2, port, &keys)];
    let ask = || crate::reach(setup(port, &keys, Vec::new()), at(2));
    for _ in 0..2 {
        assert_eq!(ask(), Ok(other.name()));
    }
    // The first that it is told.
    one.order(Order::Find(at(2)));
    let (address, host) = (at(1), one.name());
    assert_eq!(event(&other), Event::Found { address, host });
    let gone = setup(port, &self::keys(), Vec::new());
    assert_eq!(crate::reach(gone, at(2)), Err(Fault::Key));
}

#[test]
fn an_address_that_is_not_there_yet_is_listened_at() {
    let no_ipv6 = Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
    for address in ["192.0.2.1:0", "[2001:db8::1]:0"] {
        let address: SocketAddr = address.parse().unwrap();
        match crate::listen(&[address]) {
            Ok(listeners) => {
                assert_eq!(listeners[0].local_addr().unwrap().ip(), address.ip());
            }
            // A kernel without IPv6.
            Err((_, error)) => assert_eq!(error.raw_os_error(), no_ipv6, "{error}"),
        }
    }
    // All addresses of either kind, or of the one that there is.
    let all = crate::listen(&["[::]:0".parse().unwrap()]).unwrap();
    let port = all[0].local_addr().unwrap().port();
    TcpStream::connect((at(1), port)).unwrap();
}

#[test]
fn where_nobody_listens_is_remembered() {
    let (port, first) = port();
    let one = start(port, &keys(), vec![first]);
    assert_eq!(find(&one, 3), failed(Fault::Silent, 3));
    // Who listens there now is not called before a while has passed.
    let listener = TcpListener::bind((at(3), port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(find(&one, 3), failed(Fault::Silent, 3));
    assert!(listener.accept().is_err());
}

#[test]
fn whoever_waits_to_be_called_is_though_calls_before_fail_at_once() {
    // As many as are called at a time, and more that wait.
    let (silent, nobody) = (100..164, 164..=255);
    let (port, first) = port();
    let one = start(port, &keys(), vec![first]);
    let listen = |last| TcpListener::bind((at(last), port)).unwrap();
    let listeners: Vec<_> = silent.clone().map(listen).collect();
    let waiting = nobody.clone().count();
    silent
        .chain(nobody)
        .for_each(|last| one.order(Order::Find(at(last))));
    let called = listeners.iter().map(|listener| listener.accept().unwrap());
    let called: Vec<_> = called.collect();
    drop((called, listeners));
    let mut answered = 0;
    while answered < 64 + waiting {
        answered += events(&one).len();
    }
}

#[test]
fn who_is_being_called_and_may_be_no_more_is_refused() {
    let (port, first) = port();
    let keys = keys();
    let one = start(port, &keys, vec![first]);
    let listener = TcpListener::bind((at(2), port)).unwrap();
    one.order(Order::Find(at(2)));
    let _silent = listener.accept().unwrap();
    let mut later = setup(port, &keys, Vec::new());
    later.admits = Arc::new(|_| false);
    one.order(Order::Configure(later));
    assert_eq!(event(&one), failed(Fault::Refused, 2));
}

#[test]
fn it_knows_itself() {
    let (port, first) = port();
    let one = start(port, &keys(), vec![first]);
    one.order(Order::Find(at(1)));
    // The call is told of, and the caller that it is, in either order.
    loop {
        let events = events(&one);
        let is_found = |event: &Event| matches!(event, Event::Found { .. });
        assert!(!events.iter().any(is_found), "{events:?}");
        if events.contains(&failed(Fault::Itself, 1)) {
            return;
        }
    }
}
