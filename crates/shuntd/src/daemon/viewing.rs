//! Who may see which connections, and recall them.
//!
//! A user's own daemon shows him all of them. The host's shows a client what processes of the same
//! user hold in the same network namespace, since root of a container looks like any root. Only who
//! administrates the daemon's host sees all.

use super::{Daemon, Scope};
use crate::client::Client;
use crate::process::has_ended;

/// A client that asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewer {
    pub(super) uid: u32,
    netns: u64,
    pub(super) sees_all: bool,
}

impl Viewer {
    /// Whether it may see what a process of this user and network namespace holds.
    pub(super) fn may_see(self, uid: u32, netns: u64) -> bool {
        self.sees_all || (uid, netns) == (self.uid, self.netns)
    }
}

impl Daemon {
    /// What a client may see.
    pub(super) fn viewer(&self, client: u64) -> Option<Viewer> {
        let client = self.clients.get(&client)?;
        Some(Viewer {
            uid: client.uid,
            netns: client.netns,
            sees_all: self.scope != Scope::Host || self.is_administrator(client),
        })
    }

    /// Whether a client could do anything to this daemon without asking it: it may do all that this one might when
    /// it started.
    fn is_administrator(&self, client: &Client) -> bool {
        client.uid == 0
            && client.netns == self.address.0
            && self.rights.is_some_and(|rights| rights.has(client.pid))
            // The number may have become another process's before that look, but then this has ended.
            && !has_ended(&client.pidfd)
    }
}
