//! The process: start, fork, exec, exit, and a change of its rights.

use shunt_abi::Reason;

use super::{adopt, inherit};
use crate::config::{self, Upgrade};
use crate::{Outcome, control, process, stats, sys, thread};

/// The library's constructor: reads the environment; makes no descriptor.
pub fn start() {
    thread::learn_pid();
    config::read();
    stats::start();
    adopt::look_around();
}

/// Before any fork; the calling thread forks.
pub fn before_fork() {
    process::before_fork();
}

/// After a fork, in the parent (also when it failed).
pub fn after_fork_parent() {}

/// After a fork, in the child.
pub fn after_fork_child() {
    process::after_fork_child();
}

/// Before any exec: the same process goes on as another program, whose own line
/// will not know of the connections up to here.
pub fn before_exec() {
    inherit::before_program();
    if thread::owns_memory() {
        inherit::leave_the_rest();
    }
    stats::write_if_any();
}

/// After an exec that failed.
pub fn after_exec() {
    stats::forget_written();
}

/// Before an exit of the process by any road: the kernel will close what is open.
pub fn before_exit() {
    if thread::owns_memory() {
        process::before_exit();
    }
    stats::write_at_last();
}

/// Before the process changes its user, its root or its rights: afterwards it
/// might no longer reach the daemon that serves it now.
pub fn before_new_identity() {
    if thread::owns_memory() {
        stats::prepare();
        if config::upgrade() != Upgrade::Off {
            control::ensure();
        }
    }
}

/// Before `io_uring_setup` by `syscall`: its calls pass us by, so this process
/// makes no more upgrades, and what it has goes back. Or there is no such call, as its
/// user wishes: then runtimes take epoll.
pub fn before_io_uring() -> Outcome {
    if config::rings() == config::Rings::Denied {
        return Outcome::Fail(libc::ENOSYS);
    }
    config::use_rings();
    if thread::owns_memory() {
        inherit::give_up_all(Reason::IoUring);
    }
    Outcome::Kernel
}

/// After a successful `unshare`. The thread's descriptors are its own now, unless
/// it is alone and they were already.
pub fn after_unshare(flags: libc::c_int) {
    if flags & libc::CLONE_FILES != 0 && sys::has_threads() {
        thread::set_apart();
    }
}

/// Before the process, or a thread of it, gives up system calls (`seccomp(2)`): ours may be
/// among them, so what it has goes back to the kernel. Relatives may keep what is
/// not in use yet.
pub fn before_confinement() {
    if thread::owns_memory() {
        stats::prepare();
        inherit::forget_all(Reason::Confined);
        config::confine();
    }
}
