//! What a command line is going to run, as far as it tells: programs that run another
//! one in their place (`nice`, `env`), and those that let it have no environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::program::{self, Obstacle};
use crate::{library, locate};

/// What its user should know of a command line.
#[derive(Debug, Default)]
pub(crate) struct Outlook {
    /// Why Shunt can do nothing, or not for all.
    pub(crate) warning: Option<String>,
    /// A program of it would not start with libshunt.
    pub(crate) refuses: bool,
}

/// Looks at each program of a command line, up to the first for which Shunt can do
/// nothing.
pub(crate) fn outlook(command: &[OsString], library: &Path) -> Outlook {
    let mut outlook = Outlook::default();
    let mut rest = Some(command);
    while let Some(words) = rest
        && let Some((first, arguments)) = words.split_first()
    {
        let name = first.display();
        let arguments: Vec<&[u8]> = arguments.iter().map(|word| word.as_bytes()).collect();
        let base = Path::new(first).file_name().unwrap_or(first);
        let obstacle = || locate::program(first).and_then(|file| program::obstacle(&file));
        if cleans(base, &arguments) {
            outlook.warning = Some(format!(
                "{name} cleans its environment: what it starts will use plain TCP; \
                 start the program itself under `shunt run`"
            ));
            break;
        }
        if let Some(obstacle) = obstacle() {
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
        rest = behind(base, &arguments).and_then(|count| words.get(count..));
    }
    outlook
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
            let own = &arguments[..behind(base, arguments).map_or(arguments.len(), |n| n - 1)];
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

/// How many words of a command line come before the program that its first one runs in
/// its place, if that is one that does so.
fn behind(base: &OsStr, arguments: &[&[u8]]) -> Option<usize> {
    // The options that take the next word, and how many operands come first.
    let (valued, mut operands): (&[u8], usize) = match base.to_str()? {
        "nohup" | "setsid" => (b"", 0),
        "nice" => (b"n", 0),
        "stdbuf" => (b"ioe", 0),
        "ionice" => (b"cn", 0),
        "env" => (b"uC", 0),
        "timeout" => (b"ks", 1),
        "taskset" | "chrt" => (b"", 1),
        _ => return None,
    };
    let mut words = arguments.iter().enumerate();
    while let Some((i, word)) = words.next() {
        if let [b'-', option] = word
            && valued.contains(option)
        {
            words.next();
        } else if word.starts_with(b"-") || base == "env" && word.contains(&b'=') {
            // An option by itself, or a variable.
        } else if operands > 0 {
            operands -= 1;
        } else {
            return Some(i + 1);
        }
    }
    None
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
    fn the_program_behind_another_is_found() {
        let at = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
            behind(OsStr::from_bytes(words[0]), &words[1..])
        };
        assert_eq!(at("nice -n 5 x"), Some(3));
        assert_eq!(at("nice -n5 x -y"), Some(2));
        assert_eq!(at("timeout --foreground 5 x"), Some(3));
        assert_eq!(at("env -u A B=c x"), Some(4));
        assert_eq!(at("redis-server x"), None);
    }
}
