//! Connections and listeners as text: one line each, or two on a narrow terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::connection::{Connection, Counts, Listener, Process, Way};
use crate::user;

/// How to write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Style {
    /// Columns that there are; `None`: as many as are needed.
    pub(crate) width: Option<usize>,
    /// Counters and the reason's sentence, too.
    pub(crate) info: bool,
    /// No line of titles.
    pub(crate) bare: bool,
    /// All of a connection in one line, however long.
    pub(crate) one_line: bool,
    /// Behind the table: what its reasons mean.
    pub(crate) legend: bool,
}

const TITLES: [&str; 8] = [
    "LOCAL",
    "PEER",
    "SERVER",
    "CLIENT",
    "PATH",
    "TO-CLIENT",
    "TO-SERVER",
    "REASON",
];
/// On a narrow terminal the first line of an entry has these columns, and the others follow.
const FIRST: [usize; 4] = [0, 1, 4, 7];

/// The cells of a line, and what follows them if counters are shown.
struct Entry {
    cells: [String; 8],
    info: Option<String>,
}

/// Columns as wide as their contents: connections, and listeners if there are any.
pub(crate) fn table(connections: &[Connection], listeners: &[Listener], style: Style) -> String {
    let entries = connections.iter().map(|c| Entry {
        cells: cells(c),
        info: style.info.then(|| info(c)),
    });
    let listeners = listeners.iter().map(|l| Entry {
        cells: listener_cells(l),
        info: None,
    });
    let entries: Vec<_> = entries.chain(listeners).collect();
    let titles = (!style.bare).then(|| TITLES.map(str::to_owned));
    let mut widths = [0; 8];
    for row in titles
        .iter()
        .chain(entries.iter().map(|entry| &entry.cells))
    {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let needed = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
    let narrow = !style.one_line && style.width.is_some_and(|width| needed > width);
    let mut text = String::new();
    if let Some(titles) = &titles {
        text += &line(titles, &widths, narrow.then_some(&FIRST[..]));
        text.push('\n');
    }
    for Entry { cells, info } in &entries {
        text += &line(cells, &widths, narrow.then_some(&FIRST[..]));
        if narrow {
            let [_, _, server, client, _, to_client, to_server, _] = cells;
            let _ = write!(text, "\n    {server} <- {client}  {to_client} {to_server}");
        }
        if let Some(info) = info {
            text += if style.one_line { "  " } else { "\n    " };
            text += info;
        }
        text.push('\n');
    }
    if style.legend {
        text += &legend(connections);
    }
    text
}

fn line(cells: &[String; 8], widths: &[usize; 8], shown: Option<&[usize]>) -> String {
    let shown = shown.unwrap_or(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let padded = shown
        .iter()
        .map(|&i| format!("{:<width$}", cells[i], width = widths[i]));
    let cells: Vec<_> = padded.collect();
    cells.join("  ").trim_end().to_owned()
}

/// A name is whatever a program calls itself.
pub(crate) fn printable(comm: &str) -> String {
    comm.replace(|ch: char| ch.is_control(), "?")
}

/// A process for people.
pub(crate) fn who(comm: &str, pid: Option<u32>) -> String {
    let pid = pid.map_or("?".to_owned(), |pid| pid.to_string());
    format!("{}/{pid}", printable(comm))
}

/// The same with its container.
pub(crate) fn who_where(comm: &str, pid: Option<u32>, container: Option<&str>) -> String {
    let container = container.map_or(String::new(), |name| format!("@{}", printable(name)));
    who(comm, pid) + &container
}

fn none() -> String {
    "-".to_owned()
}

fn cells(c: &Connection) -> [String; 8] {
    let process = |end| {
        let found = c.processes.iter().find(|process| process.end == end);
        found.map_or_else(none, |p| who_where(&p.comm, p.pid, p.container.as_deref()))
    };
    // Through rings + through the kernel.
    let bytes = |way: Way| format!("{}+{}", way.ring, way.kernel);
    [
        c.local.to_string(),
        c.peer.to_string(),
        process("server"),
        process("client"),
        c.path.to_owned(),
        bytes(c.bytes.to_client),
        bytes(c.bytes.to_server),
        c.reason.clone().unwrap_or_default().into_owned(),
    ]
}

fn listener_cells(l: &Listener) -> [String; 8] {
    [
        l.local.to_string(),
        "*".to_owned(),
        who_where(&l.comm, l.pid, l.container.as_deref()),
        none(),
        "listen".to_owned(),
        none(),
        none(),
        String::new(),
    ]
}

/// As `ss -i`: names and values.
fn info(c: &Connection) -> String {
    let mut text = format!("age:{}", c.age_seconds.map_or_else(none, age));
    if let Some(queue) = c.queue {
        let _ = write!(
            text,
            " queue-to-client:{} queue-to-server:{}",
            queue.to_client, queue.to_server
        );
    }
    if let Some(left) = &c.left {
        let _ = write!(
            text,
            " to-tcp:{} last:{} for:{}",
            left.times,
            age(left.seconds_ago),
            left.reason.as_deref().unwrap_or("-")
        );
    }
    for process in &c.processes {
        text += &end_info(process, c.path);
    }
    if let Some(why) = c.why {
        let _ = write!(text, " why:\"{why}\"");
    }
    text
}

fn end_info(process: &Process, path: &str) -> String {
    // A daemon that is older tells nothing of it.
    let Some(uid) = process.uid else {
        return String::new();
    };
    let user = printable(&user::name(uid));
    // An end says whether it is shunted. It may not have noticed yet that the other one is not.
    let shunted = if path == "rdma" { path } else { "shm" };
    let own = process.reason.as_deref().unwrap_or(shunted);
    let mut text = format!(" {}:(user:{user} says:{own}", process.end);
    if let Some(Counts {
        sent,
        received,
        sleeps,
        wakeups_sent,
        wakeups_received,
    }) = &process.counts
    {
        let _ = write!(
            text,
            " sent:{}+{} received:{}+{} sleeps:{sleeps} wakeups:{wakeups_sent}/{wakeups_received}",
            sent.user, sent.kernel, received.user, received.kernel
        );
    }
    text + ")"
}

/// A duration in its two largest units.
pub(crate) fn age(seconds: u32) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, m) => format!("{m}m{:02}s", seconds % 60),
        (0, h, m) => format!("{h}h{:02}m", m % 60),
        (d, h, _) => format!("{d}d{:02}h", h % 24),
    }
}

