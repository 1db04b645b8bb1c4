//! The eBPF program. The kernel runs it (type `BPF_PROG_TYPE_SOCK_OPS`) at certain moments in the life of a TCP
//! socket, never for a packet: none of the callbacks that are asked for with flags is.
//!
//! In C it would be:
//!
//! ```c
//! int identity(struct bpf_sock_ops *ctx) {
//!     struct record record = {};
//!     struct numbers numbers;
//!     u64 cookie, places[2] = {};
//!     int side;
//!
//!     if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
//!         return 1;
//!     record.op = ctx->op;
//!     record.sent = ctx->snd_nxt;
//!     record.received = ctx->rcv_nxt;
//!     side = ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ? 0 : 1;
//!     numbers.sent = side == 0 ? ctx->snd_nxt : ctx->rcv_nxt; // by the connector
//!     numbers.received = side == 0 ? ctx->rcv_nxt : ctx->snd_nxt;
//!     record.family = ctx->family;
//!     record.local_port = ctx->local_port;
//!     record.remote_port = ctx->remote_port;
//!     if (ctx->family == AF_INET) {
//!         record.local[0] = ctx->local_ip4;
//!         record.remote[0] = ctx->remote_ip4;
//!     } else {
//!         for (int i = 0; i < 4; i++) {
//!             record.local[i] = ctx->local_ip6[i];
//!             record.remote[i] = ctx->remote_ip6[i];
//!         }
//!     }
//!     cookie = bpf_get_socket_cookie(ctx);
//!     record.netns = bpf_get_netns_cookie(ctx);
//!     record.established = bpf_ktime_get_ns();
//!     bpf_map_update_elem(&ends, &cookie, &record, BPF_ANY);
//!     places[side] = cookie;
//!     // The connector is first, so its entry is not looked for before it is made.
//!     u64 *known = side == 0 ? NULL : bpf_map_lookup_elem(&pairs, &numbers);
//!     if (!known) {
//!         if (bpf_map_update_elem(&pairs, &numbers, &places, BPF_NOEXIST) == 0)
//!             return 1;
//!         known = bpf_map_lookup_elem(&pairs, &numbers);
//!         if (!known)
//!             return 1;
//!     }
//!     if (!__sync_bool_compare_and_swap(&known[side], 0, cookie))
//!         known[side] = AMBIGUOUS;
//!     return 1;
//! }
//! ```
//!
//! It returns 1 and leaves `reply` alone always: so the kernel takes what another program has replied, or its own
//! value (`__cgroup_bpf_run_filter_sock_ops` and `tcp_call_bpf`; a program that returns anything else has the replies of all ignored).

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use crate::assembly::{Assembly, Instruction, Jump, Register};
use crate::record::{Numbers, Places, Record, place};
use crate::{AMBIGUOUS, Side};

/// Values of `op`, of `<linux/bpf.h>`.
pub(crate) const ACTIVE_ESTABLISHED: u32 = 4;
pub(crate) const PASSIVE_ESTABLISHED: u32 = 5;

/// Offsets in `struct bpf_sock_ops`, of `<linux/bpf.h>`.
mod context {
    pub(super) const OP: i16 = 0;
    pub(super) const FAMILY: i16 = 20;
    pub(super) const REMOTE_IP4: i16 = 24;
    pub(super) const LOCAL_IP4: i16 = 28;
    pub(super) const REMOTE_IP6: i16 = 32;
    pub(super) const LOCAL_IP6: i16 = 48;
    pub(super) const REMOTE_PORT: i16 = 64;
    pub(super) const LOCAL_PORT: i16 = 68;
    pub(super) const RCV_NXT: i16 = 100;
    pub(super) const SND_NXT: i16 = 104;
}

/// Numbers of helpers, and their flags, of `<linux/bpf.h>`.
mod helper {
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const MAP_UPDATE_ELEM: i32 = 2;
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const GET_SOCKET_COOKIE: i32 = 46;
    pub(super) const GET_NETNS_COOKIE: i32 = 122;
    pub(super) const ANY: i32 = 0;
    pub(super) const NOEXIST: i32 = 1;
}

const RESULT: Register = 0;
/// Arguments, and whatever else does not outlive a call.
const FIRST: Register = 1;
const SECOND: Register = 2;
const THIRD: Register = 3;
const FOURTH: Register = 4;
/// Registers that a call leaves alone.
const CONTEXT: Register = 6;
const OP: Register = 7;
/// How far an end's place in an entry of `pairs` is from its beginning.
const PLACE: Register = 8;
const STACK: Register = 10;

/// Places on the stack, each on a boundary of eight bytes.
const RECORD: i16 = -(size_of::<Record>() as i16);
const COOKIE: i16 = RECORD - 8;
const NUMBERS: i16 = COOKIE - size_of::<Numbers>() as i16;
const PLACES: i16 = NUMBERS - size_of::<Places>() as i16;

/// Where a field of the record lies on the stack.
macro_rules! record {
    ($field:ident) => {
        RECORD + offset_of!(Record, $field) as i16
    };
}

/// Where a field of the numbers lies on the stack.
macro_rules! numbers {
    ($field:ident) => {
        NUMBERS + offset_of!(Numbers, $field) as i16
    };
}

