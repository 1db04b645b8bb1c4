//! A call that has slept on a connection is counted there until it ends, so that who closes the
//! connection leaves it a descriptor to go on by ([`Handed`](crate::socket::Handed)).

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;

use libc::c_int;

use crate::hold::Taken;
use crate::life;
use crate::real::CleanUp;
use crate::socket::{Left, Socket};
use crate::stream::Conn;
use crate::sys;
use crate::thread::undisturbed;

/// One call, counted once it has [entered](Self::enter). One that is cancelled, or left by
/// `siglongjmp`, leaves by libc's list of clean-ups.
pub(in crate::stream) struct Stay {
    counted: Cell<Option<Counted>>,
    clean_up: UnsafeCell<MaybeUninit<CleanUp>>,
}

/// See [`Stay`].
#[derive(Clone, Copy)]
struct Counted {
    socket: &'static Socket,
    /// The program's descriptor.
    fd: c_int,
    since: Taken,
}

impl Stay {
    /// Makes a call that may sleep.
    #[inline(always)]
    pub(in crate::stream) fn during<R>(call: impl FnOnce(&Self) -> R) -> R {
        let stay = Self {
            counted: Cell::new(None),
            clean_up: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let result = call(&stay);
        // No destructor: where a thread is cancelled, that would end the process.
        if stay.counted.get().is_some() {
            stay.leave();
        }
        result
    }

    /// The connection by a descriptor that names it now. With a token, until that is given back.
    #[inline(always)]
    pub(in crate::stream) fn at<'a>(&self, conn: &Conn<'a>) -> Conn<'a> {
        match self.counted.get() {
            None => *conn,
            Some(_) => Conn {
                fd: conn.base().unwrap_or(-1),
                ..*conn
            },
        }
    }

    /// Whether the program's descriptor has been closed, and the call goes on by another one.
    #[inline(always)]
    pub(in crate::stream) fn goes_on(&self, conn: &Conn) -> bool {
        self.counted.get().is_some_and(|call| call.fd != conn.fd)
    }

    /// The call is about to sleep. `false`: the connection has ended.
    pub(in crate::stream) fn enter(&self, conn: &Conn) -> bool {
        if self.counted.get().is_some() {
            return true;
        }
        undisturbed::all_of(|| {
            let entered = conn.socket.handed.enter();
            if entered {
                self.counted.set(Some(Counted {
                    socket: conn.socket,
                    fd: conn.fd,
                    since: Taken::now(),
                }));
                // SAFETY: both are in the frame of `during`, which takes the buffer out at its end.
                unsafe { CleanUp::push(self.buffer(), end, ptr::from_ref(self).cast_mut().cast()) };
            }
            entered
        })
    }

    /// Whether the kernel would look the program's number up in vain, as it does where a call is
    /// restarted after a signal.
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

    /// What the call leaves behind on which socket. Nothing in a child that a signal handler has
    /// forked meanwhile.
    fn uncount(&self) -> Option<(&'static Socket, Left)> {
        let call = self.counted.take().filter(|call| call.since.lasts())?;
        Some((call.socket, call.socket.handed.leave()))
    }
}

/// The call is left in the middle: libc has taken the buffer out.
///
/// # Safety
/// `stay` is a [`Stay`] that is still there.
unsafe extern "C-unwind" fn end(stay: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    let stay = unsafe { &*stay.cast::<Stay>() };
    see_to(undisturbed::all_of(|| stay.uncount()));
}

fn see_to(left: Option<(&'static Socket, Left)>) {
    match left {
        None | Some((_, Left::Nothing)) => {}
        Some((socket, Left::Copy(fd))) => life::close_copy(socket, fd),
        Some((socket, Left::Over)) => socket.end_at_last(),
    }
}
