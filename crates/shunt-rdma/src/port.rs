//! A port: one process on one device. It takes completions ([`Port::progress`]), and gives them to its links. Who reads of a
//! ring gives credit back by `Link::has_read`, which `bond.rs` counts; it is posted once it is due.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use crate::link::{Broken, Link, News};
use crate::transport::{BATCH, Completion, QueueId, Refused, Transport};

/// See the module. One thread at a time.
pub struct Port<'a, T: Transport> {
    transport: T,
    links: BTreeMap<QueueId, Link<'a, T>>,
}

/// What [`Port::progress`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Of a connection: its link and its slot.
    News(QueueId, u32, News),
    /// A link has failed; it is said once.
    Broken(QueueId, Broken),
}

impl<'a, T: Transport> Port<'a, T> {
    /// Of a device.
    #[must_use]
    pub fn new(transport: T) -> Self {
        Self {
            transport,
            links: BTreeMap::new(),
        }
    }

    /// Its device.
    #[must_use]
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Its device, to change it.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Takes a link in.
    pub fn add(&mut self, link: Link<'a, T>) -> QueueId {
        let id = link.id();
        self.links.insert(id, link);
        id
    }

    /// Gives a link up: its queue pair and its regions go.
    pub fn remove(&mut self, id: QueueId) -> Option<Link<'a, T>> {
        self.links.remove(&id)
    }

    /// A link, with the device for its calls.
    pub fn link(&mut self, id: QueueId) -> Option<(&T, &mut Link<'a, T>)> {
        let link = self.links.get_mut(&id)?;
        Some((&self.transport, link))
    }

    /// Takes all completions that are there, and says what came of them. `true`: there were some.
    ///
    /// # Errors
    /// [`Refused`]: the device is gone, and all links with it, each of which is said to be [broken](Found::Broken).
    pub fn progress(&mut self, mut found: impl FnMut(Found)) -> Result<bool, Refused> {
        let mut completions = [Completion::Failed {
            queue: QueueId(0),
            status: 0,
        }; BATCH];
        let mut any = false;
        loop {
            let n = match self.transport.poll(&mut completions) {
                Ok(n) => n,
                Err(refused) => {
                    self.lose(&mut found);
                    return Err(refused);
                }
            };
            for completion in &completions[..n] {
                self.handle(completion, &mut found);
            }
            any |= n > 0;
            if n < BATCH {
                break;
            }
        }
        if any {
            for link in self.links.values_mut() {
                link.flush(&self.transport);
            }
        }
        Ok(any)
    }

    /// The device is gone, and all links with it.
    fn lose(&mut self, found: &mut impl FnMut(Found)) {
        for (id, link) in &mut self.links {
            if link.broken().is_none() {
                found(Found::Broken(*id, link.abandon(&self.transport)));
            }
        }
    }

    fn handle(&mut self, completion: &Completion, found: &mut impl FnMut(Found)) {
        let (Completion::Sent { queue, .. }
        | Completion::Written { queue, .. }
        | Completion::Note { queue, .. }
        | Completion::Failed { queue, .. }) = *completion;
        // Of a link that has been removed there may be some left.
        let Some(link) = self.links.get_mut(&queue) else {
            return;
        };
        let was = link.broken();
        let handled = link.handle(completion, |slot, news| {
            found(Found::News(queue, slot, news));
        });
        if let Err(broken) = handled
            && was.is_none()
        {
            found(Found::Broken(queue, broken));
        }
    }

    /// Before a sleep: from now on the next completion makes [`Self::events`] readable. The caller calls [`Self::progress`] once
    /// more, and sleeps only if that finds nothing.
    ///
    /// # Errors
    /// [`Refused`]: the device is gone.
    pub fn arm(&self) -> Result<(), Refused> {
        self.transport.arm()
    }

    /// What to sleep on.
    #[must_use]
    pub fn events(&self) -> RawFd {
        self.transport.events()
    }

    /// After a sleep.
    pub fn take_events(&self) {
        self.transport.take_events();
    }
}
