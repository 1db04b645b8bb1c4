//! A model of a connection: two hosts, each with the slot that it writes, and in each direction a
//! ring and a TCP stream that are lists. What its threads do is what the engine does, with the same
//! decisions ([`super`]) and neither sockets nor patience.
//!
//! The oracle is the stream itself: each direction carries 0, 1, 2 …, and whatever is received must
//! be that, nothing lost, doubled or overtaken, and in the end all of it.

#[cfg(loom)]
use loom::{sync::Mutex, thread};
#[cfg(shuttle)]
use shuttle::{sync::Mutex, thread};

use super::death::Unfinished;
use super::{Receiver, Sender};
use crate::atomic::{AtomicU32, AtomicU64, Ordering, light};
use crate::slot::{READY, Slot, Way, first_life};
use crate::token::{Holder, Taken, Token};

#[cfg(shuttle)]
mod lives;
#[cfg(loom)]
mod loom_tests;
mod receives;
mod sends;
#[cfg(shuttle)]
mod shuttle_tests;

const LIFE: u32 = first_life(1);

/// A thread that takes over from one that has died has a name of its own: that of its side plus
/// this.
const RELATIVE: u64 = 32;

/// What stands in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Byte(u8),
    Back,
}

/// A TCP stream.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    taken: usize,
    has_ended: bool,
}

/// What one host writes, and the stream that it sends.
struct Host {
    slot: Slot,
    ring: Mutex<Vec<Frame>>,
    stream: Mutex<Stream>,
    /// The next byte that is sent, with the sending token.
    next: AtomicU32,
    /// What has been received of the other's stream, with the receiving token.
    got: Mutex<Vec<u8>>,
    /// Processes of it that died with a token.
    dead: AtomicU64,
}

impl Host {
    fn new() -> Self {
        let host = Self {
            slot: Slot::default(),
            ring: Mutex::new(Vec::new()),
            stream: Mutex::new(Stream::default()),
            next: AtomicU32::new(0),
            got: Mutex::new(Vec::new()),
            dead: AtomicU64::new(0),
        };
        host.slot.face.state.store(READY, Ordering::Relaxed);
        host.slot.face.generation.store(LIFE, Ordering::Release);
        host
    }
}

/// A connection.
pub(super) struct World([Host; 2]);

impl World {
    pub(super) fn new() -> Self {
        Self([Host::new(), Host::new()])
    }

    /// The same with the direction from host 0 to host 1 on its ring, and the other one the kernel's.
    #[cfg(loom)]
    pub(super) fn on_ring() -> Self {
        let world = Self::new();
        let [from, to] = &world.0;
        from.slot.output.switch_at.store(1, Ordering::Relaxed);
        Way::Ring.store(&from.slot.sending.way);
        Way::Ring.store(&to.slot.receiving.way);
        Way::TcpAgain.store(&to.slot.sending.way);
        Way::TcpAgain.store(&from.slot.receiving.way);
        world
    }

    /// A thread of a host's; `name` names it among all.
    pub(super) fn end(&self, host: usize, name: u64) -> End<'_> {
        End {
            own: &self.0[host],
            peer: &self.0[1 - host],
            me: Holder(name),
        }
    }
}

/// A thread at one end of it.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    own: &'a Host,
    peer: &'a Host,
    me: Holder,
}

impl End<'_> {
    fn sender(&self) -> Sender<'_> {
        Sender {
            own: &self.own.slot,
            peer: &self.peer.slot,
            life: self.own.slot.face.generation.load(Ordering::Relaxed),
        }
    }

    fn receiver(&self) -> Receiver<'_> {
        Receiver {
            own: &self.own.slot,
            peer: &self.peer.slot,
            life: self.own.slot.face.generation.load(Ordering::Relaxed),
        }
    }

    fn take(&self, token: &Token) {
        loop {
            match token.try_take(self.me) {
                Ok(()) => break light(), // As between any two of its steps (`heavy`).
                Err(Taken::ByUs) => unreachable!(),
                Err(Taken::ByOther(holder)) => {
                    let is_dead = self.own.dead.load(Ordering::Acquire) >> holder.0 & 1 != 0;
                    if is_dead && token.take_over(holder, self.me) {
                        light();
                        break self.finish(token);
                    }
                    thread::yield_now();
                }
            }
        }
    }

    /// What a relative that died had begun.
    fn finish(&self, token: &Token) {
        if std::ptr::eq(token, &raw const self.own.slot.sending.token) {
            let at_end = self.own.ring.lock().unwrap().last() == Some(&Frame::Back);
            let has_left = at_end && self.sender().way() == Way::Ring;
            if let Unfinished::Leaves(written) = self.sender().finish(has_left) {
                self.end_ring(written);
            }
        } else {
            let receiving = &self.own.slot.receiving;
            // What it had taken is gone with it, but this one knows.
            let taken = self.peer.stream.lock().unwrap().taken;
            receiving
                .kernel_bytes
                .store(taken as u64, Ordering::Relaxed);
            self.receiver().finish(|| Some(self.unread()));
        }
    }

    /// In the engine who waits for a peer that died with a token looks at the kernel, or at its
    /// relative's doing: here it takes the token over itself.
    fn bury_peer(&self) {
        let dead = self.peer.dead.load(Ordering::Acquire);
        if dead == 0 {
            return;
        }
        let relative = End {
            own: self.peer,
            peer: self.own,
            me: Holder(self.me.0 + RELATIVE),
        };
        let slot = &self.peer.slot;
        for token in [&slot.sending.token, &slot.receiving.token] {
            let Some(holder) = token.holder() else {
                continue;
            };
            if dead >> holder.0 & 1 != 0 && token.take_over(holder, relative.me) {
                relative.finish(token);
                token.give();
            }
        }
    }

    /// When the other side does nothing more: all that it sent has come, or comes now.
    pub(super) fn has_everything(&self) {
        let sent = self.peer.next.load(Ordering::Acquire) as usize;
        // TCP may have no room for a byte now and then, but not each time.
        const TRIES: u32 = 64;
        for _ in 0..TRIES {
            self.receive();
            if self.own.got.lock().unwrap().len() == sent {
                return;
            }
            self.bury_peer();
            self.give_up();
            // Whatever it still owes it sends in its next call.
            let other = End {
                own: self.peer,
                peer: self.own,
                me: Holder(self.me.0 + 16),
            };
            other.answer();
        }
        let got = self.own.got.lock().unwrap().len();
        panic!("{got} of {sent} have come: {:?}", self.own.slot);
    }
}

/// The bytes of a ring from that frame on.
fn payload(ring: &[Frame], from: usize) -> impl Iterator<Item = u8> + use<> {
    let frames: Vec<Frame> = ring.get(from..).unwrap_or_default().to_vec();
    frames.into_iter().map_while(|frame| match frame {
        Frame::Byte(byte) => Some(byte),
        Frame::Back => None,
    })
}

#[cfg(shuttle)]
pub(super) use shuttle_tests::may_die;
