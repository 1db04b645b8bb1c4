//! Copies of every size, and copies that fault.

use std::ptr;

use super::{copy, fix_up, is_readable, is_writable, put_pair};
use crate::atomic::{AtomicU64, Ordering};
use crate::ring::{Consumer, Found, Memory, Producer, Stopped, begin};
use crate::slot::{Output, Progress, Receiving, Sending};

const PAGE: usize = 4096;

extern "C" fn on_fault(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a handler the context of the thread, as a `ucontext_t`.
    let pc = unsafe {
        &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize]
    };
    match fix_up(*pc as usize) {
        Some(go_on) => *pc = go_on as i64,
        // SAFETY: ends the process.
        None => unsafe { libc::abort() },
    }
}

fn honour_fix_ups() {
    // SAFETY: a valid action, and a handler that calls nothing else.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
    }
}

/// An address at which mapped memory ends; the `pages` pages before it are mapped.
fn edge(pages: usize) -> *mut u8 {
    let (read_write, private) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: new memory, of which the last page is taken away again.
    unsafe {
        let memory = libc::mmap(
            ptr::null_mut(),
            (pages + 1) * PAGE,
            read_write,
            private,
            -1,
            0,
        )
        .cast::<u8>();
        let edge = memory.add(pages * PAGE);
        libc::mprotect(edge.cast(), PAGE, libc::PROT_NONE);
        edge
    }
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn copies_every_size_and_nothing_beside_it() {
    let source = pattern(9000);
    for n in (0..700).chain([1023, 1024, 2047, 3071, 3072, 3073, 4096, 8000]) {
        for (from, to) in [(0, 0), (1, 8), (8, 3), (5, 16)] {
            let mut target = vec![0xee; n + 100];
            let (target_at, source_at) = (target.as_mut_ptr(), source.as_ptr());
            // SAFETY: both buffers reach beyond offset and length.
            let missing = unsafe { copy(target_at.add(to), source_at.add(from), n) };
            assert_eq!(missing, 0);
            assert_eq!(
                &target[to..to + n],
                &source[from..from + n],
                "{n} bytes from {from} to {to}"
            );
            assert!(
                target[..to]
                    .iter()
                    .chain(&target[to + n..])
                    .all(|&b| b == 0xee),
                "{n} bytes spill"
            );
        }
    }
}

#[test]
fn a_fault_ends_a_copy() {
    honour_fix_ups();
    let edge = edge(3);
    let good = pattern(3 * PAGE);
    let mut target = vec![0; 3 * PAGE];
    for n in (1..300).chain([1000, 3071, 3072, 5000, 3 * PAGE]) {
        for there in [0, 1, n / 2, n - 1] {
            // SAFETY: `there` bytes before the edge are there, and a fault is fixed up.
            let (read, written) = unsafe {
                (
                    copy(target.as_mut_ptr(), edge.sub(there), n),
                    copy(edge.sub(there), good.as_ptr(), n),
                )
            };
            for missing in [read, written] {
                assert!(
                    (n - there..=n).contains(&missing),
                    "{missing} of {n} missing, {there} there"
                );
            }
        }
    }
}

/// Lets nobody write to the last page before an edge.
fn make_read_only(edge: *mut u8) {
    // SAFETY: memory of a test's own.
    let done = unsafe { libc::mprotect(edge.sub(PAGE).cast(), PAGE, libc::PROT_READ) };
    assert_eq!(done, 0);
}

#[test]
fn memory_can_be_read_if_each_page_of_it_can() {
    honour_fix_ups();
    let edge = edge(4);
    assert!(is_readable(edge, 0) && !is_readable(edge, 1));
    for there in [1, 7, PAGE, PAGE + 1, 3 * PAGE] {
        let at = edge.wrapping_sub(there);
        assert!(is_readable(at, there) && !is_readable(at, there + 1));
    }
    // A hole in the middle.
    let hole = edge.wrapping_sub(2 * PAGE);
    // SAFETY: memory of this test's own.
    assert_eq!(unsafe { libc::munmap(hole.cast(), PAGE) }, 0);
    assert!(!is_readable(edge.wrapping_sub(3 * PAGE), 3 * PAGE));
}

#[test]
fn a_byte_can_be_written_where_writing_is_allowed() {
    honour_fix_ups();
    let edge = edge(2);
    make_read_only(edge);
    let before = edge.wrapping_sub(PAGE + 1);
    // SAFETY: nobody else has this memory.
    unsafe {
        before.write(7);
        assert!(is_writable(before) && before.read() == 7);
        assert!(!is_writable(edge.sub(PAGE)) && !is_writable(edge));
    }
}

#[test]
fn a_pair_is_stored_where_both_of_it_fit() {
    honour_fix_ups();
    let edge = edge(2);
    make_read_only(edge);
    let end = edge.wrapping_sub(PAGE);
    // SAFETY: nobody else has this memory.
    unsafe {
        let at = end.sub(12);
        assert!(put_pair(at, 5, 1 << 40 | 9));
        assert_eq!(at.cast::<u32>().read_unaligned(), 5);
        assert_eq!(at.add(4).cast::<u64>().read_unaligned(), 1 << 40 | 9);
        for short in [0, 1, 4, 11] {
            assert!(!put_pair(end.sub(short), 1, 2));
        }
        assert!(!put_pair(ptr::null_mut(), 1, 2));
    }
}

#[test]
fn nothing_else_is_fixed_up() {
    assert_eq!(fix_up(0), None);
    assert_eq!(fix_up(a_fault_ends_a_copy as *const () as usize), None);
}

#[test]
fn a_bad_buffer_leaves_the_stream_whole() {
    honour_fix_ups();
    let words: Vec<AtomicU64> = (0..1 << 15).map(|_| AtomicU64::new(0)).collect();
    let (sending, output, receiving, progress) = (
        Sending::default(),
        Output::default(),
        Receiving::default(),
        Progress::default(),
    );
    // SAFETY: the vector outlives the test's use.
    let memory = unsafe { Memory::new(words.as_ptr(), words.len() as u32 * 8) };
    begin(memory, &sending);
    sending.check.store(crate::ring::SMALL, Ordering::Relaxed);
    let producer = Producer {
        memory,
        sending: &sending,
        output: &output,
        peer: &progress,
        populate: |_: usize| true,
    };
    let consumer = Consumer {
        memory,
        receiving: &receiving,
        progress: &progress,
    };
    let edge = edge(6);
    let bytes = pattern(6 * PAGE);
    // SAFETY: what is not there is fixed up.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), edge.sub(6 * PAGE), 6 * PAGE);
        // A small one publishes nothing; of a large one the whole steps.
        assert_eq!(producer.write(edge.sub(10), 20), Err(Stopped::BadBuffer(0)));
        assert_eq!(consumer.read(ptr::null_mut(), 20, true), Ok(Found::Empty));
        assert_eq!(
            producer.write(edge.sub(6 * PAGE), 8 * PAGE),
            Err(Stopped::BadBuffer(4 * PAGE))
        );
        assert_eq!(producer.write(edge.sub(2 * PAGE), PAGE), Ok(PAGE));

        let mut target = vec![0u8; 6 * PAGE];
        assert_eq!(
            consumer.read(target.as_mut_ptr(), 100, false),
            Ok(Found::Bytes(100))
        );
        // Of the first frame not all fits: it stays. Both in two parts: likewise.
        let (small, most) = (edge.sub(PAGE), 5 * PAGE);
        assert_eq!(
            consumer.read(small, most, false),
            Err(Stopped::BadBuffer(0))
        );
        assert_eq!(
            consumer.read_parts([(target.as_mut_ptr(), 50), (small, most)], true),
            Err(Stopped::BadBuffer(0))
        );
        // The first frame fits, the second does not.
        let room = 4 * PAGE - 100 + 50;
        assert_eq!(
            consumer.read(edge.sub(room), most, false),
            Ok(Found::Bytes(4 * PAGE - 100))
        );
        assert_eq!(
            std::slice::from_raw_parts(edge.sub(room), 4 * PAGE - 100),
            &bytes[100..4 * PAGE]
        );
        assert_eq!(
            consumer.read(target.as_mut_ptr(), most, false),
            Ok(Found::Bytes(PAGE))
        );
        assert_eq!(target[..PAGE], bytes[4 * PAGE..5 * PAGE]);
        assert_eq!(progress.bytes.load(Ordering::Relaxed), 5 * PAGE as u64);
    }
}
