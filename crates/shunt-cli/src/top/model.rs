//! What is shown, and what keys and looks make of it. It knows no terminal.

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::time::Instant;

use anyhow::Result;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::column::{CONNECTIONS_BY, PROCESSES_BY};
use super::look::{self, Flow, Look, Program, Span, Used, Who};
use super::sheet::Sheet;
use crate::ss::{Expression, Item};

/// Which table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Connections,
    Processes,
}

/// What a key asks the terminal for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Stop this process, until it is continued.
    Stop,
}

/// Rows by which a key goes up or down.
const PAGE: isize = 10;

/// See the module.
pub(super) struct Model {
    pub(super) tab: Tab,
    pub(super) flows: Sheet<Flow>,
    pub(super) programs: Sheet<Program>,
    /// Whether more is told of what is selected.
    pub(super) details: bool,
    /// The filter in words.
    pub(super) words: String,
    filter: Expression,
    /// The filter that is being written.
    pub(super) draft: Option<String>,
    /// What is wrong with that.
    pub(super) wrong: Option<String>,
    /// Why nothing is known: there was no look yet, or the last one failed.
    pub(super) silence: Option<String>,
    /// When the last look was, and what processes had used by then.
    before: Option<(Instant, HashMap<Who, Used>)>,
}

impl Model {
    /// Nothing is known yet. Fails if the filter is none.
    pub(super) fn new(words: String) -> Result<Self, String> {
        Ok(Self {
            tab: Tab::Connections,
            flows: Sheet::new(CONNECTIONS_BY),
            programs: Sheet::new(PROCESSES_BY),
            details: true,
            filter: parse(&words)?,
            words,
            draft: None,
            wrong: None,
            silence: Some("asking shuntd".to_owned()),
            before: None,
        })
    }

    /// Somebody has looked.
    pub(super) fn look(&mut self, look: Result<Look>) {
        let (flows, programs) = (take(&mut self.flows.items), take(&mut self.programs.items));
        let look = match look {
            Ok(look) => look,
            Err(error) => {
                self.silence = Some(format!("{error:#}"));
                self.before = None;
                self.arrange(Some((Vec::new(), Vec::new())));
                return;
            }
        };
        self.silence = None;
        let nothing = HashMap::new();
        let (at, used) = match &self.before {
            Some((at, used)) => (*at, used),
            None => (look.at, &nothing),
        };
        let span = Span {
            from: at,
            to: look.at,
            glances: &look.glances,
        };
        let flows = look::flows(flows, look.connections, &span);
        let programs = look::programs(&flows, programs, [used, &look.processes], &span);
        self.before = Some((look.at, look.processes));
        self.arrange(Some((flows, programs)));
    }

    /// Shows what the filter wants, of these items or those that are there.
    fn arrange(&mut self, items: Option<(Vec<Flow>, Vec<Program>)>) {
        let (flows, programs) = items.unzip();
        let filter = &self.filter;
        self.flows.arrange(flows, |flow| {
            filter.shows(Item::Connection(&flow.connection))
        });
        // Processes that have an end of these.
        let flows = &self.flows;
        let shown = flows.rows.iter().map(|row| &flows.items[*row]);
        let ends = shown.flat_map(|flow| &flow.connection.processes);
        let shown: HashSet<_> = ends.map(look::who).collect();
        self.programs
            .arrange(programs, |program| shown.contains(&program.who));
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Action::Quit,
                KeyCode::Char('z') => return Action::Stop,
                KeyCode::Char('u') => self.edit(String::clear),
                _ => {}
            }
        } else if self.draft.is_some() {
            self.write(key.code);
        } else {
            return self.command(key.code);
        }
        Action::None
    }

    fn edit(&mut self, how: impl FnOnce(&mut String)) {
        self.draft.as_mut().map(how);
        self.wrong = None;
    }

    /// While a filter is written.
    fn write(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) => self.edit(|draft| draft.push(c)),
            KeyCode::Backspace => self.edit(|draft| {
                draft.pop();
            }),
            KeyCode::Esc => {
                self.draft = None;
                self.wrong = None;
            }
            KeyCode::Enter => {
                let draft = self.draft.clone().unwrap_or_default();
                match parse(&draft) {
                    Ok(filter) => {
                        (self.filter, self.words, self.draft) = (filter, draft, None);
                        self.arrange(None);
                    }
                    Err(wrong) => self.wrong = Some(wrong),
                }
            }
            _ => {}
        }
    }

    fn command(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Tab | KeyCode::BackTab => {
                self.tab = match self.tab {
                    Tab::Connections => Tab::Processes,
                    Tab::Processes => Tab::Connections,
                }
            }
            KeyCode::Enter => self.details = !self.details,
            KeyCode::Char('/') => self.draft = Some(self.words.clone()),
            KeyCode::Char('<') | KeyCode::Left => self.sort_by_next(false),
            KeyCode::Char('>') | KeyCode::Right => self.sort_by_next(true),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-PAGE),
            KeyCode::PageDown => self.go(PAGE),
            KeyCode::Home => self.go(isize::MIN),
            KeyCode::End => self.go(isize::MAX),
            _ => {}
        }
        Action::None
    }

    fn go(&mut self, rows: isize) {
        match self.tab {
            Tab::Connections => self.flows.go(rows),
            Tab::Processes => self.programs.go(rows),
        }
    }

    fn sort_by_next(&mut self, forward: bool) {
        match self.tab {
            Tab::Connections => self.flows.sort_by_next(forward),
            Tab::Processes => self.programs.sort_by_next(forward),
        }
        self.arrange(None);
    }

    fn reverse(&mut self) {
        let is_descending = match self.tab {
            Tab::Connections => &mut self.flows.is_descending,
            Tab::Processes => &mut self.programs.is_descending,
        };
        *is_descending = !*is_descending;
        self.arrange(None);
    }
}

fn parse(words: &str) -> Result<Expression, String> {
    Expression::parse(&[words.to_owned()])
}
