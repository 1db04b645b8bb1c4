//! Birth, sharing and death of descriptors and processes.
//!
//! `before_…` and `after_…` functions surround the real call; the others answer
//! with an [`Outcome`](crate::Outcome). None of them disturbs `errno`.
//!
//! # Safety
//! Here and in the modules below, pointers are the program's own, valid as the
//! man page of the call demands.
#![allow(clippy::missing_safety_doc)]

mod adopt;
mod closing;
mod connection;
mod descriptor;
mod end;
mod fork;
mod given;
mod inherit;
mod mode;
mod module;
mod option;
mod pass;
mod process;
mod successor;
mod track;

pub(crate) use closing::closing;
pub use connection::{
    accept, after_accept, after_connect, after_listen, after_socket, before_connect, connect,
    shutdown, socket,
};
pub use descriptor::{
    after_dup, after_getfd, before_replace, close, close_range, is_close_whole, look_at, make_room,
};
pub use given::{before_giving, before_spawn, forget_given};
pub use inherit::{before_sharing_table, before_stdio, before_stdio_write};
pub(crate) use inherit::{give_up, give_up_all, to_kernel};
pub use mode::{fcntl, ioctl};
pub use module::{Objects, Opening, after_open, before_open};
pub(crate) use option::before_control_data;
pub use option::{getsockopt, setsockopt};
pub(crate) use pass::{passed, passing};
pub use process::{
    after_exec, after_fork_child, after_fork_parent, after_setns, after_unshare, before_affinity,
    before_confinement, before_descriptor_limit, before_exec, before_exec_of, before_exit,
    before_fork, before_lending, before_new_group, before_new_identity, before_own_identity,
    before_unshare, start,
};
