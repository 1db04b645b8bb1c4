//! Whether Shunt can do anything for one program, or for a process that runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Found;
use crate::library::{self, Fault};
use crate::process::Process;
use crate::run::chain;
use crate::run::program::{Obstacle, becomes, obstacle};
use crate::ss::table::printable;
use crate::{elf, locate};

/// What is found of what the command line names; nothing if it names nothing.
pub(super) fn check(words: &[OsString]) -> Vec<Found> {
    match words {
        [] => Vec::new(),
        command => pid(words).map_or_else(|| self::command(command), process),
    }
}

/// The process that the command line names.
pub(super) fn pid(words: &[OsString]) -> Option<u32> {
    let [word] = words else { return None };
    word.to_str()?.parse().ok()
}

/// What rules may say of a program.
pub(super) struct Whom {
    pub(super) user: u32,
    pub(super) path: PathBuf,
    pub(super) comm: OsString,
}

/// Whom rules would be about, of what the command line names, if that can be told; without a name if it names nothing.
pub(super) fn whom(words: &[OsString]) -> Option<Whom> {
    let user = rustix::process::geteuid().as_raw();
    if words.is_empty() {
        let (path, comm) = Default::default();
        return Some(Whom { user, path, comm });
    }
    if let Some(pid) = pid(words) {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        return Some(Whom {
            user: directory.metadata().ok()?.uid(),
            path: directory.join("exe").read_link().ok()?,
            comm: Process::look(pid)?.comm.into(),
        });
    }
    let (path, comm) = becomes(&chain::outlook(words, Path::new("")).last?);
    Some(Whom { user, path, comm })
}

/// A process that runs.
fn process(pid: u32) -> Vec<Found> {
    let Some(process) = Process::look(pid) else {
        let advice = "`pgrep -l NAME` finds a process by its name";
        return vec![Err(Fault::new(
            format!("there is no process {pid}"),
            advice,
        ))];
    };
    let name = format!("{} (pid {pid})", printable(&process.comm));
    let finding = process.finding();
    let text = format!("{name} {}", finding.what);
    if !process.is_under_shunt() {
        let advice = finding.advice.unwrap_or_else(|| NOTHING.to_owned());
        return vec![Err(Fault::new(text, advice))];
    }
    let remark = process.remark();
    let reduced = remark.map_or(String::new(), |remark| {
        format!("; reduced: it {}", remark.what)
    });
    vec![Ok(text + &reduced)]
}

const NOTHING: &str = "nothing can be done without another build of the program";

/// A program that is to be started.
fn command(command: &[OsString]) -> Vec<Found> {
    // Without a library its own check has failed; what the programs are does not depend on it.
    let outlook = chain::outlook(command, &library::find().unwrap_or_default());
    if let Some(fault) = outlook.fault {
        return vec![Err(fault)];
    }
    let name = command[0].display();
    let file = locate::program(&command[0]).unwrap_or_default();
    if std::env::var_os("SHUNT_UPGRADE").is_some_and(|mode| mode == "off") {
        let what = format!("SHUNT_UPGRADE=off is set, so {name} will use plain TCP");
        return vec![Err(Fault::new(what, "take that out of the environment"))];
    }
    if let Some(warning) = outlook.warning {
        let default = advice(obstacle(&file));
        let (what, advice) = warning.split_once("; ").unwrap_or((&warning, default));
        return vec![Err(Fault::new(what, advice.to_owned()))];
    }
    let ring = uses_rings(&file).then_some(
        "; reduced: it is linked to liburing, and connections that it uses by io_uring stay on TCP \
         (`shunt run --io-uring=deny` if it can do without)",
    );
    let ring = ring.unwrap_or_default();
    vec![Ok(format!(
        "{} will load libshunt.so{ring}",
        file.display()
    ))]
}

/// What to do about an obstacle in the program's file.
fn advice(obstacle: Option<Obstacle>) -> &'static str {
    match obstacle {
        Some(Obstacle::SetId | Obstacle::Capable) => "start it as the user whose rights it takes",
        _ => NOTHING,
    }
}

/// Whether a program says that it uses io_uring. One that makes the calls itself does not.
fn uses_rings(file: &std::path::Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    let elf = read.ok().and_then(|_| elf::parse(&bytes));
    elf.is_some_and(|elf| elf.needed.iter().any(|name| name.starts_with("liburing")))
}

