use super::*;
use crate::ring::{Memory, Producer};

/// What `test` says (zero: it is right) in a child with this limit.
fn limited(resource: libc::__rlimit_resource_t, bytes: u64, test: impl Fn() -> i32) -> i32 {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: the child makes system calls only; the limit is its own.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::setrlimit(resource, &raw const limit);
            libc::_exit(test());
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status
    }
}

/// The kernel would end a process that makes too large a file.
#[test]
fn a_limit_of_file_sizes_makes_arenas_smaller_or_refuses_them() {
    let bytes = layout::arena_bytes(5) as u64;
    let five = || i32::from(!matches!(Arena::create(16), Ok((arena, _)) if arena.slots() == 5));
    assert_eq!(limited(libc::RLIMIT_FSIZE, bytes, five), 0);
    let none = || i32::from(!matches!(Arena::create(16), Err(Errno::EFBIG)));
    let one = layout::arena_bytes(1) as u64;
    assert_eq!(limited(libc::RLIMIT_FSIZE, one - 1, none), 0);
}

#[test]
fn a_limit_of_addresses_is_left_to_the_program_for_the_most_part() {
    let few = || {
        let Ok((arena, _)) = Arena::create(1024) else {
            return 1;
        };
        let mut all = layout::arena_bytes(arena.slots()) as u64;
        while let Ok((more, _)) = Arena::create(1024) {
            all += layout::arena_bytes(more.slots()) as u64;
        }
        i32::from(arena.slots() < 16 || all > 2_000_000_000 / SHARE)
    };
    assert_eq!(limited(libc::RLIMIT_AS, 2_000_000_000, few), 0);
    let none = || i32::from(!matches!(Arena::create(1), Err(Errno::ENOMEM)));
    assert_eq!(limited(libc::RLIMIT_AS, 40 << 20, none), 0);
}

#[test]
fn a_view_has_the_places_of_an_arena_and_is_written_here() {
    let view = Arena::view(2).unwrap();
    assert_eq!(view.slots(), 2);
    let o = Ordering::SeqCst;
    view.slot(1).face.state.store(7, o);
    assert_eq!(view.slot(1).face.state.load(o), 7);
    assert!(view.populate(1, layout::RING_BYTES));
    // SAFETY: nobody else has it.
    unsafe { view.unmap() };
    let none = || i32::from(!matches!(Arena::view(1), Err(Errno::ENOMEM)));
    assert_eq!(limited(libc::RLIMIT_AS, 40 << 20, none), 0);
}

#[test]
fn a_peer_maps_as_many_slots_as_it_wants_of_a_file_of_the_right_size() {
    let (own, fd) = Arena::create(3).unwrap();
    let (two, three) = (Arena::open(fd, 2).unwrap(), Arena::open(fd, 9).unwrap());
    assert_eq!((own.slots(), two.slots(), three.slots()), (3, 2, 3));
    let (word, o) = (&own.slot(1).face.state, Ordering::SeqCst);
    word.store(7, o);
    assert_eq!(two.slot(1).face.state.load(o), 7);
    assert!(std::panic::catch_unwind(|| two.slot(2)).is_err());
    let odd = syscall_memfd(layout::arena_bytes(3) + 4096);
    assert!(matches!(Arena::open(odd, 9), Err(Errno::EPERM)));
    for arena in [own, two, three] {
        // SAFETY: this test alone has its addresses, and is done with them.
        unsafe { arena.unmap() };
    }
}

#[test]
fn a_ring_takes_memory_when_it_is_used_and_is_empty_in_its_next_life() {
    let (arena, fd) = Arena::create(3).unwrap();
    let blocks = || {
        // SAFETY: a C struct of integers, for which zero is a value; the kernel fills it.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(fd, &raw mut stat), 0);
            stat.st_blocks
        }
    };
    // SAFETY: a ring's bytes, mapped to the end of the test.
    let ring = unsafe { Memory::new(arena.ring(1).cast(), layout::RING_BYTES as u32) };
    let slot = arena.slot(1);
    slot.begin(1, ring);
    let before = blocks();
    slot.begin(2, ring);
    assert_eq!(blocks(), before);
    let producer = Producer {
        memory: ring,
        sending: &slot.sending,
        output: &slot.output,
        peer: &slot.progress,
        populate: |bytes| arena.populate(1, bytes),
    };
    // SAFETY: the source is a string.
    let sent = unsafe { producer.write(b"hello".as_ptr(), 5) };
    assert_eq!(sent, Ok(5));
    assert!(blocks() >= before + 8 && ring.word(0).load(Ordering::Relaxed) != 0);
    slot.begin(3, ring);
    assert_eq!(ring.word(0).load(Ordering::Relaxed), 0);
    // SAFETY: as in the test above.
    unsafe { arena.unmap() };
}

/// Whether the kernel can read there.
fn is_mapped(at: *const u8) -> bool {
    let mut is_core = 0_u8;
    let page = (at as usize) & !4095;
    // SAFETY: asks about one page; the kernel writes one byte.
    unsafe { syscall!(Sysno::mincore, page, 4096, &raw mut is_core) }.is_ok()
}

#[test]
fn a_forked_child_has_only_the_parts_that_are_handed_on() {
    let (arena, _fd) = Arena::create(4).unwrap();
    for part in [Part::Control, Part::Rings(1..3)] {
        assert!(arena.hand_on(&part, true));
    }
    assert!(arena.hand_on(&Part::Rings(2..3), false));
    let has = || {
        let rings = (0..4).map(|slot| is_mapped(arena.ring(slot)));
        let all: Vec<_> = std::iter::once(is_mapped(arena.base))
            .chain(rings)
            .collect();
        i32::from(all != [true, false, true, false, false])
    };
    let huge = libc::RLIM_INFINITY;
    assert_eq!(limited(libc::RLIMIT_CORE, huge, has), 0);
    // SAFETY: nobody looks into that ring but the kernel.
    unsafe { arena.unmap_part(&Part::Rings(3..4)) };
    assert!(!is_mapped(arena.ring(3)) && is_mapped(arena.ring(2)));
}

fn syscall_memfd(bytes: usize) -> i32 {
    // SAFETY: makes a file and seals it.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = syscall!(Sysno::memfd_create, c"odd".as_ptr(), flags).unwrap() as i32;
        syscall!(Sysno::ftruncate, fd, bytes).unwrap();
        let seals = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE;
        syscall!(Sysno::fcntl, fd, F_ADD_SEALS, seals).unwrap();
        fd
    }
}