/// The program with its two maps.
pub(crate) fn assemble(ends: BorrowedFd<'_>, pairs: BorrowedFd<'_>) -> Vec<Instruction> {
    let mut code = Assembly::default();
    code.copy(CONTEXT, FIRST);
    code.load_word(OP, CONTEXT, context::OP);
    let active = code.jump_if_equal(OP, ACTIVE_ESTABLISHED as i32);
    let another = code.jump_unless_equal(OP, PASSIVE_ESTABLISHED as i32);
    number(
        &mut code,
        Side::Acceptor,
        numbers!(received),
        numbers!(sent),
    );
    let numbered = code.jump();
    code.land(active);
    number(
        &mut code,
        Side::Connector,
        numbers!(sent),
        numbers!(received),
    );
    code.land(numbered);
    describe(&mut code);
    identify(&mut code);
    update(&mut code, ends, COOKIE, RECORD, helper::ANY);
    for done in enter(&mut code, pairs) {
        code.land(done);
    }
    code.land(another);
    code.set(RESULT, 1);
    code.exit();
    code.finish()
}

/// Keeps the numbers, in the record and, as the connector sees them, in the key of `pairs`.
fn number(code: &mut Assembly, side: Side, sent: i16, received: i16) {
    keep(code, context::SND_NXT, record!(sent));
    code.store_word(STACK, sent, FIRST);
    keep(code, context::RCV_NXT, record!(received));
    code.store_word(STACK, received, FIRST);
    code.set(PLACE, place(side) as i32 * size_of::<u64>() as i32);
}

/// Enters the socket at its place in the connection's entry, or says there that it is not the only one. The end of it
/// all is where the jumps go on that are returned: the entry is made, or there is no room for it.
fn enter(code: &mut Assembly, pairs: BorrowedFd<'_>) -> [Jump; 2] {
    for at in (0..size_of::<Places>() as i16).step_by(8) {
        code.store_double_value(STACK, PLACES + at, 0);
    }
    code.load_double(FIRST, STACK, COOKIE);
    code.address(SECOND, STACK, PLACES);
    code.add(SECOND, PLACE);
    code.store_double(SECOND, 0, FIRST);
    // The connector is first, so its entry is not looked for before it is made.
    let first = code.jump_if_equal(OP, ACTIVE_ESTABLISHED as i32);
    lookup(code, pairs, NUMBERS);
    let known = code.jump_unless_equal(RESULT, 0);
    code.land(first);
    update(code, pairs, NUMBERS, PLACES, helper::NOEXIST);
    let made = code.jump_if_equal(RESULT, 0);
    lookup(code, pairs, NUMBERS);
    let full = code.jump_if_equal(RESULT, 0);
    code.land(known);
    code.copy(SECOND, RESULT);
    code.add(SECOND, PLACE);
    code.load_double(FIRST, STACK, COOKIE);
    code.set(RESULT, 0);
    code.compare_exchange(SECOND, FIRST);
    let only = code.jump_if_equal(RESULT, 0);
    code.store_double_value(SECOND, 0, AMBIGUOUS);
    code.land(only);
    [made, full]
}

/// Side and addresses.
fn describe(code: &mut Assembly) {
    code.store_word(STACK, record!(op), OP);
    keep(code, context::LOCAL_PORT, record!(local_port));
    keep(code, context::REMOTE_PORT, record!(remote_port));
    for at in (0..32).step_by(8) {
        code.store_double_value(STACK, record!(local) + at, 0);
    }
    keep(code, context::FAMILY, record!(family));
    let v4 = code.jump_if_equal(FIRST, libc::AF_INET);
    for at in (0..16).step_by(4) {
        keep(code, context::LOCAL_IP6 + at, record!(local) + at);
        keep(code, context::REMOTE_IP6 + at, record!(remote) + at);
    }
    let done = code.jump();
    code.land(v4);
    keep(code, context::LOCAL_IP4, record!(local));
    keep(code, context::REMOTE_IP4, record!(remote));
    code.land(done);
}

/// A word of the context goes to the stack, and stays in the register [`FIRST`].
fn keep(code: &mut Assembly, from: i16, to: i16) {
    code.load_word(FIRST, CONTEXT, from);
    code.store_word(STACK, to, FIRST);
}

/// What only the kernel gives: nobody chooses his cookies.
fn identify(code: &mut Assembly) {
    let asked = [
        (helper::GET_SOCKET_COOKIE, COOKIE),
        (helper::GET_NETNS_COOKIE, record!(netns)),
        (helper::KTIME_GET_NS, record!(established)),
    ];
    for (helper, to) in asked {
        code.copy(FIRST, CONTEXT);
        code.call(helper);
        code.store_double(STACK, to, RESULT);
    }
}

/// `bpf_map_lookup_elem(map, key)`, the latter on the stack.
fn lookup(code: &mut Assembly, map: BorrowedFd<'_>, key: i16) {
    code.map(FIRST, map);
    code.address(SECOND, STACK, key);
    code.call(helper::MAP_LOOKUP_ELEM);
}

/// `bpf_map_update_elem(map, key, value, flags)`, the last two but one on the stack.
fn update(code: &mut Assembly, map: BorrowedFd<'_>, key: i16, value: i16, flags: i32) {
    code.map(FIRST, map);
    code.address(SECOND, STACK, key);
    code.address(THIRD, STACK, value);
    code.set(FOURTH, flags);
    code.call(helper::MAP_UPDATE_ELEM);
}
