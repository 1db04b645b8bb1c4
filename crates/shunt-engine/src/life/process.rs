//! The process: start, fork, exec, exit, and a change of its rights. What becomes of each connection at an exec stands in
//! [`inherit`].

use libc::{c_char, c_int};
use shunt_abi::Reason;

use super::{adopt, fork, inherit, successor};
use crate::config::{self, Environment, Upgrade};
use crate::socket::{SOCKETS, Socket, Stage, made};
use crate::stream::{self, Conn};
use crate::{Outcome, control, epoll, link, recycle, region, signal, stats, sys, thread};

/// The library's constructor: reads the environment; makes no descriptor.
///
/// # Safety
/// The strings are the third argument of a constructor, in that constructor.
#[inline]
pub unsafe fn start(environment: *const *const c_char) {
    thread::learn_pid();
    // SAFETY: the caller's promise.
    let environment = unsafe { Environment::new(environment) };
    config::read(environment);
    region::line_file::start(environment);
    stats::announce();
    adopt::look_around();
}

/// Before any fork, with the flags of `clone(2)`; the calling thread forks.
#[inline]
pub fn before_fork(flags: u64) {
    if thread::is_used() {
        fork::before_fork(flags & libc::CLONE_NEWPID as u64 != 0);
    }
}

/// After a fork, in the parent.
#[inline]
pub fn after_fork_parent() {
    if thread::is_used() {
        fork::after_fork_parent();
    }
}

/// Before a child is made that runs on this memory (`vfork(2)`, `CLONE_VM`).
#[inline]
pub fn before_lending() {
    made::before_child();
    if thread::owns_memory() {
        recycle::shut_shared();
    }
    thread::lend_memory();
}

/// After a fork, in the child.
#[inline]
pub fn after_fork_child() {
    thread::learn_pid();
    fork::set_children_beside();
    signal::after_fork_child();
    if thread::is_used() {
        fork::after_fork_child();
    }
}

/// Before any exec: the process becomes another program, whose line of statistics will not know of
/// the connections up to here.
#[inline]
pub fn before_exec() {
    if thread::is_used() {
        leave_for_program();
    }
}

/// Before an exec of the file that `path` names in `directory`. If the kernel would refuse it
/// nothing changes, so that programs which look for a file by trying (`PATH`) keep their
/// connections where they are.
///
/// # Safety
/// As for `execveat` without flags.
#[inline]
pub unsafe fn before_exec_of(directory: c_int, path: *const c_char) -> Outcome {
    if thread::is_used() {
        // A confined process makes no call that is not its own, and has no more connections here.
        if !config::is_confined()
            && let Some(errno) = sys::refuses_to_run(directory, path)
        {
            return Outcome::Fail(errno);
        }
        leave_for_program();
    }
    Outcome::Kernel
}

#[cold]
fn leave_for_program() {
    inherit::before_program();
    if thread::owns_descriptors() {
        inherit::leave_the_rest();
        epoll::give_back();
    }
    stats::write_if_any();
}

/// After an exec that failed.
#[inline]
pub fn after_exec() {
    if thread::is_used() {
        stats::forget_written();
    }
}

/// Before any exit of the process: the kernel will close what is open.
#[inline]
pub fn before_exit() {
    if thread::is_used() {
        end_process();
    }
}

#[cold]
fn end_process() {
    if thread::owns_descriptors() {
        close_all();
    }
    stats::write_at_last();
}

/// The process ends: its connections end as if it had closed them. One that a relative has, too, as the parent of a
/// forked child, stays as it is (`before_close`).
fn close_all() {
    for socket in SOCKETS.each() {
        if socket.stage() == Stage::Attached
            && let Some(conn) = Conn::new(socket, socket.fd())
        {
            stream::before_close(&conn);
        }
        if socket.is_live() && socket.inside.is_empty() {
            socket.share.leave();
        }
    }
}

/// Before the process changes its user, its root or its rights: afterwards it
/// might no longer reach the daemon that serves it now, nor `/proc`.
pub fn before_new_identity() {
    if thread::owns_memory() && config::upgrade() != Upgrade::Off {
        recycle::give_up_all();
        control::ensure();
        sys::pid_namespace();
        link::drop_all_but(|visit| Socket::each_used(|_| true, visit));
    }
}

/// Before the program says where one of its threads, or of another process's, runs: the library moves none of its own from then on.
pub fn before_affinity() {
    stream::leave_alone();
}

/// Before the process changes its groups: what it connects and accepts is theirs from then on.
pub fn before_new_group() {
    if thread::owns_memory() {
        recycle::give_up_all();
    }
}

/// Before one thread becomes another user, or gets another group, than the others: a connection that one of them has closed
/// must not be used again by another.
pub fn before_own_identity() {
    if thread::owns_memory() {
        recycle::keep_no_more();
    }
}

/// Before `unshare`.
pub fn before_unshare(flags: libc::c_int) {
    if flags & libc::CLONE_FILES != 0 && sys::has_threads() {
        inherit::before_sharing_table();
    }
}

/// After a successful `unshare`. The thread's descriptors are its own now, unless
/// it is alone and they were already.
pub fn after_unshare(flags: libc::c_int) {
    if flags & libc::CLONE_NEWNET != 0 {
        // Its next sockets are in another network namespace.
        recycle::give_up_all();
        recycle::set_apart();
    }
    if flags & libc::CLONE_NEWPID != 0 {
        fork::set_children_apart();
    }
    if flags & libc::CLONE_FILES != 0 && sys::has_threads() {
        thread::set_apart();
        // Two tables have what one had.
        made::before_child();
        recycle::shut_shared();
    }
}

/// After a successful `setns`. `kind` 0: it may have been any kind of namespace.
pub fn after_setns(kind: libc::c_int) {
    if kind == 0 || kind & libc::CLONE_NEWNET != 0 {
        recycle::set_apart();
    }
    if kind == 0 || kind & libc::CLONE_NEWPID != 0 {
        fork::set_children_apart();
    }
}

/// Before the process, or a thread of it, gives up system calls (`seccomp(2)`): ours may be
/// among them, so what it has goes back to the kernel, and programs that it executes go without libshunt.
/// Relatives may keep what is not in use yet.
pub fn before_confinement() {
    if thread::owns_memory() {
        recycle::give_up_all();
        inherit::forget_all(Reason::Confined);
        epoll::close_channels();
        // Connections that no descriptor names are not needed either.
        link::drop_all_but(|visit| Socket::each_used(|socket| socket.descriptors() > 0, visit));
        config::confine();
        successor::send_without();
    }
}

/// Before the process gets another `RLIMIT_NOFILE` (`getrlimit(2)`).
///
/// With less than three descriptors it can open none to ask shuntd, or to wake a peer. A process that sets such a
/// limit mostly gives up system calls next, and a connection that several processes have cannot go back to the kernel
/// then: so it goes now.
///
/// # Safety
/// As for `setrlimit`.
pub unsafe fn before_descriptor_limit(new: *const libc::rlimit) {
    const FEW: libc::rlim_t = 3;
    if !thread::is_used() || !thread::owns_memory() || !sys::is_readable(new) {
        return;
    }
    // SAFETY: readable, as we have just seen.
    if unsafe { (*new).rlim_cur } < FEW {
        inherit::give_up_shared(Reason::Confined);
    }
}
