//! What a command line is going to run, as far as it tells: programs that run another
//! one in their place (`nice`, `env`), and those that let it have no environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::program::{self, Look, Obstacle};
use super::starter;
use crate::library::{self, Fault};
use crate::locate;

/// What its user should know of a command line.
#[derive(Debug, Default)]
pub(crate) struct Outlook {
    /// Why Shunt can do nothing, or not for all.
    pub(crate) warning: Option<String>,
    /// A program of it would not start with libshunt.
    pub(crate) refuses: bool,
    /// Why a program of it does not start at all.
    pub(crate) fault: Option<Fault>,
    /// The file of the last program of it that is executed.
    pub(crate) last: Option<PathBuf>,
}

/// Looks at each program of a command line, up to the first for which Shunt can do
/// nothing.
pub(crate) fn outlook(command: &[OsString], library: &Path) -> Outlook {
    let mut outlook = Outlook::default();
    let mut rest = Some(command);
    // Whether what we find is what the programs find.
    let mut is_here = true;
    let mut is_loaded = false;
    while let Some(words) = rest
        && let Some((first, arguments)) = words.split_first()
    {
        let name = first.display();
        let arguments: Vec<&[u8]> = arguments.iter().map(|word| word.as_bytes()).collect();
        let base = Path::new(first).file_name().unwrap_or(first);
        let reading = starter::read(base, &arguments);
        let file = locate::program(first);
        let look = file.as_deref().map(program::look).unwrap_or_default();
        if is_here && outlook.fault.is_none() {
            outlook.fault = fault(first, is_loaded, file.as_deref(), &look);
        }
        if cleans(base, &arguments) {
            outlook.warning = Some(format!(
                "{name} cleans its environment: what it starts will use plain TCP; \
                 start the program itself under `shunt run`"
            ));
            break;
        }
        if !is_loaded {
            outlook.last.clone_from(&file);
        }
        is_loaded = base.to_str().is_some_and(starter::is_loader);
        // The loader itself is no program with a loader.
        let obstacle = look
            .obstacle
            .filter(|found| !(is_loaded && *found == Obstacle::Static));
        if let Some(obstacle) = obstacle {
            outlook.warning = Some(format!("{name} {obstacle}"));
            outlook.refuses = obstacle == Obstacle::Musl;
            break;
        }
        if changes_user(base)
            && rustix::process::geteuid().is_root()
            && let Some(closed) = library::closed_at(library)
        {
            outlook.warning = Some(format!(
                "{name} changes its user, and {} is closed to other users: what it starts \
                 will use plain TCP; install Shunt where all can read it",
                closed.display()
            ));
            break;
        }
        let Some(reading) = reading else { break };
        if base == "chroot" {
            let root = reading.operand.map(|at| Path::new(&words[1 + at]));
            outlook.warning = root.and_then(|root| lacks_library(root, library));
            break;
        }
        is_here &= base != "env" || keeps_place(&arguments[..reading.own]);
        rest = reading.program.and_then(|at| words.get(1 + at..));
    }
    outlook
}

/// Why the program of this name does not start; `is_loaded` if the dynamic loader is to start it.
fn fault(name: &OsStr, is_loaded: bool, file: Option<&Path>, look: &Look) -> Option<Fault> {
    let shown = name.display();
    let is_path = name.as_bytes().contains(&b'/');
    if is_loaded && !is_path {
        let advice = "give its path: the loader looks for no program in PATH";
        return Some(Fault::new(format!("{shown} is not found"), advice));
    }
    let Some(file) = file.filter(|file| file.exists()) else {
        let advice = "give its path, or have its directory in PATH";
        return Some(Fault::new(format!("{shown} is not found"), advice));
    };
    if !is_loaded && !locate::is_executable(file) {
        let advice = "name a program, or let its file be executed";
        return Some(Fault::new(format!("{shown} cannot be executed"), advice));
    }
    if let Some(missing) = look.missing.as_ref().filter(|_| !is_loaded) {
        let missing = missing.display();
        return Some(Fault::new(
            format!("{shown} does not start: its interpreter {missing} is not found"),
            "install that, or name another one (in a script's first line)",
        ));
    }
    look.is_damaged.then(|| {
        let advice = "build or install the program anew";
        Fault::new(format!("{shown} is damaged: its end is missing"), advice)
    })
}

