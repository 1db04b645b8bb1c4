//! The objects of this process, as the dynamic loader has mapped them: what they refer to, and what they define (ELF gABI,
//! "Dynamic Section"; `elf(5)`, `dl_iterate_phdr(3)`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;

/// libc's own objects and the kernel's, by the beginnings of their names.
const LIBC: &[&[u8]] = &[
    b"libc.so",
    b"ld-linux",
    b"libm.so",
    b"libpthread.so",
    b"libdl.so",
    b"linux-vdso.so",
];

/// One relocation (`Elf64_Rela`).
#[repr(C)]
pub(super) struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

impl Relocation {
    /// The index of its symbol; 0: none.
    pub(super) fn symbol(&self) -> usize {
        (self.info >> 32) as usize
    }

    /// Whether it stores the address of its symbol, and nothing added to that.
    pub(super) fn is_address(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        const KINDS: [u32; 3] = [1, 6, 7]; // R_X86_64_64, GLOB_DAT, JUMP_SLOT
        #[cfg(target_arch = "aarch64")]
        const KINDS: [u32; 3] = [257, 1025, 1026]; // R_AARCH64_ABS64, GLOB_DAT, JUMP_SLOT
        KINDS.contains(&(self.info as u32)) && self.addend == 0
    }

    /// Whether it is for calls only, and may be looked up at the first one.
    pub(super) fn is_call(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        const KIND: u32 = 7; // R_X86_64_JUMP_SLOT
        #[cfg(target_arch = "aarch64")]
        const KIND: u32 = 1026; // R_AARCH64_JUMP_SLOT
        self.info as u32 == KIND
    }

    /// Where it stores, from the address at which the object is mapped.
    pub(super) fn offset(&self) -> usize {
        self.offset as usize
    }
}

/// A mapped object.
pub(super) struct Object<'a> {
    /// What its addresses in the file are to be added to.
    pub(super) base: usize,
    /// Where its dynamic section lies.
    pub(super) dynamic: usize,
    path: *const c_char,
    headers: &'a [libc::Elf64_Phdr],
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    soname: Option<usize>,
    /// Relocations and how many bytes of them there are, twice.
    relocations: [(*const Relocation, usize); 2],
    hashes: *const u32,
}

