//! What comes of completions: writes of the peer's, its notes, and failures.

use shunt_shm::atomic::Ordering;
use shunt_shm::ring::Fault;

use super::{Broken, Link, News, Place};
use crate::bond::{Bond, Heard};
use crate::immediate::Immediate;
use crate::note::Note;
use crate::transport::{Completion, Target, Transport};

impl<T: Transport> Link<'_, T> {
    /// What came of a completion of this link's queue pair.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn handle(
        &mut self,
        completion: &Completion,
        mut news: impl FnMut(u32, News),
    ) -> Result<(), Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        match *completion {
            Completion::Sent { tag, .. } => {
                self.lane.sent(tag);
                Ok(())
            }
            Completion::Failed { status, .. } => Err(self.fail(Broken::Queue(status))),
            Completion::Written {
                immediate, length, ..
            } => self.written(immediate, length, &mut news),
            Completion::Note {
                ref bytes, length, ..
            } => match Note::parse(bytes, length) {
                Some((note, granted)) if self.lane.noted(granted).is_ok() => {
                    self.noted(note, &mut news)
                }
                _ => Err(self.fail(Broken::Peer)),
            },
        }
    }

    fn written(
        &mut self,
        word: u32,
        length: u32,
        news: &mut impl FnMut(u32, News),
    ) -> Result<(), Broken> {
        let arrival = self.lane.arrival();
        let (Some(immediate), Ok(())) = (Immediate::unpack(word), arrival) else {
            return Err(self.fail(Broken::Peer));
        };
        let slot = immediate.slot;
        let Some(place) = self.places.get_mut(slot as usize) else {
            return Err(self.fail(Broken::Peer));
        };
        let Some(bond) = &mut place.bond else {
            return Ok(());
        };
        match bond.arrived(immediate, length) {
            Ok(true) => news(slot, News::Data),
            Ok(false) => {}
            Err(_) => return Err(self.fail(Broken::Peer)),
        }
        Ok(())
    }

    fn noted(&mut self, note: Note, news: &mut impl FnMut(u32, News)) -> Result<(), Broken> {
        let slot = match note {
            Note::Grant => return Ok(()),
            Note::Begin { slot, .. }
            | Note::Ready { slot, .. }
            | Note::Switch { slot, .. }
            | Note::Switched { slot, .. }
            | Note::Credit { slot, .. }
            | Note::Room { slot, .. }
            | Note::Recall { slot }
            | Note::End { slot, .. } => slot,
        };
        let Some(place) = self.places.get_mut(slot as usize) else {
            return Err(self.fail(Broken::Peer));
        };
        let noted = place.noted(note);
        self.unsaid |= place.bond.as_ref().is_some_and(Bond::is_due);
        match noted {
            Ok(Some(what)) => news(slot, what),
            Ok(None) => {}
            Err(_) => return Err(self.fail(Broken::Peer)),
        }
        Ok(())
    }
}

impl<T: Transport> Place<'_, T> {
    fn noted(&mut self, note: Note) -> Result<Option<News>, Fault> {
        if let Note::Begin { life, .. } = note {
            self.heard = Heard {
                begun: life,
                ..Heard::default()
            };
            if let Some(bond) = &mut self.bond
                && bond.life == life
            {
                bond.peer_began();
            }
            return Ok(None);
        }
        let begun = self.heard.begun;
        if let Note::Ready {
            life, key, address, ..
        } = note
        {
            self.heard.ready = Some((life, Target { key, address }));
            self.show_ready();
            return Ok(Some(News::Ready));
        }
        let is_begun = |bond: &&mut Bond<T>| bond.life == begun && begun != 0;
        let Some(bond) = self.bond.as_mut().filter(is_begun) else {
            // Of a life that has ended here, or has not begun.
            return Ok(None);
        };
        let view = bond.lines.view;
        Ok(Some(match note {
            Note::Switch { at, .. } => {
                bond.switched(at);
                News::Switched
            }
            Note::Switched { at, .. } if bond.agreed(at) => News::Agreed,
            Note::Switched { .. } => return Ok(None),
            Note::Credit {
                read, bytes, left, ..
            } => {
                bond.credited(read, bytes, left)?;
                News::Room
            }
            Note::Room { bytes, .. } => {
                bond.ask(bytes);
                return Ok(None);
            }
            Note::Recall { .. } => {
                bond.recalled();
                News::Recalled
            }
            Note::End { bytes, .. } => {
                view.output.bytes.store(bytes, Ordering::Release);
                bond.is_ended = true;
                News::Ended
            }
            Note::Grant | Note::Begin { .. } | Note::Ready { .. } => return Ok(None),
        }))
    }
}
