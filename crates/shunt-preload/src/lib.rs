//! libshunt.so: what `LD_PRELOAD` puts in front of libc.
//!
//! ```text
//! program ── send ──> export::data::send ──> shunt_engine::io::send ── Done, Fail ──> errno, return
//!                                                     └── Kernel ──> next::send (libc's)
//! ```
//!
//! Each exported symbol converts its arguments, calls the engine and acts on
//! its [`shunt_engine::Outcome`]; there is no logic here. `next` finds the
//! functions that ours stand in front of, `trampoline` holds what C's variadic
//! functions need and stable Rust cannot say.
//!
//! Rules for every exported function:
//! * `extern "C-unwind"`: `pthread_cancel` unwinds through it, so no value with
//!   a destructor is alive across a call that may block.
//! * `errno` changes only when the call fails.
//! * It may be called before [`start`], from inside `dlsym`, from a signal
//!   handler, and from a `vfork` child that runs on its parent's memory.
//! * No standard library input or output: those calls are exported here.

mod call;
mod export;
mod next;
mod trampoline;

use std::ffi::{c_int, c_void};
use std::ptr;

use shunt_engine::life;

unsafe extern "C" {
    fn __cxa_atexit(
        handler: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        object: *mut c_void,
    ) -> c_int;
    fn __cxa_at_quick_exit(handler: extern "C" fn(*mut c_void), object: *mut c_void) -> c_int;
}

/// Run by the dynamic linker once the library and libc are usable.
extern "C" fn start() {
    life::start();
    // Handlers rather than hooks of fork, exit and quick_exit: they also see
    // libc's own calls (`daemon`, `forkpty`, a return from `main`), and those of
    // exit run last, since they are registered first, so what the program still
    // sends while it exits is served. A null object: belongs to the process, not
    // to the library's own finalisation, which comes earlier.
    // SAFETY: functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(prepare_fork), Some(forked_parent), Some(forked_child));
        __cxa_atexit(leave, ptr::null_mut(), ptr::null_mut());
        __cxa_at_quick_exit(leave, ptr::null_mut());
    }
}

// SAFETY: the section holds pointers to functions of this type.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Before any fork, by whichever road.
extern "C" fn prepare_fork() {
    call::quietly(life::before_fork);
}

extern "C" fn forked_parent() {
    call::quietly(life::after_fork_parent);
}

extern "C" fn forked_child() {
    call::quietly(life::after_fork_child);
}

extern "C" fn leave(_: *mut c_void) {
    life::before_exit();
}
