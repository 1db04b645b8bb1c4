//! The screen: tabs and sums, the table, more of what is selected, and the keys.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, RenderDirection, Sparkline, Widget as _, Wrap};

use super::column::{WIDE, WIDEST, name, sum};
use super::look::{Flow, PATHS, Past, Program};
use super::model::{Model, Tab};
use super::number::short;
use super::sheet::{Column, Item, On, Sheet, Value};
use crate::ss::table::{age, who};
use crate::user;

/// Lines that tell more of what is selected, and those that a screen has which has room for them.
const DETAILS: u16 = 10;
const TALL: u16 = 18;

const KEYS: &str =
    "Tab processes  < > sort  r reverse  / filter  Enter details  \u{2191} \u{2193} select  q quit";

/// How things are told apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Styles {
    shared: Style,
    plain: Style,
    weak: Style,
}

impl Styles {
    /// With colours or, as `NO_COLOR` demands, without.
    pub(super) fn new(colours: bool) -> Self {
        let coloured = |colour| match colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        };
        Self {
            shared: coloured(Color::Green),
            plain: coloured(Color::Yellow),
            weak: coloured(Color::Cyan),
        }
    }
}

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, model: &mut Model, styles: Styles) {
    let area = frame.area();
    let has_details = model.details && area.height >= TALL && model.silence.is_none();
    let below = if has_details { DETAILS } else { 0 };
    // Without ratatui's layouts: each solves a system of inequalities, which takes longer than to draw.
    let room = area.height.saturating_sub(3 + below);
    let [title, state, table] = [(0, 1), (1, 1), (2, room)].map(|(y, rows)| part_of(area, y, rows));
    let details = part_of(area, 2 + room, below);
    let keys = part_of(area, 2 + room + below, 1);
    frame.render_widget(tabs(model, styles), title);
    frame.render_widget(sorting(model), state);
    if let Some(silence) = &model.silence {
        frame.render_widget(sentence(silence), table);
    } else {
        match model.tab {
            Tab::Connections => draw_table(frame, table, &mut model.flows, styles),
            Tab::Processes => draw_table(frame, table, &mut model.programs, styles),
        }
    }
    if has_details {
        match model.tab {
            Tab::Connections => draw_flow(frame, details, model.flows.selected(), styles),
            Tab::Processes => draw_program(frame, details, model.programs.selected(), styles),
        }
    }
    draw_last_line(frame, keys, model, styles);
}

/// `height` rows of an area, from row `y` on, as far as it has them.
fn part_of(area: Rect, y: u16, height: u16) -> Rect {
    let y = area.y + y;
    Rect { y, height, ..area }.intersection(area)
}

fn sentence(text: &str) -> Paragraph<'_> {
    Paragraph::new(text).wrap(Wrap { trim: true })
}

/// Numbers of [`PATHS`].
const SHM: usize = 0;
const RDMA: usize = 1;
const TCP: usize = 2;

/// The tabs, and what all connections do together.
fn tabs(model: &Model, styles: Styles) -> Line<'static> {
    let tab = |tab, text| {
        let style = if model.tab == tab {
            CHOSEN
        } else {
            Style::new()
        };
        Span::styled(text, style)
    };
    // Connections, and bytes per second: through rings, as their paths are, and through the kernel.
    let mut paths = [(0, 0.0); 3];
    for flow in &model.flows.items {
        let path = flow.path();
        paths[path].0 += 1;
        if let Some(rates) = flow.rates {
            let [client, server] = rates.bytes;
            // One that has just gone back to TCP has moved something by its ring before.
            let ring = if path == TCP { SHM } else { path };
            paths[ring].1 += client[0] + server[0];
            paths[TCP].1 += client[1] + server[1];
        }
    }
    let of_path = |path: usize, style| {
        let (count, bytes) = paths[path];
        Span::styled(
            format!("{} {count}: {}B/s", PATHS[path], short(bytes)),
            style,
        )
    };
    let mut parts = vec![
        Span::styled("shunt top", STRONG),
        Span::raw("  "),
        tab(Tab::Connections, " Connections "),
        tab(Tab::Processes, " Processes "),
        Span::raw("  "),
        of_path(SHM, styles.shared),
        Span::raw("  "),
    ];
    if paths[RDMA].0 > 0 {
        parts.extend([of_path(RDMA, styles.shared), Span::raw("  ")]);
    }
    parts.push(of_path(TCP, styles.plain));
    Line::from(parts)
}

/// The order, and the filter.
fn sorting(model: &Model) -> Line<'_> {
    let flows = &model.flows;
    let (title, is_descending) = match model.tab {
        Tab::Connections => (Flow::COLUMNS[flows.column].title, flows.is_descending),
        Tab::Processes => (
            Program::COLUMNS[model.programs.column].title,
            model.programs.is_descending,
        ),
    };
    let order = if is_descending { "most" } else { "least" };
    let mut text = format!("per second, {order} {title} first");
    if !model.words.is_empty() {
        let (shown, all) = (flows.rows.len(), flows.items.len());
        text += &format!("; {shown} of {all} with {}", model.words);
    }
    Line::from(text)
}

