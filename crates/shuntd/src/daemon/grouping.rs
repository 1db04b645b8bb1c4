//! Which ends of a list are the two ends of one connection.

use std::cell::Cell;
use std::collections::HashMap;

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::Daemon;
use super::seeing::{Sight, View};
use crate::end::{End, EndId, State};
use crate::tuple::Tuple;

/// All ends, by their addresses. A list has the order of the one before: who shows it does not sort everything.
pub(super) type Sights<'a> = IndexMap<Tuple, Known<'a>>;

/// What is known of an end.
#[derive(Debug, Default)]
pub(super) struct Known<'a> {
    /// What regions show of it. Few are shared.
    pub(super) sights: SmallVec<[Sight; 1]>,
    /// As somebody has claimed or reported it.
    end: Option<(EndId, &'a End)>,
    /// It is in a group.
    grouped: Cell<bool>,
}

/// One end of a connection: what regions show of it, and what the daemon knows of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub(super) tuple: Tuple,
    pub(super) sights: &'a [Sight],
    pub(super) end: Option<(EndId, &'a End)>,
}

impl<'a> Side<'a> {
    fn of(tuple: Tuple, known: &'a Known<'a>) -> Self {
        let (sights, end) = (&known.sights[..], known.end);
        Self { tuple, sights, end }
    }

    /// An end of which nothing is known.
    fn unknown(tuple: Tuple) -> Self {
        let (sights, end) = (&[][..], None);
        Self { tuple, sights, end }
    }
}

/// Whether the daemon has brought it together with its other end, here or on another host.
pub(super) fn is_paired(end: &End) -> bool {
    matches!(end.state, State::Paired(_) | State::Met)
}

impl Daemon {
    /// Adds the ends that are claimed or reported, and not closed. Of several holders of the same end (`fork`), the one
    /// that is paired counts.
    pub(super) fn add_ends<'a>(&'a self, view: &mut View<'a>) {
        for (id, end) in self.ends.iter() {
            if view.closed.contains(&id) {
                continue;
            }
            if let Some(tuple) = end.tuple() {
                let known = &mut view.sights.entry(tuple).or_default().end;
                if !known.is_some_and(|(_, known)| is_paired(known)) {
                    *known = Some((id, end));
                }
            }
        }
    }

    /// Both ends of each connection. An end of which nothing is known has the addresses that it would have without
    /// translation.
    pub(super) fn grouped<'a>(&self, ends: &'a Sights<'a>) -> Vec<[Side<'a>; 2]> {
        let others = self.others();
        let mut groups = Vec::with_capacity(ends.len());
        let mut lone = Vec::new();
        for (&tuple, known) in ends {
            if known.grouped.replace(true) {
                continue;
            }
            let near = Side::of(tuple, known);
            let other = others.get(&tuple).copied().unwrap_or(tuple.flipped());
            if let Some(known) = ends.get(&other) {
                known.grouped.set(true);
                groups.push([near, Side::of(other, known)]);
            } else {
                lone.push(near);
            }
        }
        join_seats(&mut lone, &mut groups);
        let unknown = |near: &Side<'_>| {
            let other = others.get(&near.tuple).copied();
            Side::unknown(other.unwrap_or(near.tuple.flipped()))
        };
        groups.extend(lone.into_iter().map(|near| [near, unknown(&near)]));
        groups
    }

    /// The addresses of the other end of each connection that crosses network namespaces or whose
    /// addresses are translated: those are not the same with their order changed.
    fn others(&self) -> HashMap<Tuple, Tuple> {
        let paired = self.ends.iter().filter(|(_, end)| is_paired(end));
        let known = paired.filter_map(|(_, end)| {
            let (own, other) = (end.tuple()?, end.mate?.socket.tuple);
            (other != own.flipped()).then_some((own, other))
        });
        known.collect()
    }
}

/// Groups the ends of each connection that a daemon before this one has paired across network namespaces: both say that
/// they have the same slot. Where more than two say so, one of them lies.
fn join_seats<'a>(lone: &mut Vec<Side<'a>>, groups: &mut Vec<[Side<'a>; 2]>) {
    let mut seats: HashMap<(u64, u32), Vec<(usize, bool)>> = HashMap::new();
    for (at, side) in lone.iter().enumerate() {
        // Relatives have the same end.
        if let Some(sight) = side.sights.iter().find(|sight| sight.seat.0 != 0) {
            let ends = seats.entry(sight.seat).or_default();
            ends.push((at, sight.accepts));
        }
    }
    let mut joined: Vec<usize> = Vec::new();
    for ends in seats.into_values() {
        if let [(one, accepts), (other, other_accepts)] = ends[..]
            && accepts != other_accepts
        {
            groups.push([lone[one], lone[other]]);
            joined.extend([one, other]);
        }
    }
    joined.sort_unstable();
    for at in joined.into_iter().rev() {
        lone.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(link: u64, accepts: bool) -> Sight {
        Sight {
            client: 1,
            accepts,
            status: 0,
            seat: (link, 5),
            sent: [0, 0],
            received: [0, 0],
            calls: [[0; 2]; 2],
            sleeps: 0,
            since: 0,
        }
    }

    fn tuple(netns: u64, local: u16, peer: u16) -> Tuple {
        let address = |port| ([10, 0, 0, 1], port).into();
        Tuple::new(netns, address(local), address(peer))
    }

    #[test]
    fn ends_of_two_namespaces_with_the_same_slot_are_one_connection() {
        let sights = [
            (9, false),
            (9, true),
            (8, false),
            (0, true),
            (0, false),
            (9, true),
        ];
        let sights = sights.map(|(link, accepts)| [sight(link, accepts)]);
        let side = |(at, sights): (usize, &'static [Sight])| Side {
            sights,
            ..Side::unknown(tuple(1, 4000 + at as u16, 8080))
        };
        let sights: Vec<&'static [Sight]> =
            sights.into_iter().map(|s| &*s.to_vec().leak()).collect();
        let sides: Vec<_> = sights.into_iter().enumerate().map(side).collect();
        let grouped = |count: usize| {
            let (mut lone, mut groups) = (sides[..count].to_vec(), Vec::new());
            join_seats(&mut lone, &mut groups);
            let mut lone: Vec<_> = lone.iter().map(|side| side.tuple.local.1).collect();
            lone.sort_unstable();
            let groups = groups
                .iter()
                .map(|ends| ends.map(|side| side.tuple.local.1));
            (lone, groups.collect::<Vec<_>>())
        };
        assert_eq!(grouped(5), (vec![4002, 4003, 4004], vec![[4000, 4001]]));
        // One more says that it has it, too.
        assert_eq!(grouped(6).1, Vec::<[u16; 2]>::new());
    }
}
