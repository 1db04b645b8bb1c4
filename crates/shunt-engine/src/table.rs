//! What each descriptor names, found in two loads.
//!
//! The table grows by chunks that are never given back, so a look-up needs no lock. It knows no type of object:
//! an entry is one word, the address of an [`Object`] with its kind in the low bits.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::c_int;

use crate::{sys, thread};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// What a descriptor may name here.
///
/// # Safety
/// No other type has this kind, and objects of this type are never freed.
pub(crate) unsafe trait Object: 'static {
    /// Which type it is: below [`OURS`], and not 0.
    const KIND: usize;
}

const OURS: usize = 3;
const KIND: usize = 3;

/// What one descriptor names: an object's address with its kind in the low bits, which are zero in an address;
/// [`Word::OURS`]; or nothing of interest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(*mut ());

impl Word {
    /// Nothing of interest: the kernel's.
    pub(crate) const NOTHING: Self = Self(std::ptr::null_mut());
    /// One of the library's own descriptors.
    pub(crate) const OURS: Self = Self(std::ptr::without_provenance_mut(OURS));

    /// An object.
    pub(crate) fn of<T: Object>(object: &'static T) -> Self {
        const {
            assert!(T::KIND != 0 && T::KIND < OURS && align_of::<T>() > KIND);
        }
        // SAFETY: inside the object, which is larger.
        let tagged = unsafe { std::ptr::from_ref(object).byte_add(T::KIND) };
        Self(tagged.cast_mut().cast())
    }

    /// The object, if it is of this type.
    #[inline(always)]
    pub(crate) fn get<T: Object>(self) -> Option<&'static T> {
        if self.0.addr() & KIND != T::KIND {
            return None;
        }
        // SAFETY: the kind says which type it is, and objects are never freed (`Object`).
        Some(unsafe { &*self.0.byte_sub(T::KIND).cast::<T>() })
    }

    /// Whether it is this object.
    #[inline(always)]
    pub(crate) fn is<T: Object>(self, object: &T) -> bool {
        self.get::<T>()
            .is_some_and(|named| std::ptr::eq(named, object))
    }
}

type Cell = AtomicPtr<()>;

const CHUNK_BYTES: usize = CHUNK * size_of::<Cell>();

static DESCRIPTORS: [AtomicPtr<Cell>; CHUNKS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS];

#[inline(always)]
fn cell(fd: c_int) -> Option<&'static Cell> {
    let fd = fd as u32 as usize;
    if fd >= CHUNK * CHUNKS {
        return None;
    }
    let chunk = DESCRIPTORS[fd / CHUNK].load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: a chunk has CHUNK cells and is never freed.
    Some(unsafe { &*chunk.add(fd % CHUNK) })
}

/// What `fd` names.
#[inline(always)]
pub(crate) fn look(fd: c_int) -> Word {
    cell(fd).map_or(Word::NOTHING, |cell| Word(cell.load(Ordering::Acquire)))
}

/// The object of this type that `fd` names, if it names one.
#[inline(always)]
pub(crate) fn get<T: Object>(fd: c_int) -> Option<&'static T> {
    Word(cell(fd)?.load(Ordering::Acquire)).get()
}

/// Enters `fd`; returns what it was.
pub(crate) fn enter(fd: c_int, word: Word) -> Word {
    let index = fd as u32 as usize;
    if index >= CHUNK * CHUNKS {
        return Word::NOTHING;
    }
    let home = &DESCRIPTORS[index / CHUNK];
    if home.load(Ordering::Acquire).is_null() {
        if word == Word::NOTHING {
            return word;
        }
        begin_chunk(home);
    }
    cell(fd).map_or(Word::NOTHING, |cell| {
        Word(cell.swap(word.0, Ordering::AcqRel))
    })
}

fn begin_chunk(home: &AtomicPtr<Cell>) {
    thread::set_used();
    let mut fresh = sys::map_wiped_on_fork(CHUNK_BYTES);
    if fresh.is_null() {
        fresh = sys::map(CHUNK_BYTES);
    }
    // A thread that was faster keeps its chunk; ours is lost, once.
    let _ = home.compare_exchange(
        std::ptr::null_mut(),
        fresh.cast(),
        Ordering::SeqCst,
        Ordering::Acquire,
    );
    // A thread that forks just now may not have seen the new chunk.
    if IS_HANDED_ON.load(Ordering::SeqCst) {
        sys::wipe_on_fork(fresh, CHUNK_BYTES, false);
    }
}

