//! The rows of a table: which are shown, in which order, and which one is selected.

use std::cmp::Ordering;
use std::net::SocketAddr;
use std::ops::Range;

use super::look::{Flow, FlowKey, Program, Who};
use super::number::short;
use crate::ss::table::age;

/// A column of a table.
pub(super) struct Column<T> {
    pub(super) title: &'static str,
    /// Its width in characters; `None`: what the others leave, in equal parts.
    pub(super) width: Option<u16>,
    pub(super) is_right: bool,
    pub(super) on: On,
    pub(super) of: fn(&T) -> Value,
}

impl<T> Column<T> {
    /// Of text.
    pub(super) const fn left(
        title: &'static str,
        width: Option<u16>,
        on: On,
        of: fn(&T) -> Value,
    ) -> Self {
        Self {
            title,
            width,
            is_right: false,
            on,
            of,
        }
    }

    /// Of numbers.
    pub(super) const fn right(
        title: &'static str,
        width: u16,
        on: On,
        of: fn(&T) -> Value,
    ) -> Self {
        Self {
            title,
            width: Some(width),
            is_right: true,
            on,
            of,
        }
    }
}

/// The screens on which a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Each,
    Narrow,
    Wide,
}

/// What a cell shows. What is not known comes before all others.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub(super) enum Value {
    Text(String),
    Address(SocketAddr),
    Number(Option<f64>),
    Count(u32),
    Percent(Option<f64>),
    Age(Option<u32>),
}

impl Value {
    pub(super) fn text(&self) -> String {
        let known = match self {
            Self::Text(text) => Some(text.clone()),
            Self::Address(address) => Some(address.to_string()),
            Self::Number(number) => number.map(short),
            Self::Count(count) => Some(count.to_string()),
            Self::Percent(part) => part.map(|part| format!("{:.0}%", part * 100.0)),
            Self::Age(seconds) => seconds.map(age),
        };
        known.unwrap_or_else(|| "-".to_owned())
    }
}

/// What a row shows.
pub(super) trait Item: Sized + 'static {
    /// What it is from one look to the next.
    type Key: PartialEq;
    const COLUMNS: &'static [Column<Self>];

    fn key(&self) -> Self::Key;
}

/// See the module.
pub(super) struct Sheet<T: Item> {
    pub(super) items: Vec<T>,
    /// The rows: numbers of items.
    pub(super) rows: Vec<usize>,
    /// What the rows are sorted by.
    pub(super) column: usize,
    pub(super) is_descending: bool,
    /// The selected row, and the first one on the screen.
    selected: usize,
    first: usize,
    /// What was selected and stays so, wherever it goes; `None`: whatever is in the first row.
    chosen: Option<T::Key>,
}

impl<T: Item> Sheet<T> {
    /// Sorted by this column.
    pub(super) fn new(column: usize) -> Self {
        Self {
            items: Vec::new(),
            rows: Vec::new(),
            column,
            is_descending: true,
            selected: 0,
            first: 0,
            chosen: None,
        }
    }

    pub(super) fn selected(&self) -> Option<&T> {
        Some(&self.items[*self.rows.get(self.selected)?])
    }

    /// Shows other items, or the same ones, as far as `shows` wants them.
    pub(super) fn arrange(&mut self, items: Option<Vec<T>>, shows: impl Fn(&T) -> bool) {
        if let Some(items) = items {
            self.items = items;
        }
        let of = T::COLUMNS[self.column].of;
        let shown = self
            .items
            .iter()
            .enumerate()
            .filter(|(_, item)| shows(item));
        let mut rows: Vec<_> = shown.map(|(i, item)| (of(item), i)).collect();
        // Rows with the same value keep their order.
        rows.sort_by(|(one, _), (other, _)| {
            let order = one.partial_cmp(other).unwrap_or(Ordering::Equal);
            if self.is_descending {
                order.reverse()
            } else {
                order
            }
        });
        self.rows = rows.into_iter().map(|(_, i)| i).collect();
        let row = self.chosen.as_ref().and_then(|chosen| {
            let is_chosen = |i: &usize| self.items[*i].key() == *chosen;
            self.rows.iter().position(is_chosen)
        });
        self.select(row.unwrap_or(self.selected));
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
        let selected = self.selected().filter(|_| self.selected > 0);
        self.chosen = selected.map(Item::key);
    }

    /// Sorts by the next column, or the one before.
    pub(super) fn sort_by_next(&mut self, forward: bool) {
        let all = T::COLUMNS.len();
        self.column = (self.column + if forward { 1 } else { all - 1 }) % all;
        // More is more interesting; an alphabet has a beginning.
        self.is_descending = T::COLUMNS[self.column].is_right;
    }

    /// Selects the row that is `rows` below this one.
    pub(super) fn go(&mut self, rows: isize) {
        self.select(self.selected.saturating_add_signed(rows));
    }

    /// The rows on a screen that has room for `room` of them, and which of them is selected.
    pub(super) fn window(&mut self, room: usize) -> (Range<usize>, usize) {
        let least = (self.selected + 1).saturating_sub(room);
        // No room stays empty below the last row while there are rows above the first.
        let most = self.rows.len().saturating_sub(room).min(self.selected);
        self.first = self.first.max(least).min(most);
        let end = self.rows.len().min(self.first + room);
        (self.first.min(end)..end, self.selected - self.first)
    }
}

impl Item for Flow {
    type Key = FlowKey;
    const COLUMNS: &'static [Column<Self>] = super::column::CONNECTIONS;

    fn key(&self) -> FlowKey {
        self.key()
    }
}

impl Item for Program {
    type Key = Who;
    const COLUMNS: &'static [Column<Self>] = super::column::PROCESSES;

    fn key(&self) -> Who {
        self.who.clone()
    }
}
