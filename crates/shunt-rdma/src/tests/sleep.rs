//! Sleeping on the completion channel, in real time: a wake-up that is lost shows as a wait that does not end.

use std::thread;

use shunt_shm::slot::Slot;

use super::ends::Ends;
use super::store::Store;
use crate::fabric::{Manners, Nic};
use crate::link::{Link, News};
use crate::port::{Found, Port};
use crate::transport::{QueueId, Transport};

const ROUNDS: u32 = 2000;
/// Milliseconds; nothing takes that long.
const LONG: i32 = 20_000;

/// Sleeps until a message is there, and takes it.
fn receive(port: &mut Port<Nic>, id: QueueId) -> u8 {
    let mut byte = [0];
    loop {
        let (nic, link) = port.link(id).unwrap();
        if link.receive(nic, 0, &mut byte).unwrap() == 1 {
            return byte[0];
        }
        port.arm().unwrap();
        if port.progress(|_| {}).unwrap() {
            continue;
        }
        let mut wait = libc::pollfd {
            fd: port.events(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable entry.
        let woken = unsafe { libc::poll(&raw mut wait, 1, LONG) };
        assert_eq!(woken, 1, "nobody has woken this thread");
        port.take_events();
        port.progress(|_| {}).unwrap();
    }
}

fn send(port: &mut Port<Nic>, id: QueueId, byte: u8) {
    loop {
        port.progress(|_| {}).unwrap();
        let (nic, link) = port.link(id).unwrap();
        if link.send(nic, 0, &[byte]).unwrap() == 1 {
            return;
        }
    }
}

#[test]
fn no_wake_up_is_lost() {
    for delay in [0, 20_000] {
        let manners = Manners {
            delay,
            placement: true,
            order: true,
            ..Manners::GOOD
        };
        let store = Store::new(1);
        let mut ends = Ends::new(&store, manners);
        ends.enter();
        for side in 0..2 {
            assert!(ends.link(side).1.enter(0));
        }
        let [first, second] = ends.links;
        let [one, other] = &mut ends.ports;
        thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..ROUNDS {
                    send(one, first, i as u8);
                    assert_eq!(receive(one, first), i as u8);
                }
            });
            for i in 0..ROUNDS {
                let byte = receive(other, second);
                assert_eq!(byte, i as u8);
                send(other, second, byte);
            }
        });
    }
}

#[test]
fn what_came_before_the_arming_is_found_and_what_comes_after_makes_it_readable() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, Manners::GOOD);
    ends.enter();
    assert!(ends.link(0).1.enter(0));
    let is_readable = |port: &Port<Nic>| {
        let mut wait = libc::pollfd {
            fd: port.events(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable entry.
        unsafe { libc::poll(&raw mut wait, 1, 100) == 1 }
    };
    ends.ports[1].arm().unwrap();
    ends.ports[1].take_events();
    let (nic, link) = ends.link(0);
    assert_eq!(link.send(nic, 0, b"x"), Ok(1));
    assert!(is_readable(&ends.ports[1]));
    let mut found = Vec::new();
    let data = Found::News(ends.links[1], 0, News::Data);
    ends.ports[1].progress(|f| found.push(f)).unwrap();
    assert!(found.contains(&data));
}

/// Ports and links go to other threads.
#[test]
fn links_are_send() {
    fn is_send<T: Send>() {}
    is_send::<Link<'_, Nic>>();
    is_send::<Port<'_, Nic>>();
    is_send::<&Slot>();
    is_send::<<Nic as Transport>::Queue>();
}
