//! Other hosts: starts and ends the thread that talks to them, as the configuration says, and lists what is known of them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use rustix::event::epoll;
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};
use shunt_hosts::{Fault, HostId, Hosts, Order, Setup};

use super::dispatch::Malformed;
use super::{Daemon, HOSTS, Scope};
use crate::config::{Between, Config};
use crate::hosts::{Budget, Table};
use crate::reached::Reached;
use crate::rights;
use crate::tuple::{FAMILIES, bytes};

/// Addresses at which nobody could be talked to that are shown.
const FAULTS: usize = 256;

/// Other hosts.
#[derive(Debug)]
pub(super) struct Hosting {
    pub(super) hosts: Hosts,
    pub(super) table: Table,
    /// Ports that boards list for what other hosts have claimed.
    pub(super) listed: HashMap<HostId, Reached>,
    /// At which addresses nobody could be talked to, why, and since when.
    pub(super) faults: VecDeque<(IpAddr, Reason, Instant)>,
    /// Since when a host is known to be there.
    pub(super) found: HashMap<IpAddr, Instant>,
}

impl Hosting {
    /// Ports of a namespace that its board is to list.
    pub(super) fn listed_in(&self, netns: u64) -> impl Iterator<Item = u16> {
        self.listed
            .values()
            .flat_map(move |listed| listed.of(netns))
    }

    /// No client lives in that namespace any more.
    pub(super) fn forget_namespace(&mut self, netns: u64) {
        for listed in self.listed.values_mut() {
            listed.forget(netns);
        }
    }

    pub(super) fn note_fault(&mut self, address: IpAddr, reason: Reason) {
        self.found.remove(&address);
        self.faults.retain(|(at, ..)| *at != address);
        if self.faults.len() == FAULTS {
            self.faults.pop_front();
        }
        self.faults.push_back((address, reason, Instant::now()));
    }

    pub(super) fn note_found(&mut self, address: IpAddr) {
        self.faults.retain(|(at, ..)| *at != address);
        self.found.entry(address).or_insert_with(Instant::now);
    }

    pub(super) fn forget_ports(&mut self, host: HostId) -> Vec<(u64, u16)> {
        let listed = self.listed.remove(&host);
        listed.iter().flat_map(Reached::all).collect()
    }
}

/// The reason for connections to an address where nobody can be talked to.
pub(super) fn reason(fault: Fault) -> Reason {
    match fault {
        Fault::Silent | Fault::Protocol => Reason::HostSilent,
        Fault::Key => Reason::HostKey,
        Fault::Version => Reason::HostVersion,
        Fault::Itself => Reason::OtherNamespace,
        Fault::Busy => Reason::NoResources,
        Fault::Refused => Reason::NotLocal,
    }
}

fn budget(between: &Between) -> Budget {
    Budget {
        process: between.pinned_per_process,
        all: between.pinned,
    }
}

impl Between {
    /// What the thread is to know. `listens`: where other hosts are listened to already.
    fn setup(&self, listens: Option<&[SocketAddr]>) -> Result<Setup> {
        let keys = self.keys()?;
        let listeners = if listens == Some(&self.listen[..]) {
            None
        } else {
            let listen = shunt_hosts::listen(&self.listen);
            Some(listen.map_err(|(address, error)| why_not(address, &error))?)
        };
        let between = self.clone();
        Ok(Setup {
            listeners,
            port: self.port,
            keys,
            admits: Arc::new(move |address| between.names(address)),
        })
    }

    /// Calls the shuntd of another host, as a daemon would. The thread that does gives up all rights of root's for good.
    ///
    /// # Errors
    /// When there is no usable key, or why that host cannot be talked to.
    pub fn reach(&self, address: IpAddr) -> Result<()> {
        let keys = self.keys()?;
        // What answers is parsed by who may do nothing that others may not.
        rights::give_up_all().context("cannot give up root's rights")?;
        let between = self.clone();
        let setup = Setup {
            listeners: None,
            port: self.port,
            keys,
            admits: Arc::new(move |address| between.names(address)),
        };
        let found = shunt_hosts::reach(setup, address);
        found.map_err(|fault| anyhow!("{}", advice(fault, self.port)))?;
        Ok(())
    }
}

/// Why a host cannot be talked to, and what to do.
fn advice(fault: Fault, port: u16) -> String {
    let what = match fault {
        Fault::Silent => format!(
            "start `shuntd --system` there, with [hosts] in its shunt.toml, and let TCP port {port} through firewalls"
        ),
        Fault::Key => "give both hosts the same key file".to_owned(),
        Fault::Version => "install the same version of Shunt on both".to_owned(),
        Fault::Itself => "name another host".to_owned(),
        Fault::Protocol => format!(
            "something else listens at port {port}: choose another `port`, the same on all hosts"
        ),
        Fault::Busy => "try again".to_owned(),
        Fault::Refused => {
            "add it to `networks` in [hosts], if its programs may talk by RDMA".to_owned()
        }
    };
    format!("{fault}: {what}")
}

