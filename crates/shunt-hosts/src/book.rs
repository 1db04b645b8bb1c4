//! Which host is at which address, and who does not answer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::{Fault, HostId};

/// Addresses that are remembered.
const MOST: usize = 4096;
/// How long an address that did not answer once is left alone; …
const FIRST: Duration = Duration::from_secs(2);
/// … after each further call without an answer twice as long, up to this.
const LONGEST: Duration = Duration::from_secs(300);

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: it is to be called, and is noted as one that is.
    New,
    /// It is being called.
    Called,
    /// This host is there.
    Here(HostId),
    /// Nobody is there who could be talked to.
    Failed(Fault),
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Called {
        wait: Duration,
    },
    Here(HostId),
    Failed {
        fault: Fault,
        until: Instant,
        wait: Duration,
    },
}

/// What is known of addresses, bounded.
#[derive(Debug, Default)]
pub(crate) struct Book {
    places: HashMap<IpAddr, Place>,
}

impl Book {
    /// What is known of an address that somebody asks for.
    pub(crate) fn look(&mut self, address: IpAddr, now: Instant) -> Known {
        let wait = match self.places.get(&address) {
            Some(Place::Called { .. }) => return Known::Called,
            Some(Place::Here(host)) => return Known::Here(*host),
            Some(Place::Failed { fault, until, .. }) if now < *until => {
                return Known::Failed(*fault);
            }
            Some(Place::Failed { wait, .. }) => (*wait * 2).min(LONGEST),
            None => FIRST,
        };
        if !self.make_room(address) {
            return Known::Failed(Fault::Busy);
        }
        self.places.insert(address, Place::Called { wait });
        Known::New
    }

    /// Who is there has been heard.
    pub(crate) fn found(&mut self, address: IpAddr, host: HostId) {
        if self.make_room(address) {
            self.places.insert(address, Place::Here(host));
        }
    }

    /// The call was in vain.
    pub(crate) fn failed(&mut self, address: IpAddr, fault: Fault, now: Instant) {
        let Some(place) = self.places.get_mut(&address) else {
            return;
        };
        if let Place::Called { wait } = *place {
            let until = now + wait;
            *place = Place::Failed { fault, until, wait };
        }
    }

    /// A host is gone: where it was may be called at once.
    pub(crate) fn forget(&mut self, host: HostId) {
        self.places
            .retain(|_, place| !matches!(place, Place::Here(here) if *here == host));
    }

    /// Nobody is left alone any more: other keys may fit.
    pub(crate) fn forgive(&mut self) {
        self.places
            .retain(|_, place| !matches!(place, Place::Failed { .. }));
    }

    /// Has room for one more: who would be called again first makes it. `false`: all are being called, or found.
    fn make_room(&mut self, address: IpAddr) -> bool {
        if self.places.len() < MOST || self.places.contains_key(&address) {
            return true;
        }
        let failed = self.places.iter().filter_map(|(at, place)| match place {
            Place::Failed { until, .. } => Some((*until, *at)),
            _ => None,
        });
        let Some((_, first)) = failed.min() else {
            return false;
        };
        self.places.remove(&first);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const HOST: HostId = HostId([7; 16]);

    #[test]
    fn who_does_not_answer_is_left_alone_for_longer_and_longer() {
        let mut book = Book::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert_eq!(book.look(AT, now), Known::New);
            assert_eq!(book.look(AT, now), Known::Called);
            book.failed(AT, Fault::Silent, now);
            let since = now;
            while book.look(AT, now) == Known::Failed(Fault::Silent) {
                now += Duration::from_secs(1);
            }
            // That has noted a call, which fails at once.
            book.failed(AT, Fault::Silent, since);
            waits.push((now - since).as_secs());
            now += LONGEST;
        }
        assert_eq!(waits[0], 2);
        assert!(
            waits.is_sorted() && waits[9] == LONGEST.as_secs(),
            "{waits:?}"
        );
        assert_eq!(book.look(AT, now), Known::New);
        book.found(AT, HOST);
        assert_eq!(book.look(AT, now), Known::Here(HOST));
        book.forget(HOST);
        assert_eq!(book.look(AT, now), Known::New);
    }

    #[test]
    fn the_book_is_bounded_and_keeps_who_is_called_or_found() {
        let mut book = Book::default();
        let now = Instant::now();
        let at = |i: u32| IpAddr::from(i.to_be_bytes());
        for i in 0..MOST as u32 {
            assert_eq!(book.look(at(i), now), Known::New);
        }
        assert_eq!(book.look(AT, now), Known::Failed(Fault::Busy));
        book.failed(at(3), Fault::Key, now);
        book.failed(at(2), Fault::Key, now + Duration::from_secs(1));
        assert_eq!(book.look(AT, now), Known::New);
        assert_eq!(book.look(at(2), now), Known::Failed(Fault::Key));
        book.found(at(3), HOST);
        assert_eq!(book.look(at(3), now), Known::Here(HOST));
        assert_eq!(book.places.len(), MOST);
    }

    #[test]
    fn other_keys_are_tried_at_once() {
        let mut book = Book::default();
        let now = Instant::now();
        assert_eq!(book.look(AT, now), Known::New);
        book.failed(AT, Fault::Key, now);
        book.forgive();
        assert_eq!(book.look(AT, now), Known::New);
    }
}
