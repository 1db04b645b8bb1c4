//! Programs that start another one in their place (`nice`, `env`), and where in their command lines that one is.

use std::ffi::OsStr;

/// The words of a command line behind its first, as such a program reads them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// How many of them are its own.
    pub(super) own: usize,
    /// Where its first operand is, if it takes any before the program.
    pub(super) operand: Option<usize>,
    /// Where the program is that it starts; none if it starts none, or has an option that is not known here.
    pub(super) program: Option<usize>,
}

/// How a program reads its command line.
#[derive(Clone, Copy, Default)]
struct Usage {
    /// The letters of its options without a value.
    flags: &'static str,
    /// The letters of those whose value follows, in the same word or the next.
    valued: &'static str,
    /// Long options without a value, or with one behind `=` only.
    long: &'static [&'static str],
    /// Long options whose value is behind `=` or the next word.
    long_valued: &'static [&'static str],
    /// How many operands come before the program.
    operands: usize,
}

const NONE: Usage = Usage {
    flags: "",
    valued: "",
    long: &[],
    long_valued: &[],
    operands: 0,
};

/// How the program of this name does so. Options that let it start no program, or one in another place, are left out.
fn usage(name: &str) -> Option<Usage> {
    Some(match name {
        "nohup" => NONE,
        "setsid" => Usage {
            flags: "cfw",
            long: &["ctty", "fork", "wait"],
            ..NONE
        },
        "nice" => Usage {
            flags: "0123456789",
            valued: "n",
            long_valued: &["adjustment"],
            ..NONE
        },
        "stdbuf" => Usage {
            valued: "ioe",
            long_valued: &["input", "output", "error"],
            ..NONE
        },
        "ionice" => Usage {
            flags: "t",
            valued: "cn",
            long: &["ignore"],
            long_valued: &["class", "classdata"],
            ..NONE
        },
        "env" => Usage {
            flags: "i0v",
            valued: "uC",
            long: &[
                "ignore-environment",
                "null",
                "debug",
                "block-signal",
                "default-signal",
                "ignore-signal",
                "list-signal-handling",
            ],
            long_valued: &["unset", "chdir"],
            ..NONE
        },
        "timeout" => Usage {
            flags: "v",
            valued: "ks",
            long: &["foreground", "preserve-status", "verbose"],
            long_valued: &["kill-after", "signal"],
            operands: 1,
        },
        "taskset" => Usage {
            flags: "ac",
            long: &["all-tasks", "cpu-list"],
            operands: 1,
            ..NONE
        },
        "chrt" => Usage {
            flags: "bfiorRv",
            long: &[
                "batch",
                "fifo",
                "idle",
                "other",
                "rr",
                "reset-on-fork",
                "verbose",
            ],
            operands: 1,
            ..NONE
        },
        "unshare" => Usage {
            flags: "muinpUCTfrc",
            valued: "SG",
            long: &[
                "mount",
                "uts",
                "ipc",
                "net",
                "pid",
                "user",
                "cgroup",
                "time",
                "fork",
                "map-root-user",
                "map-current-user",
                "map-auto",
                "kill-child",
                "mount-proc",
                "keep-caps",
            ],
            long_valued: &[
                "map-user",
                "map-group",
                "map-users",
                "map-groups",
                "propagation",
                "setgroups",
                "setuid",
                "setgid",
                "monotonic",
                "boottime",
            ],
            ..NONE
        },
        "strace" => Usage {
            flags: "cCdfFikqrtTvwxyzZ",
            valued: "abeIoOsSP",
            long: &["follow-forks", "output-separately"],
            long_valued: &["output", "string-limit", "trace"],
            ..NONE
        },
        "flock" => Usage {
            flags: "sxenoF",
            valued: "wE",
            long: &[
                "shared",
                "exclusive",
                "nonblock",
                "close",
                "no-fork",
                "verbose",
            ],
            long_valued: &["timeout", "wait", "conflict-exit-code"],
            operands: 1,
        },
        "setarch" | "linux64" | "x86_64" => Usage {
            flags: "FILRSTXZ3v",
            long: &["addr-compat-layout", "addr-no-randomize", "verbose"],
            ..NONE
        },
        "chroot" => Usage {
            long: &["skip-chdir"],
            long_valued: &["userspec", "groups"],
            operands: 1,
            ..NONE
        },
        "xargs" => Usage {
            flags: "0rtpxo",
            valued: "aEdLnPs",
            long: &[
                "null",
                "no-run-if-empty",
                "verbose",
                "interactive",
                "exit",
                "open-tty",
            ],
            long_valued: &[
                "arg-file",
                "delimiter",
                "max-args",
                "max-chars",
                "max-procs",
            ],
            ..NONE
        },
        "time" => Usage {
            flags: "apqv",
            valued: "fo",
            long: &["append", "portability", "quiet", "verbose"],
            long_valued: &["format", "output"],
            ..NONE
        },
        name if is_loader(name) => Usage {
            long: &["inhibit-cache"],
            long_valued: &[
                "argv0",
                "library-path",
                "glibc-hwcaps-mask",
                "glibc-hwcaps-prepend",
            ],
            ..NONE
        },
        _ => return None,
    })
}

/// Whether a file of this name is the dynamic loader (`ld.so(8)`), which starts the program that it is given.
pub(super) fn is_loader(name: &str) -> bool {
    name == "ld.so" || name.starts_with("ld-linux")
}

