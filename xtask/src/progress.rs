//! A sign of life: lines with the time since the start, and a line of what goes on
//! whenever nothing was printed for some seconds.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The longest silence.
const SILENCE: Duration = Duration::from_secs(3);
/// How much of a failed command's output its error shows.
const SHOWN: usize = 20;

struct State {
    started: Instant,
    printed: Instant,
    doing: String,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

/// Starts the clock, and the thread that breaks a silence.
pub(crate) fn start() {
    let now = Instant::now();
    let state = State {
        started: now,
        printed: now,
        doing: String::new(),
    };
    if STATE.set(Mutex::new(state)).is_err() {
        return;
    }
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(SILENCE / 10);
            with(|state| {
                if !state.doing.is_empty() && state.printed.elapsed() > SILENCE {
                    print(state, &format!("  … {}", state.doing.clone()));
                }
            });
        }
    });
}

/// Says what begins now, and does it. Until it is done that is said again whenever nothing
/// else is to be said.
pub(crate) fn step<T>(text: &str, work: impl FnOnce() -> T) -> T {
    say(text);
    let before = going_on(text.to_owned());
    let result = work();
    going_on(before);
    result
}

/// Says something once.
pub(crate) fn say(text: &str) {
    with(|state| print(state, text));
}

/// What is said to go on from now on; returns what was.
fn going_on(text: String) -> String {
    with(|state| std::mem::replace(&mut state.doing, text)).unwrap_or_default()
}

/// Runs a command that belongs to the preparation. The last line of its output is
/// what is said to go on; if it fails, the end of its output is the error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("start {program}"))?;
    // Our copies of the writing end, or the end of the output never comes.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let before = with(|state| state.doing.clone()).unwrap_or_default();
    let lines = follow(reader);
    going_on(before);
    let lines = lines?;
    let status = child.wait()?;
    if !status.success() {
        let end = &lines[lines.len().saturating_sub(SHOWN)..];
        bail!("`{program}` failed ({status})\n{}", end.join("\n"));
    }
    Ok(())
}

/// All lines of an output; each is what is said to go on when it comes.
fn follow(output: impl Read) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim().to_owned();
        if !line.is_empty() {
            going_on(line.clone());
            lines.push(line);
        }
    }
    Ok(lines)
}

fn with<T>(action: impl FnOnce(&mut State) -> T) -> Option<T> {
    let mut state = STATE.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    Some(action(&mut state))
}

fn print(state: &mut State, text: &str) {
    let text: String = text.chars().take(150).collect();
    println!("[{:6.1} s] {text}", state.started.elapsed().as_secs_f64());
    state.printed = Instant::now();
}

#[cfg(test)]
mod tests {
    use super::{going_on, run, start, step};
    use std::process::Command;
    use std::sync::{Mutex, PoisonError};

    /// Held by each test: what goes on is one word for the whole process.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn a_step_goes_on_exactly_as_long_as_its_work() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        start();
        let now = || {
            let now = going_on(String::new());
            going_on(now.clone());
            now
        };
        let failed = step("outer", || {
            assert_eq!(now(), "outer");
            step("inner", || assert_eq!(now(), "inner"));
            assert_eq!(now(), "outer");
            run(Command::new("sh").args(["-c", "echo last words; exit 1"]))
        });
        assert!(failed.is_err());
        assert_eq!(now(), "");
    }

    #[test]
    fn a_failed_command_shows_the_end_of_its_output() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let script = "seq 100; echo reason >&2; exit 3";
        let error = run(Command::new("sh").args(["-c", script])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("99\n100\nreason") && !text.contains("\n70\n"),
            "{text}"
        );
    }
}
