//! Which ends of a list are the two ends of one connection.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::Daemon;
use super::seeing::{Sight, View};
use crate::end::{End, EndId, State};
use crate::tuple::Tuple;

/// All ends, by their addresses. Those that the daemon knows have the same order in each list.
pub(super) type Table<'a> = IndexMap<Tuple, Known<'a>>;

/// What is known of an end.
#[derive(Debug, Default)]
pub(super) struct Known<'a> {
    /// What regions show of it. Most ends have one holder.
    pub(super) sights: SmallVec<[Sight; 1]>,
    /// As somebody has claimed or reported it.
    end: Option<(EndId, &'a End)>,
    /// [`grouped`] has put it into a group.
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
    /// Adds the ends that are claimed or reported, and not closed. Of several holders of the same end (`fork`), one
    /// that is paired counts, or else the one that came to the daemon last.
    pub(super) fn add_ends<'a>(&'a self, view: &mut View<'a>) {
        for (id, end) in self.ends.iter() {
            if view.closed.contains(&id) {
                continue;
            }
            if let Some(tuple) = end.tuple() {
                let holder = &mut view.table.entry(tuple).or_default().end;
                if !holder.is_some_and(|(_, former)| is_paired(former)) {
                    *holder = Some((id, end));
                }
            }
        }
    }

    /// The addresses of the other end of each connection that crosses network namespaces or whose
    /// addresses are translated: those are not the same with their order changed.
    pub(super) fn others(&self) -> HashMap<Tuple, Tuple> {
        let paired = self.ends.iter().filter(|(_, end)| is_paired(end));
        let known = paired.filter_map(|(_, end)| {
            let (own, other) = (end.tuple()?, end.mate?.socket.tuple);
            (other != own.flipped()).then_some((own, other))
        });
        let mut others: HashMap<_, _> = known.collect();
        // One of two may be paired no more.
        let one_way: Vec<_> = others.iter().map(|(own, other)| (*other, *own)).collect();
        for (other, own) in one_way {
            others.entry(other).or_insert(own);
        }
        others
    }
}