/// The keys; or the filter that is being written, or what is wrong with it.
fn draw_last_line(frame: &mut Frame, area: Rect, model: &Model, styles: Styles) {
    let Some(draft) = &model.draft else {
        frame.render_widget(Line::styled(KEYS, styles.weak), area);
        return;
    };
    let line = format!("/{draft}");
    let column = Line::from(line.as_str()).width() as u16;
    let wrong = model.wrong.as_ref().map(|wrong| format!("  {wrong}"));
    let parts = vec![
        Span::raw(line),
        Span::styled(wrong.unwrap_or_default(), STRONG),
    ];
    frame.render_widget(Line::from(parts), area);
    let column = column.min(area.width.saturating_sub(1));
    frame.set_cursor_position(Position::new(area.x + column, area.y));
}

fn draw_table<T: Item>(frame: &mut Frame, area: Rect, sheet: &mut Sheet<T>, styles: Styles) {
    if sheet.rows.is_empty() {
        let text = match sheet.items.len() {
            0 => "No program under Shunt has a connection.".to_owned(),
            all => format!("The filter shows none of {all}."),
        };
        frame.render_widget(sentence(&text), area);
        return;
    }
    let other = if area.width < WIDE {
        On::Wide
    } else {
        On::Narrow
    };
    let columns: Vec<&Column<T>> = T::COLUMNS.iter().filter(|c| c.on != other).collect();
    let spacing = if area.width < WIDE { 1 } else { 2 };
    let widths = widths(&columns, area.width, spacing);
    let sorted = T::COLUMNS[sheet.column].title;
    let title = |column: &&Column<T>| {
        let is_sorted = column.title == sorted;
        let style = if is_sorted { STRONG } else { Style::new() };
        (column.title.to_owned(), style.patch(styles.weak))
    };
    let cell = |item: &T, column: &Column<T>, width: u16| {
        let text = shortened(&(column.of)(item), usize::from(width));
        let style = match (column.title, text.as_str()) {
            ("PATH", "shm" | "rdma") => styles.shared,
            ("PATH", _) => styles.plain,
            _ => Style::new(),
        };
        (text, style)
    };
    let room = usize::from(area.height.saturating_sub(1));
    let (window, selected) = sheet.window(room);
    let buffer = frame.buffer_mut();
    let mut x = area.x;
    for (column, &width) in columns.iter().zip(&widths) {
        let of_column = Rect { x, width, ..area }.intersection(area);
        x = x.saturating_add(width + spacing);
        let cells = sheet.rows[window.clone()].iter();
        let cells = cells.map(|i| cell(&sheet.items[*i], column, width));
        for (y, (text, style)) in (0..).zip(std::iter::once(title(column)).chain(cells)) {
            let place = part_of(of_column, y, 1);
            if style != Style::new() {
                buffer.set_style(place, style);
            }
            write(buffer, place, text, column.is_right);
        }
    }
    buffer.set_style(part_of(area, 1 + selected as u16, 1), CHOSEN);
}

/// The widths of columns on a screen of this width: what some leave the others have in equal parts.
fn widths<T>(columns: &[&Column<T>], width: u16, spacing: u16) -> Vec<u16> {
    let fixed: u16 = columns.iter().filter_map(|column| column.width).sum();
    let gaps = spacing * (columns.len() as u16 - 1);
    let others = columns.iter().filter(|column| column.width.is_none());
    let part = width.saturating_sub(fixed + gaps) / others.count() as u16;
    let widths = columns
        .iter()
        .map(|column| column.width.unwrap_or(part.min(WIDEST)));
    widths.collect()
}

/// As much of a value as there is room for: the end of an address, which tells most, or else the beginning.
fn shortened(value: &Value, room: usize) -> String {
    let text = value.text();
    let excess = text.chars().count().saturating_sub(room);
    if excess == 0 {
        return text;
    }
    let kept = room.saturating_sub(1);
    match value {
        Value::Address(_) => std::iter::once('\u{2026}')
            .chain(text.chars().skip(excess + 1))
            .collect(),
        _ => text.chars().take(kept).chain(['\u{2026}']).collect(),
    }
}

/// Writes a cell of the table.
fn write(buffer: &mut Buffer, place: Rect, text: String, right: bool) {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !is_plain || place.is_empty() || text.len() > usize::from(place.width) {
        return aligned(text, right).render(place, buffer);
    }
    // Nearly all are so: a character is a column, and need not be looked up.
    let skipped = if right {
        place.width - text.len() as u16
    } else {
        0
    };
    let first = buffer.index_of(place.x + skipped, place.y);
    for (cell, byte) in buffer.content[first..].iter_mut().zip(text.bytes()) {
        cell.set_char(byte.into());
    }
}