/// The sentence of each reason that occurs.
fn legend(connections: &[Connection]) -> String {
    let known = connections
        .iter()
        .filter_map(|c| Some((c.reason.as_deref()?, c.why?)));
    let reasons: BTreeMap<_, _> = known.collect();
    let mut text = String::new();
    for (name, why) in reasons {
        let _ = write!(text, "\n{name}: {why}");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{detail, row};
    use super::super::connection::{connection, listener};
    use super::*;
    use shunt_abi::Reason;
    use shunt_abi::message::{FLAG_REACHES, FLAG_SHUNTED};

    #[test]
    fn the_table_names_reasons_and_prints_no_control_characters() {
        let (mut known, mut newer) = (row(), row());
        (known.status, newer.status) = (Reason::PeerPlain as u8, 200);
        let text = table(
            &[connection(&known, None), connection(&newer, None)],
            &[listener(&known, |_| None)],
            Style::default(),
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "127.0.0.1:6379  127.0.0.1:40000  re?is/7  -       tcp     7+1        0+0        PEER_PLAIN"
        );
        assert!(lines[2].ends_with("REASON_200"));
        newer.set_container(0, b"0123456789ab\0\0\0\0");
        let contained = table(&[connection(&newer, None)], &[], Style::default());
        assert!(
            contained.contains("  re?is/7@0123456789ab  "),
            "{contained}"
        );
        assert_eq!(
            lines[3],
            "127.0.0.1:6379  *                re?is/7  -       listen  -          -"
        );
    }

    /// A connection on each path, and a listener.
    fn written(style: Style) -> String {
        let (mut shm, mut tcp) = (row(), row());
        (shm.flags, shm.pids[1]) = (FLAG_SHUNTED, 8);
        shm.peer_name[..3].copy_from_slice(b"cli");
        tcp.status = Reason::PeerPlain as u8;
        let connections = [connection(&shm, Some(&detail())), connection(&tcp, None)];
        table(&connections, &[listener(&tcp, |_| None)], style)
    }

    #[test]
    fn a_narrow_terminal_gets_two_lines_for_each() {
        let style = Style {
            width: Some(80),
            ..Style::default()
        };
        let narrow = "\
LOCAL           PEER             PATH    REASON
127.0.0.1:6379  127.0.0.1:40000  shm
    re?is/7 <- cli/8  7+1 0+0
127.0.0.1:6379  127.0.0.1:40000  tcp     PEER_PLAIN
    re?is/7 <- -  7+1 0+0
127.0.0.1:6379  *                listen
    re?is/7 <- -  - -
";
        assert_eq!(written(style), narrow);
        let wide = "\
LOCAL           PEER             SERVER   CLIENT  PATH    TO-CLIENT  TO-SERVER  REASON
127.0.0.1:6379  127.0.0.1:40000  re?is/7  cli/8   shm     7+1        0+0
127.0.0.1:6379  127.0.0.1:40000  re?is/7  -       tcp     7+1        0+0        PEER_PLAIN
127.0.0.1:6379  *                re?is/7  -       listen  -          -
";
        assert_eq!(written(Style::default()), wide);
        for same in [
            Style {
                width: Some(200),
                ..style
            },
            Style {
                one_line: true,
                ..style
            },
        ] {
            assert_eq!(written(same), wide, "{same:?}");
        }
    }

    #[test]
    fn counters_follow_each_connection() {
        let style = Style {
            info: true,
            bare: true,
            ..Style::default()
        };
        let text = written(style);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "    age:1h01m queue-to-client:9 queue-to-server:0 \
             server:(user:root says:shm sent:3+1 received:2+0 sleeps:4 wakeups:5/6) \
             client:(user:4000000 says:shm sent:3+1 received:2+0 sleeps:4 wakeups:5/6)"
        );
        let why = Reason::PeerPlain.text();
        assert_eq!(lines[3], format!("    age:- why:\"{why}\""));
        assert_eq!(lines.len(), 5, "{text}");
        let one_line = written(Style {
            one_line: true,
            ..style
        });
        assert_eq!(one_line.lines().count(), 3, "{one_line}");
    }

    #[test]
    fn an_end_by_rdma_says_so() {
        let mut rdma = row();
        rdma.flags = FLAG_SHUNTED | FLAG_REACHES;
        let text = info(&connection(&rdma, Some(&detail())));
        assert!(text.contains("server:(user:root says:rdma "), "{text}");
    }

    #[test]
    fn a_legend_explains_each_reason_once() {
        let text = written(Style {
            legend: true,
            ..Style::default()
        });
        let (_, legend) = text.split_once("\n\n").unwrap();
        assert_eq!(
            legend,
            format!("PEER_PLAIN: {}\n", Reason::PeerPlain.text())
        );
    }

    #[test]
    fn ages_have_two_units() {
        let shown = [0, 59, 60, 3599, 3661, 86_399, 90_000].map(age);
        let expected = ["0s", "59s", "1m00s", "59m59s", "1h01m", "23h59m", "1d01h"];
        assert_eq!(shown, expected);
    }
}
