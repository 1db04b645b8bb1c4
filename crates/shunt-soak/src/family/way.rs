//! Sending and receiving records, so that natively nothing can go wrong.
//!
//! All senders of a way come one after the other, and so do its receivers. What
//! remains is death in the middle of a call, on the first connections:
//!
//! * A sender sends a short record by one call that does not wait, and only
//!   while few are under way, so that it fits: the kernel then takes all of it
//!   or, when the process is killed before, nothing. Which of the two nobody
//!   knows, so its successor sends it again and marks it: it may come twice. Under
//!   Shunt such a call may also say `EAGAIN` of a peer that is stopped in the
//!   middle of a change of way; then poll tells when there is room.
//! * A receiver first looks at the whole record (`MSG_PEEK`), notes that it is
//!   going to take it, and takes it by one call that finds everything there. Its
//!   successor sees by the number of the next record whether it had.
//!
//! On the other connections records are long, calls wait, and nobody is killed.

use super::record::{HEADER, Record, SHORT};
use super::shared::{Half, MORTAL, Shared, WINDOW, Way, intent};
use crate::call;
use crate::random::Random;
use crate::system::{checked, counted};
use std::io::{Error, ErrorKind};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// One end of one connection, as one process sees it.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) shared: &'static Shared,
    pub(super) seed: u64,
    /// Short records are sent in parts now and then.
    pub(super) parts: bool,
    pub(super) connection: usize,
    pub(super) side: usize,
    pub(super) fd: RawFd,
}

/// How a turn ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Moved,
    /// Nothing to do just now.
    Idle,
    /// Nothing to do any more.
    Ended,
}

/// How often a send that does not wait may find that the room of which poll has told is gone: each
/// time since another process was stopped in between.
const PUT_OFF: u32 = 50;

type Outcome<T> = Result<T, String>;

fn text(what: &str) -> impl Fn(Error) -> String {
    let what = what.to_owned();
    move |error| format!("{what}: {error}")
}

pub(super) fn nap(micros: u64) {
    std::thread::sleep(Duration::from_micros(micros));
}

impl End {
    fn out(&self) -> (&'static Way, u32) {
        let id = self.connection * 2 + self.side;
        (
            &self.shared.ways[self.connection][self.side],
            u32::try_from(id).unwrap_or(0),
        )
    }

    fn back(&self) -> (&'static Way, u32) {
        let id = self.connection * 2 + 1 - self.side;
        (
            &self.shared.ways[self.connection][1 - self.side],
            u32::try_from(id).unwrap_or(0),
        )
    }

    fn mortal(&self) -> bool {
        self.connection < MORTAL
    }

    pub(super) fn has_ended(&self, for_sending: bool) -> bool {
        ended(&self.out().0.send) && (for_sending || ended(&self.back().0.receive))
    }

    /// Sends a few records.
    pub(super) fn send(&self, random: &mut Random) -> Outcome<Turn> {
        let (way, id) = self.out();
        let Some(_guard) = way.send.enter().map_err(text("lock"))? else {
            return Ok(Turn::Idle);
        };
        for _ in 0..=random.below(8) {
            if ended(&way.send) {
                return Ok(Turn::Ended);
            }
            let number = way.send.next.load(SeqCst);
            let mut last = self.shared.draining();
            let begun = way.send.intent.load(SeqCst);
            if begun >> 1 == number + 1 {
                // Somebody died here. What was begun is what must come.
                last = begun & 1 == 1;
                way.may_come_twice(number);
            }
            let record = Record::new(self.seed, id, number, self.mortal(), last);
            if self.mortal() && way.under_way() >= WINDOW {
                return Ok(Turn::Idle);
            }
            way.send.intent.store(intent(number, last), SeqCst);
            let bytes = record.bytes(self.seed);
            if self.mortal() {
                self.send_at_once(&bytes, random)?;
            } else {
                self.send_all(&bytes, random)?;
            }
            way.send.next.store(number + 1, SeqCst);
            if last {
                way.send.ended.store(1, SeqCst);
            }
        }
        Ok(Turn::Moved)
    }

