//! `shunt top`: what connections and processes do just now, until somebody presses `q`.
//!
//! Three threads tell the one that draws: one reads keys, one waits for signals, and one asks shuntd, which
//! may take its time, and tells what is worth a screen. What is shown is [`model::Model`]'s; this file has the terminal.

mod column;
mod look;
mod model;
mod number;
mod screen;
mod sheet;

use std::io::{self, BufWriter, IsTerminal as _, Stdout, stdout};
use std::iter;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::ss;
use look::{Look, Looker};
use model::{Action, Model};
use screen::Styles;

/// See `shunt top --help`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Look anew every so many seconds
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = ss::interval)]
    delay: Duration,
    /// Whoever is used to it gets told what to use.
    #[arg(long, short = 'b', hide = true)]
    once: bool,
    /// A filter as for `shunt ss`, such as: sport = :6379 and path = tcp
    #[arg(value_name = "FILTER")]
    words: Vec<String>,
}

/// What happens.
enum Message {
    Terminal(Event),
    Signal(i32),
    Looked(Result<Look>),
    /// No key will come any more.
    Lost(io::Error),
}

/// Why it ends.
enum End {
    Wanted,
    Signal(i32),
}

/// Shows it.
pub(crate) fn top(options: &Options) -> Result<ExitCode> {
    let mut model = match Model::new(options.words.join(" ")) {
        Ok(model) => model,
        Err(wrong) => {
            eprintln!("shunt: {wrong}");
            return Ok(ExitCode::from(2));
        }
    };
    if options.once || !stdout().is_terminal() || !io::stdin().is_terminal() {
        eprintln!(
            "shunt: top needs a terminal and goes on until q is pressed; `shunt ss` prints once, \
             and `shunt ss --watch` again and again"
        );
        return Ok(ExitCode::from(2));
    }
    let messages = listen(options.delay)?;
    restore_on_panic();
    let end = enter().and_then(|()| show(&mut model, &messages));
    leave();
    match end.context("the terminal cannot be used")? {
        End::Wanted => Ok(ExitCode::SUCCESS),
        End::Signal(signal) => {
            emulate_default_handler(signal)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Starts who tells what happens.
fn listen(delay: Duration) -> Result<Receiver<Message>> {
    let (messages, receiver) = channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP])?;
    let sender = messages.clone();
    spawn(move || {
        signals
            .forever()
            .try_for_each(|signal| sender.send(Message::Signal(signal)))
    });
    let sender = messages.clone();
    spawn(move || {
        loop {
            let read = event::read();
            let is_last = read.is_err();
            let message = read.map_or_else(Message::Lost, Message::Terminal);
            if sender.send(message).is_err() || is_last {
                return;
            }
        }
    });
    spawn(move || {
        let mut looker = Looker::new(delay);
        loop {
            let looked = looker.next().map(Message::Looked);
            if looked.is_some_and(|message| messages.send(message).is_err()) {
                return;
            }
            sleep(delay);
        }
    });
    Ok(receiver)
}

fn show(model: &mut Model, messages: &Receiver<Message>) -> io::Result<End> {
    let mut terminal = terminal()?;
    // As https://no-color.org has it.
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let styles = Styles::new(colours);
    loop {
        terminal.draw(|frame| screen::draw(frame, model, styles))?;
        let Ok(first) = messages.recv() else {
            return Ok(End::Wanted);
        };
        // All that has come meanwhile is drawn once.
        for message in iter::once(first).chain(messages.try_iter()) {
            let action = match message {
                Message::Terminal(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    model.key(key)
                }
                Message::Terminal(_) => Action::None,
                Message::Looked(look) => {
                    model.look(look);
                    Action::None
                }
                Message::Signal(SIGTSTP) => Action::Stop,
                Message::Signal(signal) => return Ok(End::Signal(signal)),
                Message::Lost(error) => return Err(error),
            };
            match action {
                Action::None => {}
                Action::Quit => return Ok(End::Wanted),
                Action::Stop => {
                    leave();
                    emulate_default_handler(SIGTSTP)?;
                    enter()?;
                    // Not `clear`, which asks the terminal for its cursor: the thread that reads keys gets the answer.
                    terminal = self::terminal()?;
                }
            }
        }
    }
}

/// A screen goes to the terminal by as few writes as can be: each may wake whoever shows it.
fn terminal() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    let out = BufWriter::with_capacity(1 << 16, stdout());
    Terminal::new(CrosstermBackend::new(out))
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All))
}

/// The terminal is as it was before, as far as it can still be reached.
fn leave() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// A panic of any thread ends the program, and its message stays to be read.
fn restore_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        leave();
        print(panic);
        std::process::exit(101);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::Command as _;
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};
    use std::os::fd::OwnedFd;
    use std::process::Command;

    /// Set in the process that panics.
    const ROLE: &str = "TOP_IS_TO_PANIC";
    const NAME: &str = "top::tests::a_panic_of_any_thread_leaves_the_terminal_as_it_was";

    /// A terminal's two sides.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let its = ioctl_tiocgptpeer(&ours, flags).unwrap();
        (ours, its)
    }

    fn panic_in_terminal() {
        restore_on_panic();
        enter().unwrap();
        let modes = tcgetattr(io::stdin()).unwrap().local_modes;
        eprintln!("lines: {}", modes.contains(LocalModes::ICANON));
        // It ends the process before this ends.
        let _ = spawn(|| panic!("the last words")).join();
    }

    #[test]
    fn a_panic_of_any_thread_leaves_the_terminal_as_it_was() {
        if std::env::var_os(ROLE).is_some() {
            return panic_in_terminal();
        }
        let (ours, its) = terminal();
        let before = tcgetattr(&its).unwrap();
        let end = || its.try_clone().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(ROLE, "")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .status()
            .unwrap();
        let after = tcgetattr(&its).unwrap();
        fcntl_setfl(&ours, OFlags::NONBLOCK).unwrap();
        let (mut said, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = rustix::io::read(&ours, &mut part) {
            said.extend_from_slice(&part[..count]);
        }
        let said = String::from_utf8(said).unwrap();
        assert_eq!(status.code(), Some(101), "{said}");
        assert!(said.contains("lines: false"), "{said}");
        let mut leave = String::new();
        LeaveAlternateScreen.write_ansi(&mut leave).unwrap();
        let (_, behind) = said.split_once(&leave).unwrap();
        assert!(behind.contains("the last words"), "{said}");
        assert_eq!(
            (before.local_modes, before.input_modes, before.output_modes),
            (after.local_modes, after.input_modes, after.output_modes)
        );
    }
}
