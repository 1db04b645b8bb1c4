//! How an operation ends.

/// What a hooked call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Return this value.
    Done(isize),
    /// Set `errno` to this and return −1.
    Fail(i32),
    /// Not ours: call the real function with the same arguments.
    Kernel,
}