/// What the first word of a command line, without directories, makes of the others, if it starts another program.
pub(super) fn read(name: &OsStr, arguments: &[&[u8]]) -> Option<Reading> {
    let name = name.to_str()?;
    if name == "ip" {
        let is_exec = arguments.starts_with(&[b"netns", b"exec"]) && arguments.len() > 3;
        return is_exec.then_some(Reading {
            own: 3,
            operand: Some(2),
            program: Some(3),
        });
    }
    let mut usage = usage(name)?;
    // The machine comes before all options, if it is there.
    if name == "setarch"
        && arguments
            .first()
            .is_some_and(|word| !word.starts_with(b"-"))
    {
        usage.operands = 1;
    }
    let mut reading = usage.read(name == "env", arguments);
    // Some policies may do without a priority.
    if name == "chrt"
        && reading
            .operand
            .is_some_and(|at| !arguments[at].iter().all(u8::is_ascii_digit))
    {
        reading.program = None;
    }
    Some(reading)
}

impl Usage {
    /// With `variables`, words that contain `=` come before the program, and `-` is an option.
    fn read(&self, variables: bool, arguments: &[&[u8]]) -> Reading {
        let mut reading = Reading::default();
        let mut operands = self.operands;
        let mut options = true;
        let mut at = 0;
        while let Some(word) = arguments.get(at) {
            let is_option = options && word.starts_with(b"-") && (word.len() > 1 || variables);
            if is_option && *word == b"--" {
                options = false;
                at += 1;
            } else if is_option {
                let Some(words) = self.option(&word[1..]) else {
                    // Which of the other words are its own is not known.
                    at += 1;
                    break;
                };
                at += words;
            } else if variables && word.contains(&b'=') {
                at += 1;
            } else if operands > 0 {
                operands -= 1;
                reading.operand.get_or_insert(at);
                at += 1;
            } else {
                reading.program = Some(at);
                break;
            }
        }
        reading.own = at.min(arguments.len());
        reading
    }

    /// How many words an option takes, whose first is this behind its `-`; none if it is not known.
    fn option(&self, word: &[u8]) -> Option<usize> {
        if let Some(long) = word.strip_prefix(b"-") {
            let name = long.split(|byte| *byte == b'=').next()?;
            let is_in = |names: &[&str]| names.iter().any(|known| known.as_bytes() == name);
            if is_in(self.long_valued) {
                return Some(if long.contains(&b'=') { 1 } else { 2 });
            }
            return is_in(self.long).then_some(1);
        }
        for (i, letter) in word.iter().enumerate() {
            if self.valued.as_bytes().contains(letter) {
                return Some(if i + 1 < word.len() { 1 } else { 2 });
            }
            if !self.flags.as_bytes().contains(letter) {
                return None;
            }
        }
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// The program that a command line starts by another.
    fn behind(line: &str) -> Option<&str> {
        let words: Vec<_> = line.split(' ').collect();
        let arguments: Vec<_> = words[1..].iter().map(|word| word.as_bytes()).collect();
        let reading = read(OsStr::from_bytes(words[0].as_bytes()), &arguments)?;
        Some(words[1 + reading.program?])
    }

    #[test]
    fn the_program_behind_another_is_found() {
        for line in [
            "nice -n 5 PROGRAM",
            "nice -n5 PROGRAM -y",
            "nice -15 PROGRAM",
            "nice --adjustment 5 PROGRAM",
            "timeout --foreground 5 PROGRAM",
            "timeout --signal KILL -vk 1 5 PROGRAM",
            "env -u A B=c PROGRAM",
            "env - PROGRAM",
            "ip netns exec name PROGRAM -x",
            "unshare -rn PROGRAM",
            "unshare --net=/run/x --map-user 7 -- PROGRAM",
            "strace -f -o /tmp/log -e trace=network PROGRAM",
            "flock -n /tmp/lock PROGRAM",
            "setarch -R PROGRAM",
            "setarch x86_64 -R PROGRAM",
            "chrt -i 0 PROGRAM",
            "chroot --userspec=a /srv PROGRAM",
            "xargs -0 -n 1 PROGRAM",
            "time -o /tmp/log PROGRAM",
            "ld-linux-x86-64.so.2 --library-path /lib PROGRAM",
        ] {
            assert_eq!(behind(line), Some("PROGRAM"), "{line}");
        }
    }

    #[test]
    fn nothing_is_guessed_behind_an_option_that_is_not_known() {
        for line in [
            "redis-server x",
            "nice",
            "timeout 5",
            "taskset -p 7 x",
            "env -S a x",
            "ip -n name netns exec x",
            "ip link add x",
            "unshare -R /srv x",
            "strace -p 7",
            "flock 9",
            "flock /tmp/lock -c x",
            "chrt -i x y",
            "xargs -I {} x",
            "ld.so --list x",
        ] {
            assert_eq!(behind(line), None, "{line}");
        }
    }

    #[test]
    fn what_comes_before_the_program_is_told_apart() {
        let reading = read(OsStr::new("env"), &[b"-i", b"A=b", b"sh", b"-u"]).unwrap();
        assert_eq!(reading.own, 2);
        let reading = read(OsStr::new("chroot"), &[b"--skip-chdir", b"/srv", b"sh"]).unwrap();
        assert_eq!((reading.operand, reading.program), (Some(1), Some(2)));
    }
}
