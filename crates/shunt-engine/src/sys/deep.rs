//! A module that is opened with `RTLD_DEEPBIND` finds its symbols in itself and in what it needs before it finds what was
//! preloaded (`dlopen(3)`): it would call libc past this library, on connections that this library serves. What such a module,
//! and what comes with it, takes from libc and could have from this library is bound to this library once it is there, as if the
//! loader had found that first. Its other symbols stay as the flag demands, and so do all objects that are there already.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::objects::{Object, Relocation, each, page_of};

/// The objects that the process has before a module is opened.
pub struct Objects(Vec<usize>);

impl Objects {
    /// Those that there are now.
    #[must_use]
    pub fn now() -> Self {
        let mut count = 0;
        each(|_| {
            count += 1;
            false
        });
        // Nothing is allocated under the loader's lock: the allocator may be the program's, and call the loader.
        let mut known = Vec::with_capacity(count + 64);
        each(|object| {
            if known.len() < known.capacity() {
                known.push(object.dynamic);
            }
            false
        });
        Self(known)
    }
}

/// Whether some object says where the modules are to be looked for that it opens by their names alone. Otherwise the loader
/// finds the same whoever opens one.
pub(crate) fn has_search_path() -> bool {
    let mut has_one = false;
    each(|object| {
        // (Some kernels have linked theirs with one.)
        has_one = !object.is_libcs() && object.has_search_path();
        has_one
    });
    has_one
}

/// The beginning of what glibc hands out as a handle (`struct link_map`, `dlinfo(3)`).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: usize,
}

/// What the loader has not looked up yet: it does so at the first call.
struct Open {
    place: Place,
    name: *const c_char,
    function: usize,
}

/// How many names of needed objects, and how many open places, are looked at in one go.
const NAMES: usize = 256;
const OPEN: usize = 256;

/// Binds a module that was not among `before`, with what has come with it. The loader has returned, and so will write to none of
/// these objects any more but in lazy binding.
///
/// # Safety
/// `module` is a handle that `dlopen` has just returned to this thread.
#[cold]
pub(crate) unsafe fn bind_module(module: *mut c_void, before: &Objects) {
    // SAFETY: the caller's promise.
    let root = unsafe { (*module.cast::<LinkMap>()).dynamic };
    if before.0.contains(&root) {
        return;
    }
    let mut open = Vec::with_capacity(OPEN);
    let mut others = 0;
    loop {
        open.clear();
        let mut passed = 0;
        each_with_ours(root, |object, own| {
            for relocation in object.relocations() {
                if let Some(found) = bind_one(object, relocation, own) {
                    passed += 1;
                    if passed > others && open.len() < OPEN {
                        open.push(found);
                    }
                }
            }
        });
        let is_last = open.len() < OPEN;
        for open in &open {
            // SAFETY: a handle and a name of an object that it keeps.
            let found = unsafe { libc::dlsym(module, open.name) } as usize;
            if is_libcs(found) {
                open.place.store(open.function);
            } else {
                others += 1;
            }
        }
        if is_last {
            break;
        }
    }
    // SAFETY: takes nothing. Takes back what the program would find of a name that is nowhere.
    unsafe { libc::dlerror() };
}

/// Visits the object whose dynamic section is `root`, and those that have come with it: the loader lists them behind it, each
/// of them needed by one before. `visit` gets this library as its second argument.
fn each_with_ours(root: usize, mut visit: impl FnMut(&Object<'_>, &Object<'_>)) {
    each(|own| {
        let is_own = own.has(is_libcs as *const () as usize);
        if is_own {
            let mut needed = [std::ptr::null(); NAMES];
            let mut names = 0;
            let mut has_begun = false;
            each(|object| {
                if !has_begun && object.dynamic != root {
                    return false;
                }
                let is_needed = |name: &*const c_char| {
                    // SAFETY: names of mapped objects.
                    object.is_called(unsafe { CStr::from_ptr(*name) })
                };
                if has_begun && !needed[..names].iter().any(is_needed) {
                    return true;
                }
                has_begun = true;
                for name in object.needed() {
                    if names < NAMES {
                        needed[names] = name.as_ptr();
                        names += 1;
                    }
                }
                if !object.is_libcs() && object.base != own.base {
                    visit(object, own);
                }
                false
            });
        }
        is_own
    });
}

/// Binds what one relocation of an object stores, if that is libc's and this library has it, too. What the loader
/// has not looked up yet is returned.
fn bind_one(object: &Object<'_>, relocation: &Relocation, own: &Object<'_>) -> Option<Open> {
    let symbol = relocation.symbol();
    if symbol == 0 || !relocation.is_address() || !object.is_undefined(symbol) {
        return None;
    }
    let address = object.base.wrapping_add(relocation.offset());
    if !object.is_data(address) || !address.is_multiple_of(align_of::<usize>()) {
        return None;
    }
    let name = object.name(symbol);
    let function = own.function(name)?;
    let place = Place {
        address,
        is_read_only: object.is_read_only(address),
    };
    let bound = place.word().load(Ordering::Relaxed);
    if is_libcs(bound) {
        place.store(function);
    } else if relocation.is_call() && object.has(bound) {
        let name = name.as_ptr();
        return Some(Open {
            place,
            name,
            function,
        });
    }
    None
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

/// Where an object has the address of a function.
struct Place {
    address: usize,
    /// The loader has made its page so.
    is_read_only: bool,
}

impl Place {
    fn word(&self) -> &AtomicUsize {
        // SAFETY: aligned, and data of a mapped object; other threads read it while they call.
        unsafe { AtomicUsize::from_ptr(self.address as *mut usize) }
    }

    fn store(&self, function: usize) {
        if !self.is_read_only {
            self.word().store(function, Ordering::Relaxed);
        } else if self.protect(libc::PROT_READ | libc::PROT_WRITE) {
            self.word().store(function, Ordering::Relaxed);
            self.protect(libc::PROT_READ);
        }
    }

    fn protect(&self, protection: c_int) -> bool {
        let page = page_of(self.address);
        let bytes = self.address + size_of::<usize>() - page;
        // SAFETY: a page of a mapped object whose relocation is over.
        unsafe { libc::mprotect(page as *mut _, bytes, protection) == 0 }
    }
}
