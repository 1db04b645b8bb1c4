//! The eBPF program. The kernel runs it (type `BPF_PROG_TYPE_SOCK_OPS`) at certain moments in the life of a TCP
//! socket, never for a packet: none of the callbacks that are asked for with flags is.
//!
//! In C it would be:
//!
//! ```c
//! int identity(struct bpf_sock_ops *ctx) {
//!     struct record *record;
//!     u64 cookie, netns, established, serial;
//!
//!     if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
//!         return 1;
//!     cookie = bpf_get_socket_cookie(ctx);
//!     netns = bpf_get_netns_cookie(ctx);
//!     established = bpf_ktime_get_ns();
//!     serial = __sync_fetch_and_add(&log.last, 1);
//!     record = &log.records[serial & (CAPACITY - 1)];
//!     xchg(&record->serial, 0); // in work
//!     record->cookie = cookie;
//!     record->netns = netns;
//!     record->established = established;
//!     record->op = ctx->op;
//!     record->sent = ctx->snd_nxt;
//!     record->received = ctx->rcv_nxt;
//!     record->remote_port = ctx->remote_port;
//!     xchg(&record->serial, serial + 1); // complete
//!     return 1;
//! }
//! ```
//!
//! It returns 1 and leaves `reply` alone always: so the kernel takes what another program has replied, or its own
//! value (`__cgroup_bpf_run_filter_sock_ops` and `tcp_call_bpf`; a program that returns anything else has the replies of all ignored).

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use crate::assembly::{Assembly, Instruction, Register};
use crate::log::{Head, Record};

/// Values of `op`, of `<linux/bpf.h>`.
pub(crate) const ACTIVE_ESTABLISHED: u32 = 4;
pub(crate) const PASSIVE_ESTABLISHED: u32 = 5;

/// Offsets in `struct bpf_sock_ops`, of `<linux/bpf.h>`.
mod context {
    pub(super) const OP: i16 = 0;
    pub(super) const REMOTE_PORT: i16 = 64;
    pub(super) const RCV_NXT: i16 = 100;
    pub(super) const SND_NXT: i16 = 104;
}

/// Numbers of helpers, of `<linux/bpf.h>`.
mod helper {
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const GET_SOCKET_COOKIE: i32 = 46;
    pub(super) const GET_NETNS_COOKIE: i32 = 122;
}

/// What a call returns: at last, when the handshake ended.
const RESULT: Register = 0;
/// The argument of a call.
const ARGUMENT: Register = 1;
/// The log, then the record in it.
const AT: Register = 1;
const SERIAL: Register = 2;
const WORD: Register = 3;
/// Registers that a call leaves alone.
const CONTEXT: Register = 6;
const OP: Register = 7;
const COOKIE: Register = 8;
const NETNS: Register = 9;

/// Where a field of the record lies when its place in the log has been added to the log's address.
macro_rules! record {
    ($field:ident) => {
        (size_of::<Head>() + offset_of!(Record, $field)) as i16
    };
}

/// The program with its log, which has room for `capacity` records, a power of two.
pub(crate) fn assemble(log: BorrowedFd<'_>, capacity: u32) -> Vec<Instruction> {
    let mut code = Assembly::default();
    code.copy(CONTEXT, ARGUMENT);
    code.load_word(OP, CONTEXT, context::OP);
    let active = code.jump_if_equal(OP, ACTIVE_ESTABLISHED as i32);
    let another = code.jump_unless_equal(OP, PASSIVE_ESTABLISHED as i32);
    code.land(active);
    identify(&mut code);
    take_place(&mut code, log, capacity);
    describe(&mut code);
    code.land(another);
    code.set(RESULT, 1);
    code.exit();
    code.finish()
}

/// What only the kernel gives: nobody chooses his cookies.
fn identify(code: &mut Assembly) {
    for (helper, to) in [
        (helper::GET_SOCKET_COOKIE, COOKIE),
        (helper::GET_NETNS_COOKIE, NETNS),
    ] {
        code.copy(ARGUMENT, CONTEXT);
        code.call(helper);
        code.copy(to, RESULT);
    }
    code.call(helper::KTIME_GET_NS);
}

/// Finds the place of the next record.
fn take_place(code: &mut Assembly, log: BorrowedFd<'_>, capacity: u32) {
    code.map_value(AT, log);
    code.set(SERIAL, 1);
    code.fetch_add(AT, offset_of!(Head, last) as i16, SERIAL);
    code.copy(WORD, SERIAL);
    code.and(WORD, capacity as i32 - 1);
    code.multiply(WORD, size_of::<Record>() as i32);
    code.add(AT, WORD);
}

/// Writes the record. Whoever reads it meanwhile sees that it is in work, or was.
fn describe(code: &mut Assembly) {
    code.set(WORD, 0);
    code.exchange(AT, record!(serial), WORD);
    code.store_double(AT, record!(cookie), COOKIE);
    code.store_double(AT, record!(netns), NETNS);
    code.store_double(AT, record!(established), RESULT);
    code.store_word(AT, record!(op), OP);
    for (from, to) in [
        (context::SND_NXT, record!(sent)),
        (context::RCV_NXT, record!(received)),
        (context::REMOTE_PORT, record!(remote_port)),
    ] {
        code.load_word(WORD, CONTEXT, from);
        code.store_word(AT, to, WORD);
    }
    code.add_value(SERIAL, 1);
    code.exchange(AT, record!(serial), SERIAL);
}
