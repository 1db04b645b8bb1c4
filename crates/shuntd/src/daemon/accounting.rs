//! Lines of clients that die without having written theirs.

use shunt_abi::counters::Served;
use shunt_abi::message::FLAG_DIED;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;

use super::dispatch::Malformed;
use super::{Daemon, PIDFD};
use crate::account::{Account, Lines, Region, takes_lines};
use crate::client::Client;
use crate::foreign::Lane;
use crate::hosts::Afar;
use crate::link::Lost;
use crate::process::has_ended;
use crate::sys;
use crate::wire::Datagram;

/// A process that lives and has no connection to us: it has closed that, or the daemon
/// that had one was killed.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) pidfd: OwnedFd,
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// Its network namespace, or 0 where that is not known.
    pub(super) netns: u64,
    pub(super) lane: Arc<Lane>,
    pub(super) account: Account,
    /// Links that others have to it, who are told of its death.
    pub(super) lost: Vec<Lost>,
    /// Its ends that had met ones on other hosts, which are told so, too.
    pub(super) afar: Vec<Afar>,
}

impl Daemon {
    /// A client shows its counters region.
    pub(super) fn counters(&mut self, id: u64, mut datagram: Datagram) -> Result<(), Malformed> {
        let (Some(file), true) = (datagram.fds.pop(), datagram.fds.is_empty()) else {
            // We are out of descriptors, or the client is wrong.
            return if datagram.lost_fds {
                Ok(())
            } else {
                Err(Malformed)
            };
        };
        let region = Region::new(file).ok_or(Malformed)?;
        // It has come back.
        self.orphans
            .retain(|_, orphan| !orphan.account.region.is(&region));
        if let Some(client) = self.clients.get_mut(&id) {
            if client.account.is_some() {
                return Err(Malformed);
            }
            client.account = Some(Account::new(region, None));
        }
        Ok(())
    }

    /// A client passes the file that its line goes to.
    pub(super) fn statistics(&mut self, id: u64, mut datagram: Datagram) -> Result<(), Malformed> {
        let (Some(file), true) = (datagram.fds.pop(), datagram.fds.is_empty()) else {
            return if datagram.lost_fds {
                Ok(())
            } else {
                Err(Malformed)
            };
        };
        let client = self.clients.get_mut(&id);
        if !takes_lines(&file) {
            return Err(Malformed);
        }
        if let Some(client) = client
            && let Some(account) = &mut client.account
        {
            let group = sys::peer_group(&client.socket).map_err(|_| Malformed)?;
            account.lines = Some(Lines { file, group });
        }
        Ok(())
    }

    /// The last of a client that is no client any more: its line if it has ended, and those at the other end of its links are told so;
    /// else we go on waiting for its end, and list its connections.
    pub(super) fn part_with(&mut self, mut client: Client, lost: Vec<Lost>, afar: Vec<Afar>) {
        let Some(account) = client.account.take() else {
            return;
        };
        let orphan = Orphan {
            pidfd: client.pidfd,
            pid: client.pid,
            uid: client.uid,
            netns: client.netns,
            lane: client.lane,
            account,
            lost,
            afar,
        };
        self.add_orphan(orphan);
    }

    /// Waits for the end of a process, or writes its line if it has ended.
    pub(super) fn add_orphan(&mut self, orphan: Orphan) {
        if has_ended(&orphan.pidfd) {
            self.say_died(&orphan);
            return orphan.account.settle(orphan.pid, &orphan.lane);
        }
        let of_user = self.orphans.values().filter(|o| o.uid == orphan.uid);
        let guests = self.orphans.values().filter(|o| !self.serves(o.uid));
        let has_room = self.has_room_for(orphan.uid, of_user.count(), guests.count());
        self.last_client += 1;
        let id = self.last_client;
        let data = epoll::EventData::new_u64(id << 2 | PIDFD);
        if has_room && epoll::add(&self.epoll, &orphan.pidfd, data, epoll::EventFlags::IN).is_ok() {
            self.orphans.insert(id, orphan);
        }
    }

    /// One of those has ended.
    pub(super) fn settle_orphan(&mut self, id: u64) {
        if let Some(orphan) = self.orphans.remove(&id) {
            let _ = epoll::delete(&self.epoll, &orphan.pidfd);
            self.say_died(&orphan);
            if self.answers_for(&orphan) {
                orphan.account.settle(orphan.pid, &orphan.lane);
            }
            self.alone_since = Instant::now();
        }
    }

    fn say_died(&mut self, orphan: &Orphan) {
        self.reset_peers(orphan);
        self.tell_afar(orphan);
        for &lost in &orphan.lost {
            self.say_gone(lost, FLAG_DIED);
        }
    }

    /// Whether a process has not gone to another daemon, which writes its line then.
    pub(super) fn answers_for(&self, orphan: &Orphan) -> bool {
        let served = orphan.account.region.owner().map(|owner| owner.served);
        served.is_some_and(|served| !served.is_known() || self.is_served(&served))
    }

    /// Whether a region says that its process found this daemon, or one before it: at its address or,
    /// from another network namespace, at its file.
    pub(super) fn is_served(&self, served: &Served) -> bool {
        let (netns, name) = &self.address;
        served.is(*netns, name) || self.file.is_some() && served.is(0, name)
    }
}
