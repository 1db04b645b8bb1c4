//! A module that was opened with `RTLD_DEEPBIND` finds its symbols in itself and in what it needs before it finds what was
//! preloaded (`dlopen(3)`): it would call libc past this library, on connections that this library serves. What such a module
//! takes from libc and could have from this library is bound to this library here, as if the loader had found that first. Its
//! other symbols stay as the flag demands.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::objects::{Object, each, page_of};

/// How many objects there were before those that may be there without being bound; [`NONE`]: all are bound.
static WAITING: AtomicUsize = AtomicUsize::new(NONE);
const NONE: usize = usize::MAX;

/// The objects that the process had at a moment. The loader lists them in the order in which they came.
#[derive(Clone, Copy)]
pub struct Objects {
    count: usize,
    /// How many it had unloaded by then.
    unloaded: u64,
}

impl Objects {
    /// Those that there are now.
    #[must_use]
    pub fn now() -> Self {
        let mut now = Self {
            count: 0,
            unloaded: 0,
        };
        each(|object| {
            now.count += 1;
            now.unloaded = object.unloaded;
            false
        });
        now
    }
}

/// A module is about to be opened, and nothing of this library runs when that is done: it is bound before the next connection
/// comes to its rings.
pub(crate) fn bind_later() {
    WAITING.fetch_min(Objects::now().count, Ordering::Relaxed);
}

/// Binds the modules that [`bind_later`] was told of.
#[inline]
pub(crate) fn bind_waiting() {
    if WAITING.load(Ordering::Relaxed) != NONE {
        bind_behind(WAITING.swap(NONE, Ordering::Relaxed));
    }
}

/// Binds what was loaded after there were the objects `before`. Those stay as they are: where another library is preloaded in
/// front of this one, their calls go there.
pub(crate) fn bind_since(before: Objects) {
    let is_in_order = Objects::now().unloaded == before.unloaded;
    bind_behind(if is_in_order { before.count } else { 0 });
}

/// Binds all objects but the `first` ones to this library. To visit one that is bound already changes nothing.
#[cold]
fn bind_behind(first: usize) {
    each(|own| {
        let is_own = own.has(bind_behind as *const () as usize);
        if is_own {
            let mut number = 0;
            each(|object| {
                if number >= first && object.base != own.base && !object.is_libcs() {
                    bind(object, own);
                }
                number += 1;
                false
            });
        }
        is_own
    });
}

/// Binds one object to `own`.
fn bind(object: &Object<'_>, own: &Object<'_>) {
    for relocation in object.relocations() {
        let symbol = relocation.symbol();
        if symbol == 0 || !relocation.is_address() || !object.is_undefined(symbol) {
            continue;
        }
        let place = object.base.wrapping_add(relocation.offset());
        if !object.is_data(place) || !place.is_multiple_of(align_of::<usize>()) {
            continue;
        }
        // SAFETY: the loader has stored an address there, and other threads read it.
        let place = unsafe { AtomicUsize::from_ptr(place as *mut usize) };
        let bound = place.load(Ordering::Relaxed);
        // Code of the object's own looks the symbol up at the first call.
        if let Some(function) = own.function(object.name(symbol))
            && bound != function
            && (object.has(bound) || is_libcs(bound))
        {
            store(object, place, function);
        }
    }
}

/// Whether an address lies in one of libc's objects.
fn is_libcs(address: usize) -> bool {
    let mut is_so = false;
    each(|object| {
        let found = object.has(address);
        is_so = found && object.is_libcs();
        found
    });
    is_so
}

/// Changes the address that is stored at a place of an object.
fn store(object: &Object<'_>, place: &AtomicUsize, function: usize) {
    let address = place.as_ptr() as usize;
    let protect = |protection| {
        let page = page_of(address);
        let bytes = address + size_of::<usize>() - page;
        // SAFETY: a page of a mapped object. The loader itself has written there.
        unsafe { libc::mprotect(page as *mut _, bytes, protection) == 0 }
    };
    if !object.is_read_only(address) {
        place.store(function, Ordering::Relaxed);
    } else if protect(libc::PROT_READ | libc::PROT_WRITE) {
        place.store(function, Ordering::Relaxed);
        protect(libc::PROT_READ);
    }
}
