//! Is a process stopped that another one waits for?

use shunt_shm::token::Token;

use super::token::{Looks, is_held_by_stopped};
use crate::sys;

/// Looks now and then whether a process that is waited for is stopped.
pub(crate) struct Stopped(Looks);

impl Stopped {
    pub(crate) fn new() -> Self {
        Self(Looks::begin(sys::now()))
    }

    /// Whether the process that holds a token is stopped, as far as this has looked.
    pub(crate) fn is_holder_of(&mut self, token: &Token) -> bool {
        self.0.is_due(sys::now()) && is_held_by_stopped(token)
    }
}
