//! System calls of our own: straight to the kernel, past every hook, never a
//! cancellation point, `errno` untouched.

/// An `errno` value.
pub(crate) type Errno = i32;

macro_rules! call {
    ($name:ident $(, $argument:expr)*) => {
        // SAFETY: the caller of each wrapper here and below passes valid pointers, or none.
        unsafe { syscalls::syscall!(syscalls::Sysno::$name $(, $argument)*) }
            .map_err(|e| e.into_raw())
    };
}

// Behind the macro, which they use.
pub(crate) mod address;
mod affinity;
mod clock;
mod deep;
mod fd;
mod file;
mod memory;
mod objects;
mod pair;
mod proc;
mod readiness;
mod signal;
mod socket;
mod standard;

pub(crate) use affinity::{leave_core, move_to_core};
pub(crate) use clock::{now, ticks, wall_clock};

pub use deep::Objects;
pub(crate) use deep::{bind_module, has_search_path};
pub(crate) use fd::{
    close, copy_high, descriptor_limit, dup3, fcntl, first_of_ours, ioctl, ioctl_int, move_high,
    random, read, write,
};
pub(crate) use file::{
    File, RWF_NOSIGNAL, file, is_file, is_open_for, is_pipe, knows_nosignal, owner_and_mode, pipe,
    position, pread, read_now, splice_now, write_now,
};
pub use memory::is_readable;
pub(crate) use memory::{
    USER_END, is_sealed, map, map_file, map_shared_at, map_wiped_on_fork, may_grow_to, memory_file,
    seal, seal_size, unmap, wipe_on_fork,
};
pub(crate) use pair::Listener;
pub(crate) use proc::{
    comm, core, exit, getpid, has_threads, is_dead, is_stopped, open_in_proc, pid_namespace,
    refuses_to_run, take_over_pid_namespace,
};
pub(crate) use readiness::{
    epoll_create, epoll_ctl, epoll_now, eventfd, futex_wait, futex_wake_all, is_behind_descriptors,
    nap, poll_ms, poll_now, ready, sched_yield,
};
pub(crate) use signal::{
    block_signals, disposition, send_plain_signal, send_signal, set_default, set_disposition,
    set_signal_mask, unblock_signals,
};
pub(crate) use socket::{
    Plain, acknowledge, bind, connect, datagram_socket, getsockopt, name, push, put_name, recv,
    recvmsg, reset, send, send_more, send_room, send_to, sendmsg, setsockopt, shutdown, socket,
};
pub(crate) use standard::are_streams_in_reach;