    fn send_at_once(&self, bytes: &[u8], random: &mut Random) -> Outcome<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let (data, size) = (bytes.as_ptr(), bytes.len());
        let middle = random.below(size);
        let mut parts = [
            libc::iovec {
                iov_base: data.cast_mut().cast(),
                iov_len: middle,
            },
            libc::iovec {
                iov_base: data.wrapping_add(middle).cast_mut().cast(),
                iov_len: size - middle,
            },
        ];
        let in_parts = self.parts && random.one_in(3);
        let mut send = || {
            // SAFETY: the pointers cover `bytes` and `parts`, which outlive the calls;
            // a zeroed msghdr is valid.
            counted(unsafe {
                if in_parts {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    message.msg_iov = parts.as_mut_ptr();
                    message.msg_iovlen = parts.len();
                    libc::sendmsg(self.fd, &raw const message, flags)
                } else {
                    libc::send(self.fd, data.cast(), size, flags)
                }
            })
        };
        for _ in 0..PUT_OFF {
            match send() {
                Ok(sent) if sent == size => return Ok(()),
                Ok(sent) => return Err(format!("send took {sent} of {size} bytes, with room")),
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.has_stopped() => {
                    self.shared.put_off.fetch_add(1, SeqCst);
                    self.is_ready(libc::POLLOUT, -1)?;
                }
                Err(error) => return Err(text("send")(error)),
            }
        }
        Err("poll tells again and again of room that send does not find".into())
    }

    /// Whether any process of this round has been stopped.
    fn has_stopped(&self) -> bool {
        self.shared.stops.load(SeqCst) > 0
    }

    fn send_all(&self, mut bytes: &[u8], random: &mut Random) -> Outcome<()> {
        while !bytes.is_empty() {
            match call::send(self.fd, bytes, random) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(text("send")(error)),
            }
        }
        Ok(())
    }

    /// Takes a few records.
    pub(super) fn receive(&self, random: &mut Random) -> Outcome<Turn> {
        let (way, id) = self.back();
        let Some(_guard) = way.receive.enter().map_err(text("lock"))? else {
            return Ok(Turn::Idle);
        };
        for _ in 0..=random.below(8) {
            if ended(&way.receive) {
                return Ok(Turn::Ended);
            }
            // Either look whether something is there, or sleep in the call itself,
            // which the socket's timeout ends.
            if random.one_in(2) && !self.is_ready(libc::POLLIN, 10)? {
                return Ok(Turn::Idle);
            }
            let taken = if self.mortal() {
                self.take_at_once(way, id, random)?
            } else {
                self.take_all(way, id, random)?
            };
            if !taken {
                return Ok(Turn::Idle);
            }
        }
        Ok(Turn::Moved)
    }

    /// Whether poll tells of one of `events` within `timeout` milliseconds.
    fn is_ready(&self, events: libc::c_short, timeout: libc::c_int) -> Outcome<bool> {
        let mut polled = libc::pollfd {
            fd: self.fd,
            events,
            revents: 0,
        };
        // SAFETY: the array of one lives through the call.
        let ready = checked(unsafe { libc::poll(&raw mut polled, 1, timeout) });
        match ready {
            Ok(ready) => Ok(ready > 0),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(text("poll")(error)),
        }
    }

    fn peek(&self, buffer: &mut [u8]) -> Outcome<usize> {
        loop {
            // SAFETY: the buffer lives through the call and has the size given.
            let peeked = counted(unsafe {
                let data = buffer.as_mut_ptr().cast();
                libc::recv(self.fd, data, buffer.len(), libc::MSG_PEEK)
            });
            match peeked {
                Ok(0) => return Err("peek: the end before the last record".into()),
                Ok(peeked) => return Ok(peeked),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(text("peek")(error)),
            }
        }
    }

    /// `false`: there was nothing.
    fn take_at_once(&self, way: &Way, id: u32, random: &mut Random) -> Outcome<bool> {
        let mut seen = [0; HEADER + SHORT as usize];
        let (record, size) = loop {
            let peeked = self.peek(&mut seen)?;
            if peeked == 0 {
                return Ok(false);
            }
            if peeked >= HEADER {
                let record = Record::parse(&seen).ok_or("no header where one must be")?;
                let size = HEADER + record.length;
                if record.length as u64 > SHORT {
                    return Err(format!("{record:?} is too long"));
                }
                if peeked >= size {
                    break (record, size);
                }
            }
            nap(200); // the rest is under way
        };
        let mut next = way.receive.next.load(SeqCst);
        let begun = way.receive.intent.load(SeqCst) >> 1 == next + 1;
        if begun && record.number == next + 1 {
            // Who was killed here had taken its record.
            next += 1;
            way.receive.next.store(next, SeqCst);
        }
        let again = record.number < next && way.came_twice(record.number);
        if !again {
            self.compare(&record, id, next)?;
            way.receive
                .intent
                .store(intent(record.number, record.last), SeqCst);
        }
        let expected = record.bytes(self.seed);
        if let Some(at) = (0..size).find(|&i| seen[i] != expected[i]) {
            return Err(format!(
                "{record:?} (again: {again}) differs at {at}; there is {:02x?}; a header begins at {:?}",
                &seen[at..size.min(at + 16)],
                (HEADER..seen.len()).find(|&i| Record::parse(&seen[i..]).is_some())
            ));
        }
        let mut taken = vec![0; size];
        let got = call::receive(self.fd, &mut taken, true, random).map_err(text("receive"))?;
        if got != size || taken != seen[..size] {
            return Err(format!(
                "{record:?} was seen, but {got} of its bytes came, or others"
            ));
        }
        if !again {
            self.done(way, &record);
        }
        Ok(true)
    }

    /// `false`: there was nothing.
    fn take_all(&self, way: &Way, id: u32, random: &mut Random) -> Outcome<bool> {
        let mut header = [0; HEADER];
        if !self.fill_up(&mut header, true, random)? {
            return Ok(false);
        }
        let record = Record::parse(&header).ok_or("no header where one must be")?;
        self.compare(&record, id, way.receive.next.load(SeqCst))?;
        let expected = record.bytes(self.seed);
        let mut payload = vec![0; record.length];
        self.fill_up(&mut payload, false, random)?;
        if let Some(at) = (0..payload.len()).find(|&i| payload[i] != expected[HEADER + i]) {
            return Err(format!("{record:?} differs at {at}"));
        }
        self.done(way, &record);
        Ok(true)
    }

    /// What has begun to come comes to its end, sooner or later; whether it begins,
    /// the socket's timeout may tell first: `false`.
    fn fill_up(
        &self,
        mut buffer: &mut [u8],
        may_be_nothing: bool,
        random: &mut Random,
    ) -> Outcome<bool> {
        let whole = buffer.len();
        while !buffer.is_empty() {
            match call::receive(self.fd, buffer, true, random) {
                Ok(0) => return Err("receive: the end before the last record".into()),
                Ok(got) => buffer = &mut buffer[got..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if may_be_nothing && buffer.len() == whole {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(text("receive")(error)),
            }
        }
        Ok(true)
    }

    fn compare(&self, record: &Record, id: u32, number: u64) -> Outcome<()> {
        let expected = Record::new(self.seed, id, number, self.mortal(), record.last);
        if *record == expected {
            Ok(())
        } else {
            Err(format!("{record:?} came, {expected:?} should"))
        }
    }

    fn done(&self, way: &Way, record: &Record) {
        way.receive.next.store(record.number + 1, SeqCst);
        if record.last {
            way.receive.ended.store(1, SeqCst);
        }
    }

    /// Calls that change nothing, by somebody who need not be alone.
    pub(super) fn look(&self, random: &mut Random) -> Outcome<()> {
        let mut polled = libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        };
        let mut count: libc::c_int = 0;
        let mut some = [0_u8; 100];
        // SAFETY: all that the calls are given lives through them.
        unsafe {
            match random.below(4) {
                0 => {
                    libc::poll(&raw mut polled, 1, 1);
                    if polled.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
                        return Err(format!("poll shows {:#x}", polled.revents));
                    }
                }
                1 => {
                    checked(libc::ioctl(self.fd, libc::FIONREAD, &raw mut count))
                        .map_err(text("FIONREAD"))?;
                }
                2 => {
                    checked(libc::ioctl(self.fd, libc::TIOCOUTQ, &raw mut count))
                        .map_err(text("SIOCOUTQ"))?;
                }
                _ => {
                    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
                    libc::recv(self.fd, some.as_mut_ptr().cast(), some.len(), flags);
                }
            }
        }
        Ok(())
    }

    /// A stream of the C library, for which the connection must become plain.
    pub(super) fn put_a_stream_on(&self) -> Outcome<()> {
        // SAFETY: the stream gets a descriptor of its own, which its end closes.
        unsafe {
            let copy =
                checked(libc::fcntl(self.fd, libc::F_DUPFD_CLOEXEC, 0)).map_err(text("dup"))?;
            let stream = libc::fdopen(copy, c"r".as_ptr());
            if stream.is_null() {
                return Err(text("fdopen")(Error::last_os_error()));
            }
            libc::fclose(stream);
        }
        Ok(())
    }
}

fn ended(half: &Half) -> bool {
    half.ended.load(SeqCst) == 1
}
