//! What a view says of the peer's state.

use shunt_shm::slot::READY;

use super::ends::Ends;
use super::store::Store;
use crate::fabric::Manners;

#[test]
fn a_view_says_that_the_peer_honours_the_ring_in_the_life_of_which_it_has_said_so() {
    let store = Store::new(2);
    let mut ends = Ends::new(&store, Manners::bad(1));
    let all_say = |life, state| {
        [0, 1].iter().all(|&side| {
            let views = [0, 1].map(|slot| store.lines(side, slot).view.state(life));
            views == [state; 2]
        })
    };
    assert!(all_say(1, None));
    ends.settle();
    assert!(all_say(1, Some(READY)) && all_say(2, None));
    ends.come_back();
    assert!(all_say(2, None));
    ends.settle();
    assert!(all_say(2, Some(READY)) && all_say(1, None));
}

#[test]
fn a_slot_that_a_link_has_not_is_refused() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, Manners::bad(1));
    let (nic, link) = ends.link(0);
    // SAFETY: the store outlives the ports.
    let refused = unsafe { link.open(nic, u32::from(u16::MAX), 1, store.lines(0, 0)) };
    assert!(refused.is_err());
}
