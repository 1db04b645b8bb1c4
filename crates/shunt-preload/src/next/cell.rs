//! Finding the next definition of a symbol, once.

use std::ffi::CStr;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::call;

/// Any function; cast to the symbol's own type by who knows it.
pub(crate) type Function = unsafe extern "C-unwind" fn();

/// What a symbol is called, and the same service by a bare system call, where
/// there is one. Said by the code that looks it up: pointers in memory would be
/// the loader's to relocate whenever a program starts.
pub(super) type Sought = (&'static CStr, Option<Function>);

/// One symbol's next definition. Addresses never change once found, so all
/// accesses are relaxed.
pub(super) struct Cell(AtomicPtr<()>);

impl Cell {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The next definition, looked up on first use.
    #[inline(always)]
    pub(super) fn get(&self, sought: impl FnOnce() -> Sought) -> Function {
        let address = self.0.load(Ordering::Relaxed);
        if address.is_null() {
            return self.resolve(sought());
        }
        // SAFETY: only addresses of functions are stored.
        unsafe { mem::transmute::<*mut (), Function>(address) }
    }

    /// `dlsym` may allocate, and the program's allocator may call us back before
    /// it is ready. So may a signal handler that interrupts the look-up. Whoever
    /// comes here from inside a look-up gets the system call instead.
    #[cold]
    #[inline(never)]
    fn resolve(&self, (name, fallback): Sought) -> Function {
        let guard = enter();
        if let (Nested::Yes, Some(fallback)) = (&guard, fallback) {
            return fallback;
        }
        let mut found = ptr::null_mut();
        call::quietly(|| {
            // SAFETY: a NUL-terminated name. RTLD_NEXT means the library after
            // the one that this call returns to, which is ours.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            if found.is_null() {
                // SAFETY: takes nothing. Takes back the message that the program
                // would otherwise find.
                unsafe { libc::dlerror() };
            }
        });
        guard.leave();
        match (found.is_null(), fallback) {
            (false, _) => {
                self.0.store(found.cast(), Ordering::Relaxed);
                // SAFETY: the symbol is a function.
                unsafe { mem::transmute::<*mut libc::c_void, Function>(found) }
            }
            // Newer than this libc.
            (true, Some(fallback)) => {
                self.0.store(fallback as *mut (), Ordering::Relaxed);
                fallback
            }
            // SAFETY: ends the process: nobody can call what does not exist.
            (true, None) => unsafe { libc::abort() },
        }
    }
}

/// Threads now in `dlsym`, by the address of their `errno`. More than fit go
/// unnoticed, at the risk of a recursion that allocators guard against anyway.
static RESOLVING: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Whether this thread was looking a symbol up already. Plain data, since a
/// cancelled thread may not run destructors here.
enum Nested {
    Yes,
    No(Option<&'static AtomicUsize>),
}

fn enter() -> Nested {
    // SAFETY: has no requirements.
    let thread = unsafe { libc::__errno_location() } as usize;
    if RESOLVING
        .iter()
        .any(|slot| slot.load(Ordering::Relaxed) == thread)
    {
        return Nested::Yes;
    }
    Nested::No(RESOLVING.iter().find(|slot| {
        slot.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }))
}

impl Nested {
    fn leave(self) {
        if let Nested::No(Some(slot)) = self {
            slot.store(0, Ordering::Relaxed);
        }
    }
}
