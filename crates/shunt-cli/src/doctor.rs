//! `shunt doctor`: whether Shunt can work here and, if not, what to do.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use rustix::thread::MembarrierQuery;
use serde::Serialize;

use crate::control::Control;
use crate::{elf, locate};

/// What a check found: a detail, or what is wrong and what to do.
type Found = Result<String, (String, &'static str)>;

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
    advice: Option<&'static str>,
}

/// Runs every check; the exit status is 1 if one failed.
pub(crate) fn doctor(json: bool) -> Result<ExitCode> {
    let checks: Vec<_> = [
        ("shuntd", daemon as fn() -> Found),
        ("library", library),
        ("membarrier", membarrier),
        ("sealed memory", seals),
        ("pidfd_getfd", pidfd_getfd),
    ]
    .into_iter()
    .map(|(name, check)| match check() {
        Ok(detail) => Check {
            name,
            ok: true,
            detail,
            advice: None,
        },
        Err((detail, advice)) => Check {
            name,
            ok: false,
            detail,
            advice: Some(advice),
        },
    })
    .collect();
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
            if let Some(advice) = check.advice {
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

fn daemon() -> Found {
    let daemons = Control::all();
    if daemons.is_empty() {
        let advice =
            "`shunt run -- CMD` starts one; to see it fail, run `shuntd --verbose` by hand";
        return Err(("no daemon answers".into(), advice));
    }
    let mut lines = Vec::new();
    for daemon in daemons {
        let advice = "stop it; the next `shunt run` starts this version's";
        daemon
            .greet("shunt-doctor")
            .map_err(|error| (format!("{error:#}"), advice))?;
        let serves = if daemon.host { "the host" } else { "this user" };
        lines.push(format!(
            "pid {} serves {serves}, protocol {}",
            daemon.pid,
            shunt_abi::PROTOCOL
        ));
    }
    Ok(lines.join("; "))
}

/// The library must load nothing that its host program does not have anyway.
fn library() -> Found {
    let advice = "install libshunt.so beside shunt or in ../lib, or set SHUNT_LIB";
    let file = locate::library().ok_or(("libshunt.so not found".into(), advice))?;
    let bytes =
        std::fs::read(&file).map_err(|error| (format!("{}: {error}", file.display()), advice))?;
    let advice = "reinstall Shunt: this file is not a complete build";
    let Some(elf) = elf::parse(&bytes).filter(|elf| elf.machine == elf::MACHINE) else {
        return Err((
            format!("{} is not a library for this machine", file.display()),
            advice,
        ));
    };
    let light = |name: &String| name.starts_with("libc.so.") || name.starts_with("ld-linux");
    if let Some(heavy) = elf.needed.iter().find(|name| !light(name)) {
        return Err((format!("{} needs {heavy}", file.display()), advice));
    }
    Ok(format!(
        "{} needs {}",
        file.display(),
        elf.needed.join(", ")
    ))
}

fn membarrier() -> Found {
    let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
    if rustix::thread::membarrier_query().contains(needed) {
        return Ok("global expedited barriers".into());
    }
    let advice = "Linux 4.16 or later, and a seccomp filter that allows membarrier";
    Err((
        "the kernel refuses membarrier(GLOBAL_EXPEDITED)".into(),
        advice,
    ))
}

fn seals() -> Found {
    let advice = "Linux 5.1 or later, and a seccomp filter that allows memfd_create";
    let failed = |error: rustix::io::Errno| (format!("memfd: {error}"), advice);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("shunt-doctor", flags).map_err(failed)?;
    rustix::fs::ftruncate(&file, 4096).map_err(failed)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
    if rustix::io::write(&file, b"x").is_ok() || rustix::fs::ftruncate(&file, 1).is_ok() {
        return Err(("a sealed memfd can still be changed".into(), advice));
    }
    Ok("memfd seals hold".into())
}

/// How shuntd verifies that a process holds the socket that it claims.
fn pidfd_getfd() -> Found {
    let advice = "a seccomp filter must allow pidfd_open and pidfd_getfd (Linux 5.6)";
    let own = rustix::process::getpid();
    let copied = rustix::process::pidfd_open(own, PidfdFlags::empty())
        .and_then(|own| rustix::process::pidfd_getfd(own, 1, PidfdGetfdFlags::empty()));
    if let Err(error) = copied {
        return Err((format!("the kernel refuses it: {error}"), advice));
    }
    // We may copy from ourselves whatever Yama says; shuntd is not our parent.
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    Ok(match scope.trim() {
        "" | "0" => "allowed".into(),
        _ if Control::connect(true).is_some() => {
            "Yama restricts it, which does not bind root's daemon".into()
        }
        scope => format!("Yama (ptrace_scope {scope}) restricts it: shuntd asks sock_diag instead"),
    })
}
