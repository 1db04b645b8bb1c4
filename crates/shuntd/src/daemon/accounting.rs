//! Lines of clients that die without having written theirs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use super::dispatch::Malformed;
use super::{Daemon, PIDFD};
use crate::account::{Account, Lines, Region, takes_lines};
use crate::client::Client;
use crate::foreign::Lane;
use crate::sys;
use crate::wire::Datagram;

/// A process that has closed its connection to us but lives.
#[derive(Debug)]
pub(super) struct Orphan {
    pidfd: OwnedFd,
    pid: u32,
    uid: u32,
    lane: Arc<Lane>,
    account: Account,
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
            client.account = Some(Account {
                region,
                lines: None,
            });
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

    /// The last of a client that is no client any more: its line if it has ended, else we
    /// go on waiting for its end.
    pub(super) fn part_with(&mut self, id: u64, mut client: Client) {
        let Some(account) = client.account.take().filter(|a| a.lines.is_some()) else {
            return;
        };
        let lane = Arc::clone(&client.lane);
        if has_ended(&client.pidfd) {
            return account.settle(client.pid, &lane);
        }
        let of_user = self.orphans.values().filter(|o| o.uid == client.uid);
        let data = epoll::EventData::new_u64(id << 2 | PIDFD);
        if of_user.count() < self.config.limits.clients_per_user
            && epoll::add(&self.epoll, &client.pidfd, data, epoll::EventFlags::IN).is_ok()
        {
            let orphan = Orphan {
                pidfd: client.pidfd,
                pid: client.pid,
                uid: client.uid,
                lane,
                account,
            };
            self.orphans.insert(id, orphan);
        }
    }

    /// One of those has ended.
    pub(super) fn settle_orphan(&mut self, id: u64) {
        if let Some(orphan) = self.orphans.remove(&id) {
            let _ = epoll::delete(&self.epoll, &orphan.pidfd);
            orphan.account.settle(orphan.pid, &orphan.lane);
            self.alone_since = Instant::now();
        }
    }
}

fn has_ended(pidfd: impl AsFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0)
}
