//! What a descriptor is to this library, for callers that treat sockets and sets alike.

use libc::c_int;

use crate::epoll::{SETS, Set};
use crate::socket::{SOCKETS, Socket};
use crate::table::{self, Word};

/// What a descriptor is.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// Nothing of interest: the kernel's.
    Other,
    /// A TCP socket.
    Socket(&'static Socket),
    /// An epoll set.
    Set(&'static Set),
    /// One of the library's own descriptors.
    Ours,
}

impl From<Word> for Entry {
    #[inline(always)]
    fn from(word: Word) -> Self {
        if word == Word::NOTHING {
            return Self::Other;
        }
        if word == Word::OURS {
            return Self::Ours;
        }
        let set = || word.get().map(Self::Set);
        word.get()
            .map(Self::Socket)
            .or_else(set)
            .unwrap_or(Self::Other)
    }
}

impl From<Entry> for Word {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Other => Self::NOTHING,
            Entry::Socket(socket) => Self::of(socket),
            Entry::Set(set) => Self::of(set),
            Entry::Ours => Self::OURS,
        }
    }
}

/// What `fd` is.
#[inline(always)]
pub(crate) fn look(fd: c_int) -> Entry {
    table::look(fd).into()
}

/// Enters `fd`; returns what it was.
pub(crate) fn enter(fd: c_int, entry: Entry) -> Entry {
    table::enter(fd, entry.into()).into()
}

/// Calls `visit` for every descriptor that is entered.
pub(crate) fn each(mut visit: impl FnMut(c_int, Entry)) {
    table::each(|fd, word| visit(fd, word.into()));
}

/// Whether any socket or epoll set has ever been entered: before that, no descriptor
/// is of interest.
#[inline]
pub(crate) fn is_any() -> bool {
    SOCKETS.is_any() || SETS.is_any()
}
