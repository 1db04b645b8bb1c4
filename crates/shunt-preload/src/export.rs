//! The exported symbols, by subject.
//!
//! # Safety
//! Who calls a function of the modules below keeps the contract of the libc
//! function that it stands for: pointers are valid as its man page demands. The
//! engine and the next definition are called with the same arguments under the
//! same contract.

mod aio;
mod data;
mod fd;
mod fortify;
mod identity;
mod module;
mod process;
mod ready;
mod signal;
mod socket;
mod stdio;
mod syscall;
mod thread;
