//! C functions with variable arguments, which stable Rust cannot define.
//!
//! Two shapes suffice. [`forward`] asks a Rust function where to go and goes
//! there with every argument untouched, stack included: the next function
//! returns straight to the caller. [`collect`] turns `f(path, a, b, …)` into
//! `f(path, [a, b, …])`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{collect, forward};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{collect, forward};
