use super::*;
use crate::both_ends::one_at_a_time;
use crate::thread;

#[test]
fn news_go_before_a_signal_that_came_with_them() {
    let _alone = one_at_a_time();
    thread::learn_pid();
    let fd = sys::eventfd().unwrap();
    let seen = signals::now();
    signals::count_one(true);
    let ask = || {
        let mut one = [pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        // SAFETY: no mask.
        let outcome = unsafe { poll(&mut one, Limit::new(None), std::ptr::null(), seen) };
        (outcome, one[0].revents)
    };
    assert_eq!(ask(), (Outcome::Fail(libc::EINTR), 0));
    let one = 1u64;
    // SAFETY: the number is there.
    assert_eq!(unsafe { libc::write(fd, (&raw const one).cast(), 8) }, 8);
    assert_eq!(ask(), (Outcome::Done(1), libc::POLLIN));
    sys::close(fd);
}
