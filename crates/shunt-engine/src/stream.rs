//! The byte stream of an attached connection. Each direction is on TCP, on the
//! ring, or on TCP again:
//!
//! ```text
//!          peer READY: note the offset            cannot wait here
//!   Tcp ───────────────────────────────> Ring ───────────────────────> TcpAgain
//!          "byte N and later: ring"              Back frame: "byte M and
//!                                                 later: TCP"
//! ```
//!
//! Once both directions are on TCP again, and what sent them there is over, the slot may begin
//! another life, with both on `Tcp` ([`crate::upgrade`]).
//!
//! While a direction is on the ring, nothing comes by TCP in that direction but its end; sleepers are called beside
//! it ([`crate::wake`]). The sender decides both moves; the receiver follows at the exact offset. It may also
//! *recall* the stream ([`downgrade`](mod@downgrade)): then what it has not read of the ring is sent again over TCP
//! ([`owed`]), before what follows.

mod aside;
mod attempt;
mod bound;
mod close;
mod conn;
mod crowd;
mod downgrade;
mod errors;
mod far_death;
mod from_afar;
mod holder;
mod leave;
mod loan;
mod mask;
mod meet;
mod nic;
mod owed;
mod packets;
mod proposal;
mod real_call;
mod recall;
mod recv;
mod ring_end;
mod running;
mod send;
pub(crate) mod small;
mod spin;
mod stand_in;
mod take;
mod tell;
mod together;
mod transfer;
mod usual;
mod wait;
mod want;
mod wish;

pub(crate) use aside::{
    await_no_more, await_offer, awaits_base, before_sleep, call_acceptor, offered_at, put_aside,
    take_again, tell_kernel_of_end, use_again,
};
pub(crate) use attempt::MSG_BEHIND;
pub(crate) use bound::{bound, resize, unsent, waits_for_many};
pub(crate) use close::{
    before_close, before_close_under_sleeper, hand_over, let_go, make_way, shutdown,
};
pub(crate) use conn::{Conn, turns};
pub(crate) use downgrade::{downgrade, give_up, is_plain};
pub(crate) use errors::{before_reset, leave_error, socket_error};
pub(crate) use leave::{leave_full, leave_ring, leave_to_half_closed};
pub(crate) use mask::{mask, mask_as_usual, mask_at_a_glance};
pub(crate) use meet::{leave_alone, meet_or_part};
pub(crate) use nic::hear_news;
pub(crate) use owed::{
    answer as answer_recall, has_room_again, is_due as recall_is_due, is_owing as recall_is_owing,
};
pub(crate) use packets::{give_up as give_up_pipe, make_way as make_way_by_pipe};
pub(crate) use proposal::is_agreed;
pub(crate) use recv::{is_any_in_ring, leaves_unread, pump, receive, receive_in, unread};
pub(crate) use running::{give_up as give_up_running, make_way as make_way_by_running};
pub(crate) use send::{AT_ONCE, asked, send, send_in};
pub(crate) use spin::{Spin, share_crowd, shares_core};
pub(crate) use stand_in::stand_in_for_ended_peer;
pub(crate) use transfer::{by_kernel_alone, sendfile, splice_in, splice_out};
pub(crate) use usual::{end_of_stream, has_begun, is_as_usual, leaves_ring, may_be};
pub(crate) use wait::{
    SELDOM, Stay, TURN, asleep, awake, foresee_sleep, has_time_limit, interrupted, say_again, turn,
};
pub(crate) use want::{Want, is_on_rings, must_be_called};
pub(crate) use wish::see_to_wishes;

/// In a forked child.
pub(crate) fn after_fork_child() {
    packets::after_fork_child();
    running::after_fork_child();
}
