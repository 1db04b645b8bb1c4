//! Who may be paired: asks the policy, and sends back to TCP what a new one forbids.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use rustix::event::epoll;
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message, comm_text};

use super::{Daemon, RELOAD};
use crate::config::{Config, Source};
use crate::end::{EndId, State};
use crate::policy::{End, Namespace};

impl Daemon {
    /// Why two ends may not be paired, if they may not.
    pub(super) fn against(&self, a: EndId, b: EndId) -> Option<Reason> {
        let name = |id: EndId| self.clients.get(&id.client).map(|c| comm_text(&c.comm));
        let (Some(one), Some(other)) = (name(a), name(b)) else {
            return Some(Reason::Policy);
        };
        let (Some(near), Some(far)) = (self.party(a, &one), self.party(b, &other)) else {
            return Some(Reason::Policy);
        };
        let denial = self.config.policy.against([near, far])?;
        if let Some(line) = denial.line {
            self.log.event(|| {
                let labels = [a, b].map(|id| self.clients.get(&id.client).map(|c| c.label()));
                let [one, other] = labels.map(Option::unwrap_or_default);
                format!("the rule in line {line} denies {one} with {other}")
            });
        }
        Some(denial.reason)
    }

    /// Whether two ends of a connection that there is may not be shunted any more.
    pub(super) fn denies(&self, id: EndId, mate: EndId) -> bool {
        self.ends.get(mate).is_some() && self.against(id, mate).is_some()
    }

    /// Why an end whose other end is on another host may not go there by RDMA, if it may not.
    pub(super) fn against_leaving(&self, id: EndId) -> Option<Reason> {
        let name = self.clients.get(&id.client).map(|c| comm_text(&c.comm));
        let Some(end) = name.as_ref().and_then(|name| self.party(id, name)) else {
            return Some(Reason::Policy);
        };
        Some(self.config.policy.against_leaving(end)?.reason)
    }

    /// What the policy is to know of an end, whose process goes by this name.
    fn party<'a>(&'a self, id: EndId, comm: &'a str) -> Option<End<'a>> {
        let client = self.clients.get(&id.client)?;
        let tuple = self.ends.get(id)?.tuple()?;
        // Not looked up for nothing.
        let profile = (!self.config.policy.rules.is_empty()).then(|| client.profile());
        // A socket may have come from elsewhere.
        let is_clients = tuple.netns == client.netns;
        let number = profile.and_then(|profile| profile.namespace);
        Some(End {
            user: client.uid,
            groups: profile.and_then(|profile| profile.groups.as_deref()),
            cgroups: profile.and_then(|profile| profile.cgroups.as_deref()),
            container: profile.and_then(|profile| profile.container.as_deref()),
            program: profile.and_then(|profile| profile.program.as_deref()),
            comm,
            namespace: Namespace {
                cookie: tuple.netns,
                is_host: tuple.netns == self.address.0,
                number: number.filter(|_| is_clients),
            },
            addresses: [tuple.local, tuple.peer],
        })
    }

    /// Reads the configuration again, from where it came. One that is not valid changes nothing.
    pub(super) fn reload(&mut self) {
        let Some(source) = &self.source else {
            return;
        };
        let path = source.path.display().to_string();
        let loaded = source.load();
        let adopted = loaded.and_then(|config| self.adopt_config(config).context(path));
        if let Err(error) = adopted {
            self.log
                .error(&format!("{error:#}: what held before still holds"));
        }
    }

    /// From now on this holds, for connections that are shunted already, too.
    ///
    /// # Errors
    /// When other hosts cannot be talked to as it says; nothing has changed then.
    fn adopt_config(&mut self, config: Config) -> Result<()> {
        self.adopt_hosts(&config)?;
        self.config = config;
        self.cross_as_allowed();
        let paired = self.ends.iter().filter_map(|(id, end)| {
            let is_paired = matches!(end.state, State::Paired(_));
            Some((id, end.mate?.id, end.fd)).filter(|_| is_paired)
        });
        let denied = paired.filter_map(|(id, mate, fd)| {
            self.ends.get(mate)?; // It may be closed by now.
            Some((id, fd, self.against(id, mate)?))
        });
        let denied: Vec<_> = denied.collect();
        self.log.event(|| {
            let count = denied.len();
            format!("the configuration is read again, which denies {count} ends")
        });
        for (id, fd, reason) in denied {
            let mut message = Message::new(Kind::Downgrade);
            (message.cookie, message.fd, message.status) = (id.cookie, fd, reason as u8);
            self.post(id.client, message, None);
        }
        Ok(())
    }

    /// From now on it reads its configuration again when `signal` becomes readable.
    ///
    /// # Errors
    /// When the kernel has no memory for that.
    pub fn reload_by(&mut self, signal: OwnedFd, source: Source) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(RELOAD);
        epoll::add(&self.epoll, &signal, data, epoll::EventFlags::IN)?;
        (self.signal, self.source) = (Some(signal), Some(source));
        Ok(())
    }

    /// The signal has come, perhaps several times.
    pub(super) fn hear_signal(&mut self) {
        let mut read = [0; 128]; // One `signalfd_siginfo`.
        if let Some(signal) = &self.signal
            && rustix::io::read(signal, &mut read).is_ok()
        {
            self.reload();
        }
    }
}
