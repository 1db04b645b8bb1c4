//! One process on another host: its queue pair, and the connections on it.

use std::collections::BTreeMap;

use shunt_abi::Reason;
use shunt_rdma::bond::Lines;
use shunt_rdma::meeting::Meeting;
use shunt_rdma::nic::Nic;
use shunt_rdma::port::Port;
use shunt_rdma::transport::{QueueId, Refused};
use shunt_rdma::word;

/// What one process says to another by way of their daemons.
pub(crate) type Text = [u8; word::BYTES];

/// One process on another host.
pub(super) struct Peer {
    /// The link that this process has to it.
    pub(super) link: u32,
    pub(super) meeting: Meeting<Nic>,
    /// The queue pair, once this side has connected it.
    pub(super) queue: Option<QueueId>,
    /// The peer has connected it, too: this side may send.
    pub(super) is_met: bool,
    /// Connections that were attached before that.
    pub(super) early: Vec<Opening>,
    /// The queue pair of each connection that the peer has been told of, by slot.
    pub(super) queues: BTreeMap<u32, QueueId>,
    /// Queue pairs that are over, and have connections that must still leave their rings.
    pub(super) former: Vec<QueueId>,
}

/// A connection that is attached: its slot, its life and its memory.
#[derive(Clone, Copy)]
pub(super) struct Opening {
    pub(super) slot: u32,
    pub(super) life: u32,
    pub(super) lines: Lines<'static>,
}

impl Peer {
    /// At the other end of a link.
    pub(super) fn new(link: u32) -> Self {
        Self {
            link,
            meeting: Meeting::new(),
            queue: None,
            is_met: false,
            early: Vec::new(),
            queues: BTreeMap::new(),
            former: Vec::new(),
        }
    }

    pub(super) fn offer(&mut self, port: &Port<'static, Nic>, say: &mut impl FnMut(&Text) -> bool) {
        if self.queue.is_none()
            && let Ok(offer) = self.meeting.begin(port.transport())
        {
            // A word that is lost ends the round; the next connection of the link begins another one.
            say(&offer.to_bytes());
        }
    }

    /// The peer can receive from now on: opens the connections that waited for that.
    pub(super) fn meet(&mut self, port: &mut Port<'static, Nic>) {
        self.is_met = true;
        for opening in std::mem::take(&mut self.early) {
            // SAFETY: as when it was to be opened first. One that the NIC refuses stays on TCP without a word.
            let _ = unsafe { self.open_now(port, opening) };
        }
    }

    /// # Safety
    /// As for [`open`].
    pub(super) unsafe fn open(
        &mut self,
        port: &mut Port<'static, Nic>,
        opening: Opening,
    ) -> Result<(), Reason> {
        if self.is_met {
            // SAFETY: the caller's promise.
            let opened = unsafe { self.open_now(port, opening) };
            return opened.map_err(|_| Reason::Pinned);
        }
        self.take_back(opening.slot);
        self.early.push(opening);
        Ok(())
    }

    /// Takes back a connection of this slot that the peer has not been told of.
    pub(super) fn take_back(&mut self, slot: u32) {
        self.early.retain(|early| early.slot != slot);
    }

    /// # Safety
    /// As for [`open`].
    unsafe fn open_now(
        &mut self,
        port: &mut Port<'static, Nic>,
        opening: Opening,
    ) -> Result<(), Refused> {
        self.former.retain(|&queue| {
            let is_needed = port.link(queue).is_some_and(|(_, link)| link.is_needed());
            if !is_needed {
                port.remove(queue);
            }
            is_needed
        });
        let Opening { slot, life, lines } = opening;
        let Some(queue) = self.queue else {
            return Ok(());
        };
        let Some((wire, link)) = port.link(queue) else {
            return Ok(());
        };
        // SAFETY: the caller's promise.
        unsafe { link.open(wire, slot, life, lines) }?;
        self.queues.insert(slot, queue);
        Ok(())
    }
}
