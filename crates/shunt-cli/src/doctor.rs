//! `shunt doctor`: whether Shunt can work here and, if not, what to do.

pub(crate) mod daemon;
mod limits;
mod namespace;
mod policy;
mod program;
mod rdma;

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write;
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use anyhow::Result;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use rustix::thread::MembarrierQuery;
use serde::Serialize;

use crate::control::Control;
use crate::library::{self, Fault};
use crate::run::filter;
use crate::{elf, sys};

/// What a check found: a detail, which also says what Shunt has to do without, or what
/// is wrong and what to do.
type Found = Result<String, Fault>;

#[derive(Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
    /// What to do, if it failed.
    advice: Option<Cow<'static, str>>,
}

impl Check {
    fn of(name: &'static str, found: Found) -> Self {
        let (ok, detail, advice) = match found {
            Ok(detail) => (true, detail, None),
            Err(fault) => (false, fault.what, Some(fault.advice)),
        };
        Self {
            name,
            ok,
            detail,
            advice,
        }
    }
}

/// Runs every check, also those of a program if one is named; the exit status is 1 if one failed.
pub(crate) fn doctor(program: &[OsString], json: bool) -> Result<ExitCode> {
    // A limit that is too small is an error to report, not the end.
    sys::ignore_file_size_signal();
    let filter =
        filter::deadly_call().map_or(Ok("none ends its caller".into()), |call| Err(deadly(call)));
    let is_deadly = filter.is_err();
    let pid = program::pid(program);
    // With each, whether it makes none of the calls for which a filter may end this process.
    let checks: [(_, &dyn Fn() -> Found, _); 11] = [
        ("shuntd", &daemon::check, false),
        ("library", &library, true),
        ("kernel", &kernel, true),
        ("membarrier", &membarrier, false),
        ("sealed memory", &seals, false),
        ("pidfd_getfd", &pidfd_getfd, false),
        ("limits", &|| limits::check(pid), true),
        (
            "namespace",
            &|| namespace::check(pid.filter(|_| !is_deadly)),
            true,
        ),
        ("policy", &|| policy::check(program), false),
        ("rdma", &rdma::devices, true),
        ("hosts", &rdma::hosts, false),
    ];
    let safe = checks
        .into_iter()
        .filter(|(.., is_safe)| *is_safe || !is_deadly);
    let mut checks = vec![Check::of("system calls", filter)];
    checks.extend(safe.map(|(name, check, _)| Check::of(name, check())));
    if !is_deadly {
        let of_program = program::check(program).into_iter();
        checks.extend(of_program.map(|found| Check::of("program", found)));
    }
    let report = Report {
        ok: checks.iter().all(|check| check.ok),
        checks,
    };
    if json {
        crate::print_json(&report)?;
    } else {
        let mut text = String::new();
        for check in &report.checks {
            let verdict = if check.ok { "ok" } else { "FAIL" };
            writeln!(text, "{verdict:<5} {:<14} {}", check.name, check.detail)?;
            if let Some(advice) = &check.advice {
                writeln!(text, "      {:<14} -> {advice}", "")?;
            }
        }
        crate::print(&text)?;
    }
    Ok(if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A seccomp filter ends whoever makes this call, which libshunt needs.
fn deadly(call: &str) -> Fault {
    Fault::new(
        format!(
            "a filter of system calls (seccomp) ends whoever calls {call}, which Shunt needs: what is started from \
             here runs without Shunt, on plain TCP"
        ),
        format!(
            "let the filter (of a container or a service) allow {call}; doctor tries no such call until then"
        ),
    )
}

/// The library must load nothing that its host program does not have anyway.
fn library() -> Found {
    let file = library::find()?;
    let name = file.display();
    let bytes = std::fs::read(&file).map_err(|error| {
        let advice = "let its user read it, or set SHUNT_LIB to another copy";
        Fault::new(format!("{name}: {error}"), advice)
    })?;
    let needed = elf::parse(&bytes).map(|elf| elf.needed).unwrap_or_default();
    let light = |name: &String| name.starts_with("libc.so.") || name.starts_with("ld-linux");
    if let Some(heavy) = needed.iter().find(|name| !light(name)) {
        let advice = "install all parts of Shunt anew: this file is not a complete build";
        return Err(Fault::new(format!("{name} needs {heavy}"), advice));
    }
    let reduced = library::closed_at(&file).map(|closed| {
        let closed = closed.display();
        format!("; reduced: {closed} is closed to other users, whose programs use plain TCP")
    });
    let needed = needed.join(", ");
    Ok(format!(
        "{name} needs {needed}{}",
        reduced.unwrap_or_default()
    ))
}

/// What the other checks try is what counts; the release helps whoever reads a report.
fn kernel() -> Found {
    let about = rustix::system::uname();
    let release = about.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0_u32);
    let version = (next(), next());
    if version < (5, 6) {
        return Err(Fault::new(
            format!("Linux {release}"),
            "use Linux 5.6 or later",
        ));
    }
    Ok(format!("Linux {release}"))
}

fn membarrier() -> Found {
    let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
    if rustix::thread::membarrier_query().contains(needed) {
        return Ok("global expedited barriers".into());
    }
    Err(Fault::new(
        "the kernel refuses membarrier(GLOBAL_EXPEDITED)",
        "use Linux 4.16 or later, and a seccomp filter (of a container) that allows membarrier",
    ))
}

fn seals() -> Found {
    let advice =
        "use Linux 5.1 or later, and a seccomp filter (of a container) that allows memfd_create";
    let failed = |error: rustix::io::Errno| Fault::new(format!("sealed memfd: {error}"), advice);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("shunt-doctor", flags).map_err(failed)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
    if rustix::io::write(&file, b"x").is_ok() || rustix::fs::ftruncate(&file, 1).is_ok() {
        return Err(Fault::new("a sealed memfd can still be changed", advice));
    }
    Ok("memfd seals hold".into())
}

/// How shuntd verifies that a process holds the socket that it claims. A child asks for
/// a descriptor of ours: like shuntd, it is no ancestor of the process that it asks.
fn pidfd_getfd() -> Found {
    let advice = "use Linux 5.6 or later, and a seccomp filter (of a container) that allows \
                  pidfd_open and pidfd_getfd";
    let failed = |error: rustix::io::Errno| Fault::new(format!("cannot be tried: {error}"), advice);
    let mine = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map_err(failed)?;
    let number = mine.as_raw_fd();
    let own = rustix::process::getpid();
    let copy = move || {
        let own = rustix::process::pidfd_open(own, PidfdFlags::empty())?;
        rustix::process::pidfd_getfd(own, number, PidfdGetfdFlags::empty())?;
        Ok(())
    };
    let Err(error) = sys::in_child(copy) else {
        return Ok("allowed".into());
    };
    if Control::connect(true).is_some() {
        return Ok(format!("{error}, which does not bind root's shuntd"));
    }
    // shuntd's second way, by `sock_diag(7)`.
    let kind = SocketType::DGRAM;
    rustix::net::socket_with(
        AddressFamily::NETLINK,
        kind,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .map_err(|_| Fault::new(format!("{error}, and sock_diag(7) is refused, too"), advice))?;
    let why = if error.raw_os_error() == Some(libc::EPERM) && is_restricted() {
        "Yama (kernel.yama.ptrace_scope) refuses it".into()
    } else {
        error.to_string()
    };
    Ok(format!(
        "{why}; reduced: shuntd asks sock_diag(7), which tells the user, not the process"
    ))
}

/// Whether only an ancestor may look into a process of the same user.
fn is_restricted() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .is_ok_and(|scope| scope.trim() != "0")
}