/// The names of libraries are at the beginning of a file.
const MOST: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn one(words: &[&str]) -> Found {
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        check(&words).pop().unwrap()
    }

    #[test]
    fn ordinary_programs_will_be_shunted_and_those_that_clean_their_environment_not() {
        assert!(check(&[]).is_empty());
        let good = one(&["sh", "-c", "true"]).unwrap();
        assert!(good.ends_with("/sh will load libshunt.so"), "{good}");
        let fault = one(&["env", "-i", "sh"]).unwrap_err();
        assert!(fault.what.contains("cleans its environment"), "{fault}");
        assert!(fault.advice.contains("start the program itself"), "{fault}");
        assert!(one(&["no-such-program"]).is_err());
        for other in ["/", "/etc/passwd"] {
            let fault = one(&[other]).unwrap_err();
            assert!(fault.what.ends_with(" cannot be executed"), "{fault}");
        }
        let [own, build] = [Obstacle::SetId, Obstacle::Static].map(|found| advice(Some(found)));
        assert!(own.contains("as the user whose rights") && build.contains("another build"));
    }

    #[test]
    fn what_does_not_start_is_told_of_as_such_wherever_it_is() {
        let directory = std::env::temp_dir().join(format!("shunt-start-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let file = directory.join(name);
            std::fs::write(&file, bytes).unwrap();
            rustix::fs::chmod(&file, 0o755.into()).unwrap();
            file.display().to_string()
        };
        let script = write("script", b"#!/no/such/interpreter\n");
        let env = write("env", b"#!/usr/bin/env no-such-language\n");
        let own = std::fs::read("/proc/self/exe").unwrap();
        let elf = crate::elf::parse(&own).unwrap();
        let cut = write("cut", &own[..elf.size as usize - 1]);
        let loader = elf.interpreter.unwrap();
        let mut header = own[..64].to_vec();
        header[56..58].fill(0);
        let fixed = write("static", &header);
        let cases: [(&[&str], &str, &str); 12] = [
            (&["/no/such/sudo", "sh"], "sudo is not found", "in PATH"),
            (
                &[&script],
                "interpreter /no/such/interpreter is not found",
                "install that",
            ),
            (
                &[&env],
                "interpreter no-such-language is not found",
                "install that",
            ),
            (
                &["nice", &script],
                "/no/such/interpreter is not found",
                "install that",
            ),
            (
                &["nice", "-n", "5", "no-such"],
                "no-such is not found",
                "in PATH",
            ),
            (
                &["env", "A=b", "/etc/passwd"],
                "cannot be executed",
                "let its file be executed",
            ),
            (&[&cut], "is damaged: its end is missing", "anew"),
            (&[&loader, "sh"], "sh is not found", "give its path"),
            (&[&loader, &cut], "is damaged", "anew"),
            (
                &["ip", "netns", "exec", "name", &fixed],
                "is statically linked",
                "another build",
            ),
            (
                &["unshare", "-n", &fixed],
                "is statically linked",
                "another build",
            ),
            (
                &["setarch", "-R", "no-such"],
                "no-such is not found",
                "in PATH",
            ),
        ];
        for (words, what, todo) in cases {
            let fault = one(words).expect_err(what);
            assert!(
                fault.what.contains(what) && fault.advice.contains(todo),
                "{words:?}: {fault}"
            );
        }
        let good = one(&[&loader, "/bin/sh"]).unwrap();
        assert!(good.ends_with(" will load libshunt.so"), "{good}");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_process_that_has_ended_is_told_of_as_such() {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let left = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), left).unwrap();
        let fault = one(&[&child.id().to_string()]).unwrap_err();
        child.wait().unwrap();
        assert!(fault.what.contains(" has ended"), "{fault}");
        assert!(!fault.advice.contains("shunt run"), "{fault}");
    }

    #[test]
    fn a_process_is_named_by_its_number() {
        let own = std::process::id().to_string();
        let fault = one(&[&own]).unwrap_err();
        assert!(fault.what.ends_with("does not run under Shunt"), "{fault}");
        assert!(one(&["0"]).unwrap_err().what.contains("no process 0"));
    }
}
