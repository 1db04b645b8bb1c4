//! Where lists come from: the daemons that serve this user, from one look to the next.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::List;
use super::connection;
use super::expression::Item;
use crate::control::{self, Control, Details};
use crate::host::{self, Host};
use crate::user;

/// The host's daemon and the user's own. Whoever looks again and again stays connected to those that have answered.
#[derive(Debug, Default)]
pub(crate) struct Source([Place; 2]);

/// Where a daemon may be.
#[derive(Debug, Default)]
struct Place {
    daemon: Option<Control>,
    /// When there was none the last time.
    empty: Option<Instant>,
}

/// For this time a daemon that was not there is not looked for again, if the other one answers.
const ABSENCE: Duration = Duration::from_secs(1);

impl Source {
    /// What every daemon that serves this user knows, and `shows` wants.
    pub(crate) fn collect(&mut self, shows: impl Fn(Item<'_>) -> bool) -> Result<List> {
        let found = self.details()?;
        let mut connections = connection::in_order(&found);
        connections.retain(|c| shows(Item::Connection(c)));
        // Many a process listens on IPv4 and on IPv6.
        let mut users = HashMap::new();
        let mut user = |pid| *users.entry(pid).or_insert_with(|| user::of_process(pid));
        let listeners = found.iter().flat_map(|found| &found.listeners);
        let listeners = listeners.map(|row| connection::listener(row, &mut user));
        let mut list = List {
            connections,
            listeners: listeners.collect(),
        };
        list.listeners.retain(|l| shows(Item::Listener(l)));
        list.listeners.sort_by_key(|l| (l.local, l.pid));
        Ok(list)
    }

    /// What the host's daemon, if it has just answered, knows of other hosts; `None`: it talks to none.
    pub(crate) fn hosts(&mut self) -> Result<Option<Vec<Host>>> {
        let [of_host, _] = &mut self.0;
        let known = of_host.daemon.as_ref().map_or(Ok(None), host::known);
        if known.is_err() {
            // Its answer may still come, and would be taken for that to the next question.
            of_host.daemon = None;
        }
        known
    }

    /// For tests: of what this says, in the place of the host's daemon.
    #[cfg(test)]
    pub(crate) fn of(daemon: Control) -> Self {
        let mut source = Self::default();
        source.0[0].daemon = Some(daemon);
        source
    }

    /// Whether it stays connected to a daemon.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.iter().any(|place| place.daemon.is_some())
    }

    /// The same as each of these daemons has told it.
    pub(crate) fn details(&mut self) -> Result<Vec<Details>> {
        let mut places: Vec<_> = [true, false].into_iter().zip(&mut self.0).collect();
        places.sort_by_key(|(_, place)| place.daemon.is_none());
        let mut found = Vec::new();
        for (host, place) in places {
            if found.is_empty() || !place.was_just_empty() {
                found.extend(place.details(host)?);
            }
        }
        match found.is_empty() {
            false => Ok(found),
            true => Err(control::nobody()),
        }
    }
}

impl Place {
    fn was_just_empty(&self) -> bool {
        self.empty.is_some_and(|since| since.elapsed() < ABSENCE)
    }

    /// What the daemon there knows; `None`: there is none.
    fn details(&mut self, host: bool) -> Result<Option<Details>> {
        // One that ended since the last look may have a successor.
        let known = self.daemon.take();
        let known = known.and_then(|mut daemon| Some((daemon.list_details().ok()?, daemon)));
        let known = match known {
            Some(known) => Some(known),
            None => asked_anew(host)?,
        };
        self.empty = known.is_none().then(Instant::now);
        let (details, daemon) = known.unzip();
        self.daemon = daemon;
        Ok(details)
    }
}

/// Asks a daemon that has not been asked yet; `None`: there is none.
fn asked_anew(host: bool) -> Result<Option<(Details, Control)>> {
    let Some(mut daemon) = Control::connect(host) else {
        return Ok(None);
    };
    daemon.greet("shunt-ss")?;
    Ok(Some((daemon.list_details()?, daemon)))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_about_hosts_is_asked_no_more() {
        let kind = SocketType::SEQPACKET;
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (own, daemon) = pair.unwrap();
        let mut source = Source::of(Control::at_other_end(own));
        assert!(source.is_connected());
        drop(daemon);
        assert!(source.hosts().is_err());
        assert!(!source.is_connected());
    }
}