/// What to know of a program that is started in another root directory.
fn lacks_library(root: &Path, library: &Path) -> Option<String> {
    let there = root.join(library.strip_prefix("/").ok()?);
    (!there.exists()).then(|| {
        format!(
            "chroot starts its program where there is no {}: it will use plain TCP; have the library there, too",
            there.display()
        )
    })
}

/// Whether `env` starts a program that is found as here: it has variables only, and not `PATH`.
fn keeps_place(own: &[&[u8]]) -> bool {
    own.iter()
        .all(|word| !word.starts_with(b"-") && !word.starts_with(b"PATH="))
}

/// Whether what a program starts finds nothing of its environment, or starts elsewhere.
fn cleans(base: &OsStr, arguments: &[&[u8]]) -> bool {
    let has = |names: &[&str]| {
        arguments
            .iter()
            .any(|word| names.iter().any(|name| *word == name.as_bytes()))
    };
    match base.to_str().unwrap_or_default() {
        "sudo" | "doas" | "pkexec" | "machinectl" | "systemctl" | "service" | "dovecot" => true,
        "systemd-run" => !has(&["--scope"]),
        "su" | "runuser" => has(&["-", "-l", "--login"]),
        "setpriv" => has(&["--reset-env"]),
        "env" => {
            let own = starter::read(base, arguments).map_or(0, |reading| reading.own);
            let own = &arguments[..own];
            let is = |names: &[&str]| own.iter().any(|w| names.iter().any(|n| *w == n.as_bytes()));
            let keeps = own.iter().any(|word| word.starts_with(b"LD_PRELOAD="));
            let unset = own.windows(2).any(|two| two == [b"-u", &b"LD_PRELOAD"[..]]);
            let cleans = is(&["-", "-i", "--ignore-environment", "--unset=LD_PRELOAD"]);
            !keeps && (cleans || unset)
        }
        _ => false,
    }
}

fn changes_user(base: &OsStr) -> bool {
    matches!(
        base.to_str(),
        Some("su" | "runuser" | "setpriv" | "gosu" | "su-exec" | "chpst" | "setuidgid")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(line: &str) -> bool {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let warning = outlook(&words, Path::new("/")).warning;
        warning.is_some_and(|text| text.contains("cleans its environment"))
    }

    #[test]
    fn who_cleans_the_environment_is_known_behind_others_too() {
        for line in [
            "su - postgres",
            "sudo -E redis-server",
            "env -i redis-server",
            "env -u LD_PRELOAD sh",
            "nice -n 5 env - sh",
            "timeout -k 1 5 /usr/bin/env A=b -i sh",
            "nohup setsid runuser -l nobody",
            "systemd-run redis-server",
        ] {
            assert!(cleaned(line), "{line}");
        }
    }

    #[test]
    fn others_do_not() {
        for line in [
            "su postgres",
            "env A=b grep -i x",
            "env -i LD_PRELOAD=x sh",
            "nice grep sudo",
            "echo env -i",
            "systemd-run --scope redis-server",
            "nice",
            "timeout 5",
        ] {
            assert!(!cleaned(line), "{line}");
        }
    }

    #[test]
    fn a_program_in_another_root_needs_the_library_there() {
        let words = ["chroot", "/proc", "sh"].map(OsString::from);
        let warning = |library: &str| outlook(&words, Path::new(library)).warning;
        assert!(
            warning("/no/libshunt.so").is_some_and(|text| text.contains("no /proc/no/libshunt.so"))
        );
        assert_eq!(warning("/version"), None);
    }

    #[test]
    fn a_program_that_is_looked_for_elsewhere_is_not_called_missing() {
        let fault = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            outlook(&words, Path::new("/")).fault.is_some()
        };
        assert!(fault("env A=b no-such-program"));
        assert!(!fault("env -C /tmp no-such-program"));
        assert!(!fault("env PATH=/opt no-such-program"));
        assert!(!fault("xargs -I {} {}"));
    }
}
