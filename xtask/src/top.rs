//! `shunt top` in a terminal of tmux: what it shows of a connection, how keys change that, and that the
//! terminal is afterwards as it was before.

use crate::build::artifact;
use crate::process::{descendants, signal_pid, wait_until};
use crate::report::Report;
use crate::why::Pair;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(15);
/// What a shell says of a program that SIGSTOP has stopped.
const STOPPED: i32 = 128 + Signal::STOP.as_raw();

/// The task.
pub(crate) fn run() -> Result<bool> {
    Report::of(steps)
}

/// One step for each screen.
pub(crate) fn steps(report: &mut Report) -> Result<()> {
    const WIDTHS: [u16; 2] = [80, 200];
    type Screen = (&'static str, fn() -> Result<()>);
    const OTHERS: [Screen; 4] = [
        ("top / stopped and continued", stopped_and_continued),
        ("top / no daemon", without_daemon),
        ("top / ended by a signal", ended_by_signal),
        ("top / no terminal", without_terminal),
    ];
    if Command::new("tmux").arg("-V").output().is_err() {
        report.skip("top", "no tmux");
        return Ok(());
    }
    let pair = Pair::new()?;
    for width in WIDTHS {
        let name = format!("top / {width} columns");
        report.step(&name, || {
            shows_connection(&pair, width).map(|()| String::new())
        });
    }
    report.step("top / other sizes", || {
        takes_other_sizes(&pair).map(|()| String::new())
    });
    for (name, step) in OTHERS {
        report.step(name, || step().map(|()| String::new()));
    }
    Ok(())
}

/// A terminal with a shell, in a server of its own.
struct Screen {
    socket: String,
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

impl Screen {
    /// Runs `shunt top` between two looks at the terminal's settings.
    fn new(name: &str, width: u16, prefix: &str) -> Result<Self> {
        // The server of the screen before may still be about to end.
        let screen = Self {
            socket: format!("shunt-top-{name}.{}", std::process::id()),
        };
        let shunt = artifact("shunt");
        // The shell has job control, and continues what was stopped when somebody presses Enter.
        let script = format!(
            "set -m; before=$(stty -a); now() {{ test \"$before\" = \"$(stty -a)\" && echo as before; }}
             {prefix} {} top --delay 0.1
             while status=$?; test $status = {STOPPED}; do
                 echo stopped; now; read line; printf '\\033[H\\033[2J'; fg > /dev/null
             done
             echo ended with $status; now; sleep 60",
            shunt.display()
        );
        let width = width.to_string();
        let words = [
            "-u",
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-y",
            "24",
            "-x",
        ];
        screen.tmux(&[&words[..], &[&*width, "sh", "-c", &script]].concat())?;
        Ok(screen)
    }

    fn tmux(&self, words: &[&str]) -> Result<String> {
        let output = Command::new("tmux")
            .args(["-L", &self.socket])
            .args(words)
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .context("start tmux")?;
        if !output.status.success() {
            bail!(
                "tmux {words:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn press(&self, keys: &[&str]) -> Result<()> {
        let words = [&["send-keys"], keys].concat();
        self.tmux(&words).map(drop)
    }

    /// Waits until it shows something, and returns all of that.
    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> Result<String> {
        let mut shown = String::new();
        let seen = wait_until(LIMIT, || {
            shown = self.tmux(&["capture-pane", "-p"]).unwrap_or_default();
            is_so(&shown)
        });
        if !seen {
            bail!("it does not show {what}, but\n{shown}");
        }
        Ok(shown)
    }

    /// The process that is shown.
    fn top(&self) -> Result<u32> {
        let pid = self.tmux(&["display-message", "-p", "#{pane_pid}"])?;
        let children = descendants(pid.trim().parse()?);
        let [top] = children[..] else {
            bail!("the shell has the children {children:?}");
        };
        Ok(top)
    }

    /// It has ended, or stopped, and left nothing behind.
    fn left(&self, how: &str) -> Result<()> {
        self.until("that it has left", |shown| {
            let lines: Vec<_> = shown.lines().filter(|line| !line.is_empty()).collect();
            // The shell may say by which signal.
            let words = ["Terminated", "Stopped"];
            let lines = lines
                .iter()
                .filter(|l| !words.iter().any(|word| l.contains(word)));
            lines.eq([&how, &"as before"])
        })?;
        Ok(())
    }
}

/// What it shows of two programs that talk through shared memory, and what keys make of it.
fn shows_connection(pair: &Pair, width: u16) -> Result<()> {
    let screen = Screen::new(&width.to_string(), width, "NO_COLOR=1")?;
    let address = pair.address();
    let row = |shown: &str| {
        let line = shown.lines().find(|line| line.starts_with(&address))?;
        Some(line.to_owned())
    };
    let shown = screen.until("a connection with its rates", |shown| {
        let line = row(shown).unwrap_or_default();
        line.contains(" shm ") && !line.contains(" - ") && shown.contains("in shared memory")
    })?;
    let has_names = row(&shown).unwrap_or_default().contains("peer/");
    if has_names != (width == 200) {
        bail!("the names of programs are on wide screens:\n{shown}");
    }
    if shown
        .lines()
        .any(|line| line.chars().count() > usize::from(width))
    {
        bail!("it is wider than {width} columns:\n{shown}");
    }
    let styled = screen.tmux(&["capture-pane", "-p", "-e"])?;
    if styled.split("\x1b[").skip(1).any(is_colour) {
        bail!("NO_COLOR is set, and there are colours:\n{styled}");
    }
    screen.press(&["Tab"])?;
    screen.until("the processes", |shown| {
        shown.contains("PROCESS") && shown.lines().any(|line| line.starts_with("peer/"))
    })?;
    screen.press(&["Tab", "/", "path = tcp", "Enter"])?;
    screen.until("that the filter shows nothing", |shown| {
        shown.contains("The filter shows none of ")
    })?;
    screen.press(&["q"])?;
    screen.left("ended with 0")
}

/// Whether a control sequence selects a colour (ECMA-48, 8.3.117), other than the default one (39, 49).
fn is_colour(sequence: &str) -> bool {
    let parameters = sequence.split('m').next().unwrap_or_default().split(';');
    let mut numbers = parameters.filter_map(|number| number.parse::<u8>().ok());
    numbers.any(|number| matches!(number, 30..=38 | 40..=48 | 90..=107))
}

fn without_daemon() -> Result<()> {
    let screen = Screen::new("alone", 80, "SHUNT_SOCKET=/nonexistent/shunt")?;
    screen.until("that there is no daemon", |shown| {
        shown.contains("no shuntd answers at /nonexistent/shunt")
    })?;
    screen.press(&["C-c"])?;
    screen.left("ended with 0")
}

/// By a key, and by a signal. Afterwards it is there again, and hears keys.
fn stopped_and_continued() -> Result<()> {
    let screen = Screen::new("stopped", 80, "SHUNT_SOCKET=/nonexistent/shunt")?;
    let shows = || screen.until("itself", |shown| shown.starts_with("shunt top"));
    shows()?;
    screen.press(&["C-z"])?;
    screen.left("stopped")?;
    screen.press(&["Enter"])?;
    shows()?;
    signal_pid(screen.top()?, Signal::TSTP);
    screen.left("stopped")?;
    screen.press(&["Enter"])?;
    shows()?;
    screen.press(&["q"])?;
    screen.left("ended with 0")
}

/// The terminal is made tiny, and large again.
fn takes_other_sizes(pair: &Pair) -> Result<()> {
    const SIZES: [(u16, u16); 6] = [(1, 1), (2, 40), (200, 1), (20, 4), (200, 50), (80, 24)];
    let screen = Screen::new("sizes", 80, "")?;
    let address = pair.address();
    let shows = || screen.until("a connection", |shown| shown.contains(&address));
    shows()?;
    for (width, height) in SIZES {
        let [columns, lines] = [width, height].map(|size| size.to_string());
        screen.tmux(&["resize-window", "-x", &columns, "-y", &lines])?;
        let title: String = "shunt top".chars().take(usize::from(width)).collect();
        screen.until("its title", |shown| {
            shown.lines().count() <= usize::from(height) && shown.starts_with(&title)
        })?;
    }
    shows()?;
    screen.press(&["q"])?;
    screen.left("ended with 0")
}

fn ended_by_signal() -> Result<()> {
    let screen = Screen::new("signal", 80, "")?;
    screen.until("itself", |shown| shown.starts_with("shunt top"))?;
    signal_pid(screen.top()?, Signal::TERM);
    screen.left("ended with 143")
}

/// Its output goes elsewhere: it says what to use.
fn without_terminal() -> Result<()> {
    let output = Command::new(artifact("shunt")).arg("top").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(2) || !said.contains("`shunt ss` prints once") {
        bail!("{}: {said}", output.status);
    }
    Ok(())
}
