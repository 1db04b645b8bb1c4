//! What the processes of each user have counted since this daemon began, for `shunt metrics`: those that live count what
//! their regions say, and those that have ended what theirs said last.

use std::collections::{HashMap, HashSet};

use shunt_abi::message::Message;
use shunt_abi::totals::{OTHERS, Totals};

use super::Daemon;
use super::accounting::Orphan;
use crate::account::Account;

/// Users whose counts are kept apart. A daemon that lives for long has few; what more of them count is told as one user's.
const USERS: usize = 1024;

/// What processes have counted that are not watched any more, by user.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(HashMap<u32, Totals>);

impl Tally {
    /// Gives a user room of its own, if there is some.
    fn admit(&mut self, uid: u32) {
        if self.0.len() < USERS {
            self.0.entry(uid).or_default();
        }
    }

    fn add(&mut self, uid: u32, totals: &Totals) {
        match self.0.get_mut(&uid) {
            Some(known) => known.add(totals),
            None => self.0.entry(OTHERS).or_default().add(totals),
        }
    }

    /// In the order of users.
    fn messages(&self) -> Vec<Message> {
        let mut users: Vec<_> = self.0.iter().collect();
        users.sort_unstable_by_key(|(uid, _)| **uid);
        let messages = users.into_iter().map(|(uid, totals)| totals.messages(*uid));
        messages.flatten().collect()
    }
}

impl Daemon {
    /// A process of this user's is watched from now on.
    pub(super) fn tally_user(&mut self, uid: u32) {
        self.tally.admit(uid);
    }

    /// A process is not watched any more, as it `has_ended` or there is no room to.
    pub(super) fn tally_last(&mut self, uid: u32, account: &mut Account, has_ended: bool) {
        let most = self.config.limits.connections_per_client;
        let last = if has_ended {
            account.last_totals(most)
        } else {
            account.totals(most)
        };
        self.tally.add(uid, &last);
    }

    /// An orphan has ended that had gone to another daemon, which counts what it did there.
    pub(super) fn tally_lost(&mut self, orphan: &Orphan) {
        self.tally.add(orphan.uid, &orphan.account.known_totals());
    }

    /// What all have counted, for who may see all of them.
    pub(super) fn totals(&mut self) -> Vec<Message> {
        let most = self.config.limits.connections_per_client;
        let mut tally = self.tally.clone();
        for client in self.clients.values_mut() {
            if let Some(account) = &mut client.account {
                tally.add(client.uid, &account.totals(most));
            }
        }
        let ours = self.orphans.iter().filter(|(_, o)| self.answers_for(o));
        let ours: HashSet<u64> = ours.map(|(id, _)| *id).collect();
        for (id, orphan) in &mut self.orphans {
            let account = &mut orphan.account;
            let totals = if ours.contains(id) {
                account.totals(most)
            } else {
                account.known_totals()
            };
            tally.add(orphan.uid, &totals);
        }
        tally.messages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_beyond_those_that_have_room_are_told_as_one() {
        let mut tally = Tally::default();
        for uid in 0..USERS as u32 + 2 {
            tally.admit(uid);
            tally.add(uid, &Totals::default());
        }
        let told: Vec<_> = tally
            .messages()
            .iter()
            .filter_map(Totals::user_of)
            .collect();
        let own = 0..USERS as u32;
        assert!(told.into_iter().eq(own.chain([OTHERS])));
    }
}