fn why_not(address: SocketAddr, error: &io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            ": another program listens there, so choose another `port`, the same on all hosts"
        }
        _ => "",
    };
    anyhow!("cannot listen for other hosts at {address}: {error}{advice}")
}

impl Daemon {
    /// From now on it talks to other hosts, if the configuration says to which. Where it cannot listen for them it says so and serves
    /// this host alone, until the configuration is read again.
    ///
    /// # Errors
    /// When there is no usable key; why, and what to do.
    pub fn talk_to_hosts(&mut self) -> Result<()> {
        let Some(between) = self.config.hosts.clone() else {
            return Ok(());
        };
        between.keys()?;
        if let Err(error) = self.start_hosts(&between) {
            self.log.error(&format!(
                "{error:#}: connections to other hosts stay on TCP until the configuration is read again"
            ));
        }
        Ok(())
    }

    /// Takes RDMA devices to be listed in this directory, in place of the kernel's (for tests).
    pub fn set_devices(&mut self, directory: PathBuf) {
        self.devices = directory;
    }

    fn start_hosts(&mut self, between: &Between) -> Result<()> {
        // The network's bytes are parsed by who may do nothing that others may not.
        let log = self.log;
        let first = move || {
            if let Err(error) = rights::give_up_all() {
                log.error(&format!(
                    "what talks to other hosts keeps rights that it does not need: {error}"
                ));
            }
        };
        let hosts =
            Hosts::start(between.setup(None)?, first).context("cannot talk to other hosts")?;
        let data = epoll::EventData::new_u64(HOSTS);
        epoll::add(&self.epoll, hosts.bell(), data, epoll::EventFlags::IN)?;
        self.log.event(|| between.to_string());
        let table = Table::new(hosts.name(), budget(between));
        self.hosting = Some(Hosting {
            hosts,
            table,
            listed: HashMap::new(),
            faults: VecDeque::new(),
            found: HashMap::new(),
        });
        self.boards.set_asked(true);
        Ok(())
    }

    /// Of a configuration that is read again: what it says of other hosts holds from now on.
    ///
    /// # Errors
    /// When it cannot be done; nothing has changed then.
    pub(super) fn adopt_hosts(&mut self, config: &Config) -> Result<()> {
        if self.scope != Scope::Host {
            return Ok(());
        }
        match (&config.hosts, &mut self.hosting) {
            (None, None) => {}
            (None, Some(_)) => self.stop_hosts(),
            (Some(between), None) => self.start_hosts(between)?,
            (Some(between), Some(hosting)) => {
                let before = self.config.hosts.as_ref().map(|before| &before.listen[..]);
                hosting
                    .hosts
                    .order(Order::Configure(between.setup(before)?));
                hosting.table.set_budget(budget(between));
            }
        }
        Ok(())
    }

    /// Ends that wait for other hosts stay on TCP; those that have met theirs go on.
    fn stop_hosts(&mut self) {
        let Some(mut hosting) = self.hosting.take() else {
            return;
        };
        let hosts: Vec<_> = hosting.listed.keys().copied().collect();
        for host in hosts {
            let ports = hosting.forget_ports(host);
            self.unlist(ports);
        }
        self.boards.set_asked(false);
        for id in hosting.table.waiting() {
            self.drop_claim(id, Reason::NotLocal);
        }
    }

    /// A client asks for the hosts that are known, which are shown to who administrates this one.
    pub(super) fn list_hosts(&mut self, id: u64) -> Result<(), Malformed> {
        if let Some(client) = self.clients.get_mut(&id) {
            if client.has_unsent() {
                return Err(Malformed); // It has not read its last list yet.
            }
            client.together = 1;
        }
        let sees = self.viewer(id).is_some_and(|viewer| viewer.sees_all);
        let mut rows = match &self.hosting {
            Some(hosting) if sees => hosting.rows(),
            _ => Vec::new(),
        };
        let mut end = Message::new(Kind::End);
        end.index = self.hosting.is_some().into();
        rows.push(end);
        self.send_rows(id, rows);
        Ok(())
    }
}

impl Hosting {
    fn rows(&self) -> Vec<Message> {
        let mut rows = Vec::new();
        let mut known = self.table.list();
        for (address, reason, _) in &self.faults {
            known.entry(*address).or_default().fault = Some(*reason);
        }
        for (address, of) in known {
            let since = self.faults.iter().find(|(at, ..)| *at == address);
            let since = since.map(|(.., since)| *since);
            let since = since.or_else(|| self.found.get(&address).copied());
            let mut row = Message::new(Kind::Host);
            row.family = if address.is_ipv4() {
                FAMILIES.0
            } else {
                FAMILIES.1
            };
            row.addresses[0] = bytes(address);
            row.status = match of.fault {
                Some(reason) if !of.is_found => reason as u8,
                _ if of.is_found => 0,
                _ => Reason::Pending as u8,
            };
            (row.index, row.slot) = (of.met, of.waiting);
            row.link = since.map_or(0, |since| since.elapsed().as_secs());
            rows.push(row);
        }
        rows
    }
}
