//! What the tools that test and measure Shunt share.
//!
//! | module | has |
//! |---|---|
//! | [`process`] | other processes, as `/proc` shows them, and signals to them |
//! | [`stacks`] | where the threads of a process stand that hangs |
//! | [`port`] | ports that are free, and whether somebody listens |
//! | [`stats`] | the statistics that programs under Shunt leave behind, added up |
//!
//! Neighbours: none. `xtask`, `shunt-tests`, `shunt-soak` and `shunt-bench` use it; the product does not. It finds out, and
//! never judges: what a run should have been is for its users to know. How they run children stays theirs, too, since
//! no two of them need the same: `xtask` keeps one log and prints stacks, `shunt-tests` compares two outputs of each role,
//! and `shunt-bench` talks with its children in lines.

#![forbid(unsafe_code)]

pub mod port;
pub mod process;
pub mod stacks;
pub mod stats;