impl Object<'_> {
    /// The object that the loader describes; none if it has no symbols.
    ///
    /// # Safety
    /// `info` is the loader's, in `dl_iterate_phdr`.
    pub(super) unsafe fn of(info: &libc::dl_phdr_info) -> Option<Self> {
        const SYMBOLS: u64 = 6;
        const NAMES: u64 = 5;
        const SONAME: u64 = 14;
        const RELOCATIONS: u64 = 7;
        const RELOCATIONS_SIZE: u64 = 8;
        const JUMPS: u64 = 23;
        const JUMPS_SIZE: u64 = 2;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let base = info.dlpi_addr;
        // Relocated in place, except of the vDSO.
        let at = |value: u64| if value < base { base + value } else { value };
        // SAFETY: the caller's promise.
        unsafe {
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            let mut object = Self {
                base: base as usize,
                dynamic: 0,
                path: info.dlpi_name,
                headers,
                symbols: std::ptr::null(),
                names: std::ptr::null(),
                soname: None,
                relocations: [(std::ptr::null(), 0); 2],
                hashes: std::ptr::null(),
            };
            let dynamic = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC)?;
            object.dynamic = (base + dynamic.p_vaddr) as usize;
            let mut entry = object.dynamic as *const (u64, u64);
            while let (tag @ 1.., value) = *entry {
                match tag {
                    SYMBOLS => object.symbols = at(value) as *const _,
                    NAMES => object.names = at(value) as *const _,
                    SONAME => object.soname = Some(value as usize),
                    RELOCATIONS => object.relocations[0].0 = at(value) as *const _,
                    RELOCATIONS_SIZE => object.relocations[0].1 = value as usize,
                    JUMPS => object.relocations[1].0 = at(value) as *const _,
                    JUMPS_SIZE => object.relocations[1].1 = value as usize,
                    GNU_HASH => object.hashes = at(value) as *const _,
                    _ => {}
                }
                entry = entry.add(1);
            }
            (!object.symbols.is_null() && !object.names.is_null()).then_some(object)
        }
    }

    /// Whether this is one of libc's own objects, or the kernel's.
    pub(super) fn is_libcs(&self) -> bool {
        self.soname.is_some_and(|soname| {
            let name = self.text(soname).to_bytes();
            LIBC.iter().any(|own| name.starts_with(own))
        })
    }

    /// The values of these tags in its dynamic section.
    fn values(&self, tags: &'static [u64]) -> impl Iterator<Item = u64> {
        let mut entry = self.dynamic as *const (u64, u64);
        let entries = std::iter::from_fn(move || {
            // SAFETY: the section ends with a zero tag.
            let (tag, value) = unsafe { *entry };
            entry = entry.wrapping_add(1);
            (tag != 0).then_some((tag, value))
        });
        entries
            .filter(|(tag, _)| tags.contains(tag))
            .map(|(_, value)| value)
    }

    /// The names of the objects that it needs.
    pub(super) fn needed(&self) -> impl Iterator<Item = &CStr> {
        const NEEDED: u64 = 1;
        self.values(&[NEEDED]).map(|at| self.text(at as usize))
    }

    /// Whether another object can need it by this name.
    pub(super) fn is_called(&self, name: &CStr) -> bool {
        let path = match self.path.is_null() {
            true => &[],
            // SAFETY: the loader's text.
            false => unsafe { CStr::from_ptr(self.path) }.to_bytes(),
        };
        let file = path.rsplit(|&byte| byte == b'/').next();
        self.soname.is_some_and(|at| self.text(at) == name)
            || path == name.to_bytes()
            || file == Some(name.to_bytes())
    }

    /// Whether it says where what it needs or opens is to be looked for.
    pub(super) fn has_search_path(&self) -> bool {
        const RPATH: u64 = 15;
        const RUNPATH: u64 = 29;
        self.values(&[RPATH, RUNPATH]).next().is_some()
    }

    fn text(&self, at: usize) -> &CStr {
        // SAFETY: names in the table of a mapped object end with a zero.
        unsafe { CStr::from_ptr(self.names.add(at)) }
    }

    /// What the object refers to, or defines.
    fn symbol(&self, index: usize) -> &libc::Elf64_Sym {
        // SAFETY: the caller has the index from a table of the object.
        unsafe { &*self.symbols.add(index) }
    }

    /// The name of a symbol.
    pub(super) fn name(&self, symbol: usize) -> &CStr {
        self.text(self.symbol(symbol).st_name as usize)
    }

    /// Whether the object only refers to this symbol, and defines it not.
    pub(super) fn is_undefined(&self, symbol: usize) -> bool {
        self.symbol(symbol).st_shndx == 0
    }

    /// Its relocations.
    pub(super) fn relocations(&self) -> impl Iterator<Item = &Relocation> {
        let tables = self.relocations.iter().filter(|table| !table.0.is_null());
        // SAFETY: tables of a mapped object.
        tables.flat_map(|&(first, bytes)| unsafe {
            std::slice::from_raw_parts(first, bytes / size_of::<Relocation>())
        })
    }

    /// The addresses of a segment.
    fn addresses(&self, header: &libc::Elf64_Phdr) -> Range<usize> {
        let from = self.base + header.p_vaddr as usize;
        from..from + header.p_memsz as usize
    }

    fn lies(&self, kind: u32, flags: u32, address: usize) -> bool {
        self.headers.iter().any(|header| {
            header.p_type == kind
                && header.p_flags & flags == flags
                && self.addresses(header).contains(&address)
        })
    }

    /// Whether an address lies in the object.
    pub(super) fn has(&self, address: usize) -> bool {
        self.lies(libc::PT_LOAD, 0, address)
    }

    /// Whether the object is mapped to be written at an address, once the loader is through with it or until then.
    pub(super) fn is_data(&self, address: usize) -> bool {
        self.lies(libc::PT_LOAD, libc::PF_W, address)
    }

    /// Whether the loader has made an address of its data read-only when it was through with it: it does so for whole pages.
    pub(super) fn is_read_only(&self, address: usize) -> bool {
        let relro = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_GNU_RELRO;
        self.headers.iter().filter(relro).any(|header| {
            let part = self.addresses(header);
            (page_of(part.start)..page_of(part.end)).contains(&address)
        })
    }

    /// The address of a function that the object defines, by the table of its hashes (`DT_GNU_HASH`: four words, a
    /// filter, buckets, and for each bucket a chain whose last hash is odd).
    pub(super) fn function(&self, name: &CStr) -> Option<usize> {
        if self.hashes.is_null() {
            return None;
        }
        let hash = name.to_bytes().iter().fold(5381u32, |hash, &byte| {
            hash.wrapping_mul(33).wrapping_add(byte.into())
        });
        // SAFETY: tables of a mapped object.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|i| *self.hashes.add(i));
            let heads = self.hashes.add(4 + 2 * filter as usize);
            let chains = heads.add(buckets as usize);
            let mut symbol = match buckets {
                0 => 0,
                n => *heads.add((hash % n) as usize),
            };
            while symbol >= first && symbol != 0 {
                let other = *chains.add((symbol - first) as usize);
                let index = symbol as usize;
                if other | 1 == hash | 1 && self.name(index) == name && !self.is_undefined(index) {
                    return Some(self.base + self.symbol(index).st_value as usize);
                }
                if other & 1 != 0 {
                    return None;
                }
                symbol += 1;
            }
        }
        None
    }
}

/// Where the page of an address begins.
pub(super) fn page_of(address: usize) -> usize {
    // SAFETY: takes no memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    address & !(size - 1)
}

/// Visits each object of the process that has symbols, until `visit` says that this is enough. The loader's lock is
/// held: `visit` may not call the loader.
pub(super) fn each(mut visit: impl FnMut(&Object<'_>) -> bool) {
    /// # Safety
    /// Called by `dl_iterate_phdr`, with a `V` as `visit`.
    unsafe extern "C" fn look<V: FnMut(&Object<'_>) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            let visit = &mut *visit.cast::<V>();
            c_int::from(Object::of(&*info).is_some_and(|object| visit(&object)))
        }
    }
    fn address_of<V: FnMut(&Object<'_>) -> bool>(
        _: &V,
    ) -> unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int {
        look::<V>
    }
    let look = address_of(&visit);
    // SAFETY: the callback gets what it expects, and keeps to what the loader hands it.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut visit).cast()) };
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn an_object_tells_where_its_functions_are() {
        let mut found = None;
        each(|object| {
            if object.is_libcs() {
                found = found.or(object.function(c"getppid"));
                assert_eq!(object.function(c"no_such_function_at_all"), None);
            }
            false
        });
        assert_eq!(found, Some(libc::getppid as *const () as usize));
    }

    #[test]
    fn a_visit_ends_where_it_is_enough() {
        let mut visits = 0;
        each(|_| {
            visits += 1;
            true
        });
        assert_eq!(visits, 1);
    }
}
