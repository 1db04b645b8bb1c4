//! What a message costs, counted.

use super::ends::Ends;
use super::store::Store;
use crate::fabric::Manners;

const MESSAGES: u64 = 10_000;

fn manners() -> Manners {
    Manners {
        manual: true,
        ..Manners::GOOD
    }
}

#[test]
fn a_message_of_a_ping_pong_is_one_inline_write_and_next_to_nothing_else() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, manners());
    ends.enter();
    let before = [0, 1].map(|side| ends.link(side).1.counts());
    let posts = [0, 1].map(|side| ends.ports[side].transport().counts());
    for _ in 0..MESSAGES {
        for side in 0..2 {
            assert_eq!(ends.send(side, 0, 8), 8);
            ends.progress(1 - side);
            assert_eq!(ends.receive(1 - side, 0, 100), 8);
        }
    }
    for side in 0..2 {
        let after = ends.link(side).1.counts();
        let nic = ends.ports[side].transport().counts();
        let writes = after.writes - before[side].writes;
        let notes = after.notes - before[side].notes;
        let grants = after.grants - before[side].grants;
        let signalled = after.signalled - before[side].signalled;
        println!(
            "ping-pong, 8 bytes, side {side}: per {MESSAGES} messages {writes} writes with immediate ({} bytes), {notes} notes, {grants} grants, \
             {signalled} signalled, {} doorbells, {} inline, {} completions",
            after.written - before[side].written,
            nic.posts - posts[side].posts,
            nic.inline - posts[side].inline,
            nic.completions - posts[side].completions,
        );
        assert_eq!(writes, MESSAGES);
        assert_eq!(after.written - before[side].written, 8 * MESSAGES);
        // A ring of 16 KiB here, which starts over at a quarter of that: a credit for each lap.
        assert!(notes <= MESSAGES / 200, "{notes}");
        assert!(grants <= MESSAGES / 100, "{grants}");
        assert!(signalled <= MESSAGES / 60, "{signalled}");
        assert_eq!(nic.posts - posts[side].posts, writes + notes + grants);
        assert_eq!(nic.inline - posts[side].inline, writes + notes + grants);
    }
}

#[test]
fn a_message_one_way_is_one_inline_write_too() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, manners());
    ends.enter();
    assert_eq!(ends.send(0, 0, 8), 8);
    let before = [0, 1].map(|side| ends.link(side).1.counts());
    for _ in 0..MESSAGES {
        assert_eq!(ends.send(0, 0, 8), 8);
        ends.progress(1);
        assert!(ends.receive(1, 0, 100) > 0);
        ends.progress(0);
    }
    let after = [0, 1].map(|side| ends.link(side).1.counts());
    assert_eq!(after[0].writes - before[0].writes, MESSAGES);
    assert!(
        after[0].notes + after[0].grants - before[0].notes - before[0].grants <= MESSAGES / 100
    );
    // The receiver says how far it has read, and what may be sent again.
    let said = after[1].notes + after[1].grants - before[1].notes - before[1].grants;
    println!("one way, 8 bytes: {said} notes of the receiver's for {MESSAGES} messages");
    assert!(said <= MESSAGES / 50, "{said}");
    assert_eq!(after[1].writes, before[1].writes);
}

#[test]
fn many_small_messages_that_wait_go_in_one_write() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, manners());
    ends.enter();
    assert_eq!(ends.send(0, 0, 1), 1);
    let before = ends.link(0).1.counts();
    // As a call with several buffers writes them: all frames first, one publication then.
    ends.write_frames(0, 0, 20, 8);
    let (nic, link) = ends.link(0);
    assert_eq!(link.publish(nic, 0), Ok(true));
    assert_eq!(ends.link(0).1.counts().writes - before.writes, 1);
    ends.finish();
}
