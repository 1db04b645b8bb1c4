//! The exported symbols, by subject.

mod data;
mod fd;
mod fortify;
mod identity;
mod process;
mod ready;
mod signal;
mod socket;
mod stdio;
mod syscall;
