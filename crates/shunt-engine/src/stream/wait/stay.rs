//! A call that has slept on a connection is counted there until it ends, so that a `close` leaves it a copy of the
//! descriptor ([`Handed`](crate::socket::Handed)).

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;

use libc::c_int;

use crate::hold::Taken;
use crate::real::CleanUp;
use crate::socket::{Left, Socket};
use crate::stream::Conn;
use crate::sys;
use crate::thread::signals::{self, Seen};
use crate::thread::{under_way, undisturbed};
use crate::wake::Place;

/// One call, or several that are parts of one, counted once it has [entered](Self::enter). One that a signal handler interrupts
/// [rests](interrupted) until it enters again. One that is cancelled, or left by `siglongjmp`, leaves by
/// libc's list of clean-ups.
pub(crate) struct Stay {
    counted: Cell<Option<Counted>>,
    clean_up: UnsafeCell<MaybeUninit<CleanUp>>,
    /// Which signal handlers had run when the call began, or began anew.
    pub(in crate::stream) seen: Cell<Seen>,
}

/// See [`Stay`].
#[derive(Clone, Copy)]
struct Counted {
    socket: &'static Socket,
    /// The program's descriptor.
    fd: c_int,
    since: Taken,
    /// The number by which [`under_way`] knows the call, …
    number: u32,
    /// … and the call that [`under_way`] knew before. `None`: this is a part of a call that is counted already.
    before: Option<under_way::Call>,
}

impl Counted {
    /// Whether it is counted as a call under way: no handler has run since it entered.
    fn goes_on(&self) -> bool {
        under_way::is_noted(self.number)
    }
}

impl Stay {
    /// Makes a call that may sleep.
    #[inline(always)]
    pub(crate) fn during<R>(call: impl FnOnce(&Self) -> R) -> R {
        let stay = Self {
            counted: Cell::new(None),
            clean_up: UnsafeCell::new(MaybeUninit::uninit()),
            seen: Cell::new(signals::now()),
        };
        let result = call(&stay);
        // Not by a destructor: if the thread were cancelled, unwinding through it would end the process.
        if stay.counted.get().is_some() {
            stay.leave();
        }
        result
    }

    /// The call begins anew: no handler that has run before ends it.
    pub(crate) fn begin_anew(&self) {
        self.seen.set(signals::now());
    }

    /// The connection by a descriptor that names it now. With a token, until that is given back.
    #[inline(always)]
    pub(crate) fn at<'a>(&self, conn: &Conn<'a>) -> Conn<'a> {
        match self.counted.get() {
            None => *conn,
            Some(_) => Conn {
                fd: conn.base().unwrap_or(-1),
                ..*conn
            },
        }
    }

    /// Whether the program's descriptor has been closed, so that the call uses another one: the copy that the `close` has
    /// left, or one more of the program's.
    #[inline(always)]
    pub(crate) fn goes_on(&self, conn: &Conn) -> bool {
        self.counted.get().is_some_and(|call| call.fd != conn.fd)
    }

    /// The call is about to sleep. `false`: the connection has ended, or a handler has run and the
    /// program's number does not name it any more.
    pub(crate) fn enter(&self, conn: &Conn) -> bool {
        match self.counted.get() {
            Some(call) => call.goes_on() || self.enter_again(call, conn),
            None => undisturbed::all_of(|| self.enter_first(conn)),
        }
    }

    fn enter_first(&self, conn: &Conn) -> bool {
        let outer = under_way::on(conn.socket);
        if outer.is_none() && !conn.socket.handed.enter() {
            return false;
        }
        let number = outer.unwrap_or_else(under_way::new_number);
        let before = outer
            .is_none()
            .then(|| under_way::begin(conn.socket, number));
        self.counted.set(Some(Counted {
            socket: conn.socket,
            fd: conn.fd,
            since: Taken::now(),
            number,
            before,
        }));
        // SAFETY: both are in the frame of `during`, which takes the buffer out at its end.
        unsafe { CleanUp::push(self.buffer(), end, ptr::from_ref(self).cast_mut().cast()) };
        true
    }

    /// Enters again after a signal handler, as the kernel restarts a call: by the program's number.
    #[cold]
    fn enter_again(&self, call: Counted, conn: &Conn) -> bool {
        let handed = &call.socket.handed;
        let left = undisturbed::all_of(|| {
            // A child that the handler has forked has counted no call yet.
            let lasts = call.since.lasts();
            if !(if lasts {
                handed.go_on()
            } else {
                handed.enter()
            }) {
                return Some(Left::Nothing);
            }
            let program = Conn {
                fd: call.fd,
                ..*conn
            };
            if !program.is_by_number() {
                return Some(if lasts { handed.rest() } else { handed.leave() });
            }
            let now = under_way::begin(call.socket, call.number);
            self.counted.set(Some(Counted {
                since: Taken::now(),
                // What the parent has counted is not counted in the child.
                before: call.before.or((!lasts).then_some(now)),
                ..call
            }));
            None
        });
        let entered = left.is_none();
        see_to(left.map(|left| (call.socket, left)));
        entered
    }

    /// Whether the call is counted as one under way, so that a `close` leaves it a descriptor.
    pub(super) fn is_counted(&self) -> bool {
        self.counted.get().is_some_and(|call| call.goes_on())
    }

    /// Whether the program's number names nothing any more. The kernel looks it up again where it
    /// restarts a call after a signal.
    pub(super) fn has_lost_number(&self) -> bool {
        self.counted
            .get()
            .is_some_and(|call| sys::fcntl(call.fd, libc::F_GETFD, 0).is_err())
    }

    fn buffer(&self) -> *mut CleanUp {
        self.clean_up.get().cast()
    }

    /// The call ends.
    #[cold]
    fn leave(&self) {
        let left = undisturbed::all_of(|| {
            // SAFETY: pushed by `enter`; what was pushed after it has been taken out.
            unsafe { CleanUp::pop(self.buffer()) };
            self.uncount()
        });
        see_to(left);
    }

    /// Ends the count of the call. Returns what is left to do for which socket; nothing in a child
    /// that a signal handler has forked meanwhile.
    fn uncount(&self) -> Option<(&'static Socket, Left)> {
        let call = self.counted.take().filter(|call| call.since.lasts())?;
        let before = call.before?;
        let handed = &call.socket.handed;
        let left = if call.goes_on() {
            under_way::end(before);
            handed.leave()
        } else {
            handed.leave_resting()
        };
        Some((call.socket, left))
    }
}

/// Ends a call that is left in the middle, by cancellation or `siglongjmp`. libc has taken the clean-up out of its list.
///
/// # Safety
/// `stay` is a [`Stay`] that is still there.
unsafe extern "C-unwind" fn end(stay: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    let stay = unsafe { &*stay.cast::<Stay>() };
    see_to(undisturbed::all_of(|| stay.uncount()));
}

/// A signal handler has interrupted a call of this thread's: the call rests. The other sleepers of the
/// connection say anew where they are called, since peers may have called this thread.
#[cold]
pub(crate) fn interrupted(socket: &'static Socket) {
    for places in &socket.places {
        places.each_that_hears(Place::wake);
    }
    let left = undisturbed::all_of(|| socket.handed.rest());
    see_to(Some((socket, left)));
}

fn see_to(left: Option<(&'static Socket, Left)>) {
    match left {
        None | Some((_, Left::Nothing)) => {}
        Some((socket, Left::Copy(fd))) => socket.close_copy(fd),
        Some((socket, Left::Over)) => socket.end_at_last(),
    }
}
