//! Which of the kernel's dispositions are ours, and which the program's.

use libc::sighandler_t;

use super::fault::guarding;
use super::handlers::ADDRESS;
use super::trampoline::counting;

/// Whether a disposition is a function of the program's that we stand in for.
pub(super) fn is_function(handler: sighandler_t) -> bool {
    // Below the first page: SIG_DFL, SIG_IGN and nonsense. Ours: the program got
    // it past us and puts it back.
    (4096..=ADDRESS).contains(&handler) && handler != counting() && handler != guarding()
}

/// What the program knows a disposition's handler as.
pub(super) fn handler_of(entry: usize, kernel: sighandler_t) -> sighandler_t {
    if kernel == counting() || kernel == guarding() {
        entry & ADDRESS
    } else {
        kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_function_of_the_programs_is_stood_in_for() {
        for other in [libc::SIG_DFL, libc::SIG_IGN, 4095, counting(), guarding()] {
            assert!(!is_function(other));
        }
        assert!(is_function(0x5555_0000));
    }

    #[test]
    fn the_program_sees_its_own_handler_where_the_kernel_names_ours() {
        let entry = 0x5555_0000 | super::super::handlers::RESTARTS;
        assert_eq!(handler_of(entry, counting()), 0x5555_0000);
        assert_eq!(handler_of(entry, guarding()), 0x5555_0000);
        assert_eq!(handler_of(entry, libc::SIG_IGN), libc::SIG_IGN);
    }
}
