//! What other hosts say of the connections to this one. Nothing of it is believed that the table does not confirm.

use shunt_abi::Reason;
use shunt_hosts::{Claim, Frame, HostId};

use super::act::{Act, gone};
use super::{Stand, Table};

/// Claims of one host that are remembered. More of them stay on TCP.
pub(super) const MOST: usize = 1 << 16;

impl Table {
    /// A host says something.
    pub(crate) fn said(&mut self, host: HostId, frame: Frame) -> Vec<Act> {
        let mut acts = Vec::new();
        match frame {
            Frame::Claim(claim) => self.hear_claim(host, claim, &mut acts),
            Frame::Drop(end) => self.hear_drop(host, end, &mut acts),
            Frame::Seat {
                to,
                from,
                slot,
                generation,
            } => self.hear_seat(host, [to, from], [slot, generation], &mut acts),
            Frame::Word { to, from, text } => {
                let word = |link| Act::Word {
                    client: to,
                    link,
                    text,
                };
                acts.extend(self.pairs.find(to, host, from).map(word));
            }
            Frame::Gone(process) => {
                let closed = self.pairs.forget_process(host, process);
                acts.extend(closed.into_iter().map(gone));
            }
            Frame::Died {
                to,
                from,
                received,
                sent,
            } => acts.extend(self.hear_died(host, [to, from], [received, sent])),
            Frame::Hello { .. } | Frame::Ping(_) | Frame::Pong(_) => {}
        }
        acts
    }

    fn hear_claim(&mut self, host: HostId, claim: Claim, acts: &mut Vec<Act>) {
        let known = self.hosts.entry(host).or_default();
        if known.theirs.len() >= MOST {
            return;
        }
        known.theirs.insert(claim);
        match known.told.mirror(&claim) {
            Some(ours) => {
                let end = ours.end;
                self.match_up(host, end, &claim, acts);
            }
            None => acts.push(Act::Invite(host, claim)),
        }
    }

    fn hear_drop(&mut self, host: HostId, theirs: u64, acts: &mut Vec<Act>) {
        let Some(known) = self.hosts.get_mut(&host) else {
            return;
        };
        known.theirs.remove(theirs);
        if let Some(end) = self.met.remove(&(host, theirs))
            && let Some(ours) = self.ours.get(&end)
            && let Stand::Met(_, _, seat) = ours.stand
        {
            acts.push(Act::Left(ours.id, seat));
        }
        self.pairs.left(host, theirs);
    }

    /// The process that had the other end of one of ours has died. It is believed of ends that have met, also after it was dropped.
    fn hear_died(&self, host: HostId, [to, from]: [u64; 2], bytes: [u64; 2]) -> Option<Act> {
        let ours = self.ours.get(&to)?;
        match ours.stand {
            Stand::Met(at, theirs, seat) if (at, theirs) == (host, from) => {
                Some(Act::Died(ours.id, seat, bytes))
            }
            _ => None,
        }
    }

    /// A host has given two ends a slot, which must be the two of a connection.
    fn hear_seat(
        &mut self,
        host: HostId,
        [to, from]: [u64; 2],
        [slot, generation]: [u32; 2],
        acts: &mut Vec<Act>,
    ) {
        let Some(known) = self.hosts.get(&host) else {
            return;
        };
        let theirs = known.theirs.get(from);
        let Some(theirs) = theirs.filter(|theirs| {
            let mirror = known.told.mirror(theirs);
            host < self.me && mirror.is_some_and(|ours| ours.end == to)
        }) else {
            return;
        };
        let Some(ours) = self.ours.get_mut(&to) else {
            return;
        };
        if ours.stand != Stand::Told(host) {
            return;
        }
        if generation == 0 {
            let reason = reason(u8::try_from(slot).unwrap_or(0));
            acts.push(Act::Refuse(ours.id, reason));
            return;
        }
        let processes = (ours.id.client, host, theirs.process);
        acts.push(match self.pairs.accept(processes, slot, generation) {
            Ok(seat) => {
                ours.stand = Stand::Met(host, from, seat);
                self.met.insert((host, from), to);
                Act::Meet(ours.id, seat)
            }
            Err(reason) => Act::Refuse(ours.id, reason),
        });
    }
}

/// The reason with this number, if it is one that another host can have. A later version may have others.
pub(super) fn reason(number: u8) -> Reason {
    let has = |reason: &Reason| {
        matches!(
            reason,
            Reason::NoDevice
                | Reason::DeviceKind
                | Reason::Pinned
                | Reason::Policy
                | Reason::OtherHost
                | Reason::NoResources
                | Reason::Protocol
        )
    };
    let reason = Reason::from_number(number).filter(has);
    reason.unwrap_or(Reason::OtherHost)
}
