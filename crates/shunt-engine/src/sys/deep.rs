//! A module that was opened with `RTLD_DEEPBIND` finds its symbols in itself and in what it needs before it finds what was
//! preloaded (`dlopen(3)`): it would call libc past this library, on connections that this library serves. What such a module
//! takes from libc and could have from this library is bound to this library here, as if the loader had found that first. Its
//! other symbols stay as the flag demands.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::objects::{Object, each, page_of};

/// Whether a module may be there that was not bound.
static IS_WAITING: AtomicBool = AtomicBool::new(false);

/// A module is about to be opened, and nothing of this library runs when that is done: it is bound before the next connection
/// comes to its rings.
pub(crate) fn bind_later() {
    IS_WAITING.store(true, Ordering::Relaxed);
}

/// Binds the modules that [`bind_later`] was told of.
#[inline]
pub(crate) fn bind_waiting() {
    if IS_WAITING.load(Ordering::Relaxed) {
        IS_WAITING.store(false, Ordering::Relaxed);
        bind_modules();
    }
}

/// Binds all objects of the process to this library. To visit those that are bound already changes nothing.
#[cold]
pub(crate) fn bind_modules() {
    each(|own| {
        let is_own = own.has(bind_modules as *const () as usize);
        if is_own {
            each(|object| {
                if object.base != own.base && !object.is_libcs() {
                    bind(object, own);
                }
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
