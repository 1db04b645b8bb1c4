//! The page of the cores: processes of one user, in one network namespace, note in it when one of them had which core.
//!
//! A thread that yields its core cannot tell a stranger that used up a time slice from many of the user's own that each worked
//! for a moment. By this page it can. shuntd makes it and passes it to every process with a link; all of them write it. It holds
//! hints only: whatever stands in it, a process yields or sleeps where it would have done otherwise, and nothing else.
//!
//! Processes of two users, or in two namespaces, that have links with each other share another such page. `index` of the message
//! that passes a page says at which place a process has it: 0 for its user's own, up to [`BESIDE`] for those.
//!
//! ```text
//! 64 × n  for the cores with number n, n + 64, … :
//!   0     when one of the processes was seen there last (u64, ticks of the processor's counter)
//!   8     the time for which others had it, in all (u64, ticks)
//! ```

/// How many cores are told apart; those with higher numbers share these places.
pub const CORES: usize = 64;
/// Size of a core's place: a line of the cache, which only threads on that core write.
pub const LINE: usize = 64;
/// Size of the page.
pub const SIZE: usize = CORES * LINE;
/// How many pages a process has beside its user's own.
pub const BESIDE: usize = 3;