/// Both ends of each connection; `others`: as [`Daemon::others`]. An end of which nothing is known has the addresses that
/// it would have without translation.
pub(super) fn grouped<'a>(
    table: &'a Table<'a>,
    others: &HashMap<Tuple, Tuple>,
) -> Vec<[Side<'a>; 2]> {
    let mut groups = Vec::with_capacity(table.len().div_ceil(2));
    let mut lone = Vec::new();
    for (&tuple, known) in table {
        if known.grouped.replace(true) {
            continue;
        }
        let near = Side::of(tuple, known);
        let far = others.get(&tuple).and_then(|far| table.get_key_value(far));
        let far = far.or_else(|| table.get_key_value(&tuple.flipped()));
        // A connection to itself has one end.
        let is_free = |&(far, known): &(&Tuple, &Known<'_>)| !known.grouped.get() || *far == tuple;
        if let Some((&far, known)) = far.filter(is_free) {
            known.grouped.set(true);
            groups.push([near, Side::of(far, known)]);
        } else {
            lone.push(near);
        }
    }
    join_seats(&mut lone, &mut groups);
    let alone = |near: Side<'a>| [near, Side::unknown(near.tuple.flipped())];
    groups.extend(lone.into_iter().map(alone));
    groups
}

/// Groups the ends of each connection that a daemon before this one has paired across network namespaces: both say that
/// they have the same slot. Where more than two say so, one of them lies.
fn join_seats<'a>(lone: &mut Vec<Side<'a>>, groups: &mut Vec<[Side<'a>; 2]>) {
    let mut seats: IndexMap<(u64, u32), Vec<(usize, bool)>> = IndexMap::new();
    for (at, side) in lone.iter().enumerate() {
        // Relatives have the same end.
        if let Some(sight) = side.sights.iter().find(|sight| sight.seat.0 != 0) {
            let ends = seats.entry(sight.seat).or_default();
            ends.push((at, sight.accepts));
        }
    }
    let mut joined = HashSet::new();
    for ends in seats.into_values() {
        if let [(one, accepts), (other, other_accepts)] = ends[..]
            && accepts != other_accepts
        {
            groups.push([lone[one], lone[other]]);
            joined.extend([lone[one].tuple, lone[other].tuple]);
        }
    }
    lone.retain(|side| !joined.contains(&side.tuple));
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

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

    /// The ports of the ends of each group; 0: nothing is known of that end.
    fn groups(ends: &[(Tuple, Sight)], others: &[(Tuple, Tuple)]) -> Vec<[u16; 2]> {
        let known = |sight| Known {
            sights: smallvec![sight],
            ..Known::default()
        };
        let table: Table<'_> = ends.iter().map(|&(t, sight)| (t, known(sight))).collect();
        let port = |side: Side<'_>| (!side.sights.is_empty()).then_some(side.tuple.local.1);
        let groups = grouped(&table, &others.iter().copied().collect());
        let ports = groups
            .iter()
            .map(|ends| ends.map(port).map(Option::unwrap_or_default));
        let mut ports: Vec<_> = ports.collect();
        ports.sort_unstable();
        ports
    }

    #[test]
    fn within_one_namespace_addresses_tell_which_ends_are_one_connection() {
        let (one, alone, own) = (tuple(1, 80, 81), tuple(1, 90, 91), tuple(1, 70, 70));
        let ends = [
            (one, sight(8, true)),
            (alone, sight(8, false)),
            (one.flipped(), sight(8, false)),
            // The same addresses elsewhere are another connection.
            (tuple(2, 91, 90), sight(0, true)),
            (own, sight(0, true)),
        ];
        assert_eq!(groups(&ends, &[]), [[70, 70], [80, 81], [90, 0], [91, 0]]);
    }

    #[test]
    fn translated_ends_are_one_connection_while_both_are_there() {
        let (near, far) = (tuple(1, 4000, 8080), tuple(1, 7000, 4001));
        let others = [(near, far), (far, near)];
        let ends = [(near, sight(0, false)), (far, sight(0, true))];
        assert_eq!(groups(&ends, &others), [[4000, 7000]]);
        let table: Table<'_> = [(near, Known::default())].into_iter().collect();
        let [[own, other]] = grouped(&table, &others.into())[..] else {
            panic!("one end makes more than one connection");
        };
        assert_eq!([own.tuple, other.tuple], [near, near.flipped()]);
        // Two say that they have the same other end: it belongs to one of them.
        let third = (tuple(1, 5000, 8080), sight(0, false));
        let others = [(near, far), (far, near), (third.0, far)];
        let ends = [ends[0], ends[1], third];
        assert_eq!(groups(&ends, &others), [[4000, 7000], [5000, 0]]);
    }

    #[test]
    fn ends_of_two_namespaces_with_the_same_slot_are_one_connection() {
        let end = |netns, port, link, accepts| (tuple(netns, port, 9), sight(link, accepts));
        let mut ends = vec![
            end(1, 40, 9, false),
            end(1, 50, 8, true),
            end(2, 51, 8, false),
            end(2, 41, 9, true),
            // Both accept.
            end(1, 60, 7, true),
            end(2, 61, 7, true),
            // These have had no slot.
            end(1, 70, 0, true),
            end(2, 71, 0, false),
        ];
        let alone = [[60, 0], [61, 0], [70, 0], [71, 0]];
        let joined = [[40, 41], [50, 51]];
        assert_eq!(groups(&ends, &[]), [&joined[..], &alone].concat());
        // One more says that it has it, too.
        ends.push(end(3, 42, 9, true));
        let lied = [[40, 0], [41, 0], [42, 0], [50, 51]];
        assert_eq!(groups(&ends, &[]), [&lied[..], &alone].concat());
    }
}
