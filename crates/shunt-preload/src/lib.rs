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

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use shunt_abi::note::{NOTE as NOTE_OF_THIS_VERSION, Note};
use shunt_engine::life;

unsafe extern "C" {
    fn __cxa_atexit(
        handler: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        object: *mut c_void,
    ) -> c_int;
    /// What `pthread_atfork` calls; that one is a copy in each library, and hands
    /// over the library's name for the day on which it is unloaded, as ours is never.
    fn __register_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
        object: *mut c_void,
    ) -> c_int;
    fn __cxa_at_quick_exit(handler: extern "C" fn(*mut c_void), object: *mut c_void) -> c_int;
}

/// Where the code lies that every program runs, if it runs none else of ours: side by
/// side, so that it takes one page fault.
macro_rules! with_start {
    ($($function:item)*) => {$(
        #[unsafe(link_section = "shunt_start")]
        $function
    )*};
}
pub(crate) use with_start;

/// Tells `shunt run` that this is libshunt, and of which version.
#[used]
#[unsafe(link_section = ".note.shunt")]
static NOTE: Note = NOTE_OF_THIS_VERSION;

with_start! {
/// Run by the dynamic linker once the library and libc are usable.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: glibc gives its constructors the arguments of `main`.
    unsafe { life::start(environment) };
    // Handlers rather than hooks of fork, exit and quick_exit: they also see
    // libc's own calls (`daemon`, `forkpty`, a return from `main`), and those of
    // exit run last, since they are registered first, so what the program still
    // sends while it exits is served. A null object: belongs to the process, not
    // to the library's own finalisation, which comes earlier.
    // SAFETY: functions of this library, which is never unloaded.
    unsafe {
        __register_atfork(prepare_fork, forked, forked_child, ptr::null_mut());
        __cxa_atexit(leave, ptr::null_mut(), ptr::null_mut());
        __cxa_at_quick_exit(leave, ptr::null_mut());
    }
}
}

// What crtbegin.o would define (`build.rs` leaves it out): the library's name for
// `__cxa_thread_atexit_impl`.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.dso_handle,\"aw\",@progbits",
    ".p2align 3",
    ".hidden __dso_handle",
    ".globl __dso_handle",
    "__dso_handle: .quad __dso_handle",
    ".popsection",
);

// SAFETY: the section holds pointers to functions of this type.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

with_start! {
/// Before any fork, by whichever road.
extern "C" fn prepare_fork() {
    prepare_fork_by(0);
}

/// With these flags of `clone`.
fn prepare_fork_by(flags: u64) {
    next::before_fork();
    call::quietly(|| life::before_fork(flags));
}

/// In the parent.
extern "C" fn forked() {
    call::quietly(life::after_fork_parent);
}

extern "C" fn forked_child() {
    call::quietly(life::after_fork_child);
}

extern "C" fn leave(_: *mut c_void) {
    life::before_exit();
}
}