/// Whether a child that is made now may find the table.
static IS_HANDED_ON: AtomicBool = AtomicBool::new(false);

/// Decides whether children find in their copy of the table what their parent has there. The children of a
/// fork that the library sees do. For any other child all descriptors are the kernel's, since it has none
/// of the memory of its parent's connections.
///
/// `false`: the kernel refuses that for a part of the table.
pub(crate) fn hand_on(whole: bool) -> bool {
    let mut done = true;
    IS_HANDED_ON.store(whole, Ordering::SeqCst);
    for home in &DESCRIPTORS {
        let chunk = home.load(Ordering::SeqCst);
        if !chunk.is_null() {
            done &= sys::wipe_on_fork(chunk.cast(), CHUNK_BYTES, !whole);
        }
    }
    done
}

/// Calls `visit` for every descriptor that is entered.
pub(crate) fn each(mut visit: impl FnMut(c_int, Word)) {
    for (i, home) in DESCRIPTORS.iter().enumerate() {
        if home.load(Ordering::Acquire).is_null() {
            continue;
        }
        for j in 0..CHUNK {
            let fd = (i * CHUNK + j) as c_int;
            let word = look(fd);
            if word != Word::NOTHING {
                visit(fd, word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::both_ends::{in_child, one_at_a_time};
    use crate::socket::{SOCKETS, Socket};

    /// Numbers that no descriptor has.
    const AWAY: c_int = 300_000;

    #[test]
    fn a_number_names_what_was_entered_last() {
        assert!(look(AWAY) == Word::NOTHING && get::<Socket>(AWAY).is_none());
        assert!(enter(AWAY, Word::OURS) == Word::NOTHING);
        assert!(look(AWAY) == Word::OURS && get::<Socket>(AWAY).is_none());
        let socket = SOCKETS.take().unwrap();
        assert!(enter(AWAY, Word::of(socket)) == Word::OURS);
        assert!(look(AWAY).is(socket) && std::ptr::eq(get(AWAY).unwrap(), socket));
        assert!(enter(AWAY, Word::NOTHING).is(socket));
        assert!(look(AWAY) == Word::NOTHING);
        SOCKETS.give(socket);
    }

    #[test]
    fn an_object_is_of_its_own_type_only() {
        let socket = SOCKETS.take().unwrap();
        let word = Word::of(socket);
        assert!(word.get::<crate::epoll::Set>().is_none() && word.get::<Socket>().is_some());
        assert!(Word::OURS.get::<Socket>().is_none() && Word::NOTHING.get::<Socket>().is_none());
        SOCKETS.give(socket);
    }

    #[test]
    fn numbers_beyond_the_table_name_nothing() {
        for fd in [-1, c_int::MIN, (CHUNK * CHUNKS) as c_int] {
            assert!(enter(fd, Word::OURS) == Word::NOTHING && look(fd) == Word::NOTHING);
        }
    }

    #[test]
    fn each_that_is_entered_is_visited() {
        let numbers = [AWAY + 5, AWAY + 5 + CHUNK as c_int];
        for fd in numbers {
            enter(fd, Word::OURS);
        }
        let mut seen = Vec::new();
        each(|fd, word| {
            if numbers.contains(&fd) && word == Word::OURS {
                seen.push(fd);
            }
        });
        assert_eq!(seen, numbers);
        for fd in numbers {
            enter(fd, Word::NOTHING);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_child_finds_what_is_entered_only_where_the_table_is_handed_on() {
        let _alone = one_at_a_time();
        const FD: c_int = AWAY + 9;
        enter(FD, Word::OURS);
        let finds = || in_child(|| look(FD) == Word::OURS);
        assert!(!finds());
        assert!(hand_on(true) && finds());
        assert!(hand_on(false) && !finds());
        enter(FD, Word::NOTHING);
    }
}
