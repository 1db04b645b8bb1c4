//! C programs behave the same with and without the library.

mod common;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use common::{build, build_as, same};

fn compare(name: &str, arguments: &[&str]) -> String {
    let mut command = vec![];
    let program = build(name, &["-O1"]);
    command.push(program.to_str().expect("a plain path"));
    command.extend(arguments);
    same(&command)
}

#[test]
fn calls_by_name() {
    compare("calls", &[]);
}

#[test]
fn calls_by_number() {
    let output = compare("numbers", &[]);
    assert!(
        output.contains("by number"),
        "the last call is an exec: {output}"
    );
}

#[test]
fn forks_and_execs() {
    let output = compare("processes", &[]);
    assert!(output.contains("\nend\n"), "{output}");
}

#[test]
fn threads_are_cancelled() {
    let output = compare("cancel", &[]);
    assert!(!output.contains("returned"), "every call blocks: {output}");
}

#[test]
fn signals_and_exits() {
    let program = build("signals", &["-O1"]);
    let program = program.to_str().expect("a plain path");
    for road in ["return", "exit", "_exit", "quick", "pipe"] {
        same(&[program, road]);
    }
}

#[test]
fn handlers_are_the_programs_own() {
    let output = compare("handlers", &[]);
    assert!(output.contains("storm is over"), "{output}");
}

#[test]
fn a_program_without_connections_pays_for_no_guard() {
    let output = compare("guards", &[]);
    assert!(output.contains("is_guarded() = 0"), "{output}");
}

#[test]
fn overflows_are_fortified() {
    let program = build(
        "fortify",
        &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"],
    );
    let program = program.to_str().expect("a plain path");
    same(&[program]);
    for overflow in ["read", "v", "f", "poll", "P"] {
        let output = same(&[program, overflow]);
        assert!(
            output.contains("buffer overflow detected"),
            "{overflow}: {output}"
        );
    }
}