fn aligned(text: String, right: bool) -> Line<'static> {
    let alignment = match right {
        true => Alignment::Right,
        false => Alignment::Left,
    };
    Line::from(text).alignment(alignment)
}

/// More of a connection.
fn draw_flow(frame: &mut Frame, area: Rect, flow: Option<&Flow>, styles: Styles) {
    let Some(flow) = flow else { return };
    let c = &flow.connection;
    let title = format!("{} <- {}", c.local, c.peer);
    draw_details(frame, area, title, flow_lines(flow), &flow.past, styles);
}

fn flow_lines(flow: &Flow) -> Vec<String> {
    let c = &flow.connection;
    let end = |name, did: &str| {
        let found = c.processes.iter().find(|process| process.end == name);
        let who = found.map_or("a program that shuntd does not know".to_owned(), |p| {
            let user = p.uid.map(|uid| format!(" of {}", user::name(uid)));
            who(&p.comm, p.pid) + &user.unwrap_or_default()
        });
        format!("{did} by {who}")
    };
    let mut lines = vec![format!(
        "{}, {}{}",
        end("server", "accepted"),
        end("client", "made"),
        c.age_seconds
            .map_or(String::new(), |seconds| format!(", {} old", age(seconds)))
    )];
    let unread = c.queue.map(|queue| {
        format!(
            "; unread: {} bytes to the client, {} to the server",
            queue.to_client, queue.to_server
        )
    });
    let path = match (&c.reason, c.why) {
        (Some(name), Some(why)) => format!("on TCP, {name}: {why}"),
        (Some(name), None) => format!("on TCP, {name}"),
        (None, _) if c.path == "shm" => "in shared memory".to_owned(),
        (None, _) if c.path == "rdma" => "by RDMA to another host".to_owned(),
        (None, _) => "on TCP".to_owned(),
    };
    lines.push(path + &unread.unwrap_or_default());
    if let Some(rates) = flow.rates {
        let [ring, kernel] = [0, 1].map(|path| rates.bytes[0][path] + rates.bytes[1][path]);
        let [user, system] = rates.calls;
        let mut line = format!(
            "{} of the bytes through rings, {} of the calls without a system call",
            part(ring, kernel),
            part(user, system)
        );
        if let Some(sleeps) = sum(rates.sleeps) {
            line += &format!(", {} waits that sleep", short(sleeps));
        }
        lines.push(line);
    }
    lines
}

/// The first of two as a part of both.
fn part(one: f64, other: f64) -> String {
    let both = one + other;
    if both == 0.0 {
        return "-".to_owned();
    }
    format!("{:.1} %", 100.0 * one / both)
}

/// More of a process.
fn draw_program(frame: &mut Frame, area: Rect, program: Option<&Program>, styles: Styles) {
    let Some(program) = program else { return };
    draw_details(
        frame,
        area,
        name(program),
        program_lines(program),
        &program.past,
        styles,
    );
}

fn program_lines(program: &Program) -> Vec<String> {
    let [shared, rdma, plain] = program.connections;
    let rdma = if rdma > 0 {
        format!(", {rdma} by RDMA")
    } else {
        String::new()
    };
    let user = program.uid.map(|uid| format!(" of {}", user::name(uid)));
    let mut lines = vec![format!(
        "a process{}; connections: {shared} in shared memory{rdma}, {plain} on TCP",
        user.unwrap_or_default()
    )];
    if let Some(busy) = program.busy {
        lines.push(format!(
            "it keeps {busy:.2} processors busy, with spinning and all else that it does"
        ));
    }
    if let Some(woken) = program.woken {
        let sleeps = program.sleeps.map_or_else(|| "-".to_owned(), short);
        lines.push(format!(
            "{sleeps} waits for one connection sleep; its peers wake it {} times",
            short(woken)
        ));
    }
    lines
}

/// Lines, and below them what it did in the last looks.
fn draw_details(
    frame: &mut Frame,
    area: Rect,
    title: String,
    lines: Vec<String>,
    past: &Past,
    styles: Styles,
) {
    let block = Block::bordered()
        .title(format!(" {title} "))
        .border_style(styles.weak);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let rows = inside.height.saturating_sub(3);
    let [text, label, bars] =
        [(0, rows), (rows, 1), (rows + 1, 2)].map(|(y, rows)| part_of(inside, y, rows));
    frame.render_widget(sentence(&lines.join("\n")), text);
    let seen = past.iter().take(usize::from(bars.width));
    let most = seen.clone().max().copied().unwrap_or(0);
    let label_text = format!(
        "bytes, both ways, now at the right; most: {}",
        short(most as f64)
    );
    frame.render_widget(Line::styled(label_text, styles.weak), label);
    let line = Sparkline::default()
        .data(seen.copied().collect::<Vec<u64>>())
        .direction(RenderDirection::RightToLeft)
        .style(styles.shared);
    frame.render_widget(line, bars);
}

#[cfg(test)]
mod tests;
