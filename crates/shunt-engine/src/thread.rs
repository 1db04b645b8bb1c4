//! What a thread and its process know of themselves: names for tokens, the process id, and signals seen.
//!
//! * [`identity`], [`owner`], [`alone`]: the process, whose its memory is, and how many threads it has.
//! * [`cancel`]: whether a thread may have been asked to end.
//! * [`token`], [`lock`]: what a thread holds. [`rest`]: how it waits for another's step.
//! * [`partner`]: whom a thread calls again and again.
//! * [`words`], [`signals`], [`undisturbed`], [`under_way`], [`sleep`]: what signal handlers find of a thread.

pub(crate) mod alone;
pub mod cancel;
mod identity;
mod lock;
mod owner;
pub(crate) mod partner;
mod rest;
pub(crate) mod signals;
pub(crate) mod sleep;
mod token;
pub(crate) mod under_way;
pub(crate) mod undisturbed;
mod words;

pub use alone::{is_alone, not_alone};

pub(crate) use identity::{forks, is_used, learn_pid, note_fork, pid};
pub(crate) use lock::{Lock, signals_lock};
pub(crate) use owner::{lend_memory, owns_descriptors, owns_memory, set_used};
pub(crate) use rest::Rest;
#[cfg(test)]
pub(crate) use token::of_another;
pub(crate) use token::{
    Got, Held, Looks, give, here, is_held_by_dead, is_held_by_running, is_held_by_stopped,
    take_while, try_take,
};
pub(crate) use words::set_apart;