#[test]
fn programs_are_started_by_what_a_newer_libc_has() {
    let newer = build("newer", &["-O1", "-shared", "-fPIC"]);
    let program = build("spawned", &["-O1"]);
    let program = program.to_str().expect("a plain path");
    let library = common::library().display().to_string();
    let said = |preload: &str| {
        let output = common::run(Some(preload), &[program]);
        assert!(output.status.success(), "{preload}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let started = "pidfd_spawn 0, ended with 4\npidfd_spawnp 0, ended with 4\n";
    assert_eq!(said(&format!("{library}:{}", newer.display())), started);
    // An older one has none.
    let refused = "pidfd_spawn 38, errno 7\npidfd_spawnp 38, errno 7\n";
    assert!([started, refused].contains(&said(&library).as_str()));
}

#[test]
fn an_allocator_calls_before_anything_is_ready() {
    let allocator = build("allocator", &["-O1", "-shared", "-fPIC", "-fno-builtin"]);
    let library = common::library();
    let program = build("allocated", &["-O1"]);
    let program = program.to_str().expect("a plain path");
    for order in [[library, &allocator], [&allocator, library]] {
        let preload = order.map(|path| path.display().to_string()).join(":");
        let output = common::run(Some(&preload), &[program]);
        assert!(
            output.status.success() && output.stdout == b"fine\n",
            "{preload}: {output:?}"
        );
    }
}

#[test]
fn a_module_calls_what_it_would_call_without_the_library() {
    let module = |result, more: &[&str]| {
        let flags = [&["-O1", "-shared", "-fPIC"], more].concat();
        build_as(result, "module", &flags).display().to_string()
    };
    let instead = module("libinstead.so", &["-DINSTEAD"]);
    let folder = Path::new(&instead).parent().expect("a folder");
    let needs = ["-Wl,-z,lazy", "-Wl,--no-as-needed", &instead];
    let program = build("opens", &["-O1"]).display().to_string();
    let command = [
        program.as_str(),
        &module("module.usual", &["-Wl,-z,lazy"]),
        &module("module.lazy", &["-Wl,-z,lazy"]),
        &module("module.now", &["-Wl,-z,relro,-z,now"]),
        &module("module.needs", &needs),
    ];
    let run = |preload: &str, command: &[&str]| {
        let output = common::run(Some(preload), command);
        assert!(output.status.success(), "{preload}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let native = run(&instead, &command);
    // The one that was opened as usual calls what was preloaded in front of libc; the last one what it needs.
    let calls = "1: 77 1000\n2: -1 1000\n3: -1 1000\n4: 77 1000\n";
    assert!(native.contains(calls), "{native}");
    let library = common::library().display().to_string();
    assert_eq!(run(&format!("{instead}:{library}"), &command), native);
    same(&command);
    // What they take from libc comes from the library, by whichever name they were opened.
    let by_name = format!("LD_LIBRARY_PATH={}", folder.display());
    let where_from = [
        "env",
        &by_name,
        &program,
        "where",
        "module.usual",
        "module.lazy",
        "module.now",
    ];
    let libc = run("", &where_from);
    assert_eq!(libc.matches("libc.so.6").count(), 9, "{libc}");
    let ours = run(&library, &where_from);
    assert_eq!(ours, libc.replace("libc.so.6", "libshunt.so"));
}

#[test]
fn io_uring_is_there_unless_its_user_denies_it() {
    let program = build("rings", &["-O1"]);
    let library = common::library();
    let answer = |denied: bool| {
        let mut command = std::process::Command::new(&program);
        command.env("LD_PRELOAD", library);
        if denied {
            command.env("SHUNT_IO_URING", "deny");
        }
        let output = command.output().expect("the program runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(answer(true), "Function not implemented\n");
    // The kernel's own answer, whichever that is.
    let native = std::process::Command::new(&program)
        .output()
        .expect("the program runs");
    assert_eq!(answer(false).as_bytes(), native.stdout);
}

#[test]
fn a_few_sockets_cost_little_memory() {
    let program = build("footprint", &["-O1"]);
    let program = program.to_str().expect("a plain path");
    for words in [&[program][..], &[program, "locked"]] {
        let output = common::run(common::library().to_str(), words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let grown: Vec<u32> = text
            .split_whitespace()
            .map(|kib| kib.parse().expect("a number"))
            .collect();
        assert!(output.status.success(), "{output:?}");
        assert!(
            grown.len() == 2 && grown.iter().all(|&kib| kib <= 1024),
            "{text}"
        );
    }
}

#[test]
fn a_parent_and_its_child_count_what_each_has_moved() {
    let program = build("counts", &["-O1"]);
    let file = program.with_extension("stats");
    let environment = format!("SHUNT_STATS={}", file.display());
    let program = program.to_str().expect("a plain path");
    // Where the child's counters cannot have the places of its parent's, too.
    for words in [&[program][..], &[program, "refused"]] {
        let _ = std::fs::remove_file(&file);
        let command = [&["env", &environment], words].concat();
        let output = common::run(common::library().to_str(), &command);
        assert!(output.status.success(), "{words:?}: {output:?}");
        let pids = String::from_utf8(output.stdout).expect("text");
        let lines = std::fs::read_to_string(&file).expect("statistics");
        let (parent, child) = pids.trim().split_once(' ').expect("two processes");
        // What the child has moved, the kernel says of the parent's connection, too.
        for (pid, total, bytes, calls) in [(parent, 1200, 1230, 2404), (child, 0, 20, 4)] {
            let line = lines
                .lines()
                .find(|line| line.starts_with(&format!("{{\"pid\":{pid},")))
                .unwrap_or_else(|| panic!("{words:?}: no line of {pid}: {lines}"));
            for part in [
                format!("\"total\":{total},"),
                format!("\"tx\":{{\"ring_bytes\":0,\"kernel_bytes\":{bytes}}}"),
                format!("\"rx\":{{\"ring_bytes\":0,\"kernel_bytes\":{bytes}}}"),
                format!("\"calls\":{{\"user\":0,\"kernel\":{calls}}}"),
            ] {
                assert!(line.contains(&part), "{words:?}: no {part} in {line}");
            }
        }
        assert_eq!(lines.lines().count(), 2, "{lines}");
    }
}

/// For two tests, so it is built once.
static ADDRESSES: LazyLock<PathBuf> = LazyLock::new(|| build("addresses", &["-O1"]));

#[test]
fn addresses_are_read_with_care() {
    // Who pairs at once looks at them before the kernel does.
    let program = ADDRESSES.to_str().expect("a plain path");
    same(&["env", "SHUNT_UPGRADE=eager", program]);
}

#[test]
fn a_tool_that_stands_in_for_the_kernel_finds_nothing_to_say() {
    let valgrind = std::process::Command::new("valgrind")
        .arg("--version")
        .output();
    if !valgrind.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    let program = ADDRESSES.to_str().expect("a plain path");
    let valgrind = ["valgrind", "--quiet", "--tool=none", program];
    same(&[&["env", "SHUNT_UPGRADE=eager"], &valgrind[..]].concat());
}
