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
