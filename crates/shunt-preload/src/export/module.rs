//! Modules are opened.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;

use shunt_engine::life::{self, Objects, Opening};

use crate::call::{quietly, quietly_with};
use crate::next;
use crate::next::Function;
use crate::trampoline::forward;

forward! {
    dlopen through choose_dlopen;
}

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;

/// Where a `dlopen` goes.
unsafe extern "C-unwind" fn choose_dlopen(path: *const c_char, flags: c_int) -> Function {
    // SAFETY: the caller keeps the contract of `dlopen`.
    match quietly_with(|| unsafe { life::before_open(path, flags) }) {
        Opening::Direct => next::address::dlopen(),
        Opening::Followed => {
            // SAFETY: `forward` calls it with the arguments of `dlopen`, which are its own.
            unsafe { std::mem::transmute::<Open, Function>(open) }
        }
    }
}

/// A `dlopen` whose module is bound to this library.
unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int) -> *mut c_void {
    let before = ManuallyDrop::new(quietly_with(Objects::now));
    // SAFETY: the caller keeps the contract of `dlopen`.
    let module = unsafe { next::dlopen(path, flags) };
    quietly(|| {
        let before = ManuallyDrop::into_inner(before);
        if !module.is_null() {
            // SAFETY: this is what the loader has returned.
            unsafe { life::after_open(module, &before) };
        }
    });
    module
}
