//! Screens as text.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use shunt_abi::Reason;
use shunt_abi::detail::Detail;
use shunt_abi::message::{FLAG_REACHES, FLAG_SHUNTED, Kind, Message};

use super::super::look::{Look, Used, Who};
use super::super::model::{Action, Model};
use super::{Styles, draw};
use crate::ss::connection::connection;

/// A connection of two processes.
fn row(family: i32, port: u16, client: u16, names: [&str; 2]) -> Message {
    let mut row = Message::new(Kind::Row);
    row.family = family as u16;
    match family {
        libc::AF_INET => {
            row.addresses = [[127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]; 2];
        }
        _ => {
            row.addresses = [std::net::Ipv6Addr::LOCALHOST.octets(), [0xfd; 16]];
        }
    }
    row.ports = [port, client];
    row.pids = [u32::from(port), u32::from(client)];
    row.name[..names[0].len()].copy_from_slice(names[0].as_bytes());
    row.peer_name[..names[1].len()].copy_from_slice(names[1].as_bytes());
    row
}

/// What is there after `second` seconds: one connection that moves much through a ring, one on TCP,
/// and one that does nothing.
fn look(start: Instant, second: u64) -> Look {
    let mut busy = row(libc::AF_INET, 6379, 40_000, ["redis-server", "redis-bench"]);
    busy.flags = FLAG_SHUNTED;
    busy.bytes = [[1_250_000_000 * second, 1000], [30_000 * second, 0]];
    let mut plain = row(libc::AF_INET, 80, 40_001, ["nginx", ""]);
    plain.status = Reason::PeerPlain as u8;
    plain.pids[1] = 0;
    plain.bytes[0][1] = 2_500 * second * second;
    let mut idle = row(libc::AF_INET6, 5432, 40_002, ["postgres", "psql"]);
    idle.flags = FLAG_SHUNTED;
    let details = [busy, plain, idle].map(|row| {
        let mut detail = Detail::unknown();
        detail.age = 3661;
        for (end, pid) in detail.ends.iter_mut().zip(row.pids) {
            (end.uid, end.counted) = (0, u8::from(pid != 0));
        }
        if row.ports[0] == 6379 {
            detail.ends[0].sent = [99_000 * second, 1_000 * second];
            detail.ends[1].sent = [100_000 * second, 0];
            detail.ends[1].sleeps = 4 * second;
            detail.ends[0].wakeups[1] = 12 * second;
            detail.ends[0].queued = 77;
        }
        connection(&row, Some(&detail))
    });
    let server = Who {
        comm: "redis-server".into(),
        pid: Some(6379),
        container: None,
    };
    let used = Used {
        woken: Some(12 * second),
        worked: Some(0.93 * second as f64),
    };
    Look {
        at: start + Duration::from_secs(second),
        glances: Vec::new(),
        connections: details.into(),
        processes: HashMap::from([(server, used)]),
    }
}

/// After five looks.
fn model(words: &str) -> Model {
    let mut model = Model::new(words.to_owned()).unwrap();
    let start = Instant::now();
    for second in 0..5 {
        model.look(Ok(look(start, second)));
    }
    model
}

fn press(model: &mut Model, keys: &[KeyCode]) {
    for code in keys {
        let action = model.key(KeyEvent::new(*code, KeyModifiers::NONE));
        assert_eq!(action, Action::None, "{code:?}");
    }
}

fn terminal(model: &mut Model, width: u16, height: u16, colours: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(frame, model, Styles::new(colours)))
        .unwrap();
    terminal
}

fn screen(model: &mut Model, width: u16, height: u16) -> String {
    let terminal = terminal(model, width, height, false);
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width.max(1))).map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// Compares with what is written down.
fn check(shown: &str, name: &str, expected: &str) {
    assert!(shown == expected, "{name} and not\n{expected}is\n{shown}");
}

#[test]
fn connections_at_80_columns() {
    let shown = screen(&mut model(""), 80, 24);
    check(
        &shown,
        "connections-80.txt",
        include_str!("connections-80.txt"),
    );
}

#[test]
fn connections_at_200_columns() {
    let shown = screen(&mut model(""), 200, 24);
    check(
        &shown,
        "connections-200.txt",
        include_str!("connections-200.txt"),
    );
}

#[test]
fn processes_at_80_columns() {
    let mut model = model("");
    press(&mut model, &[KeyCode::Tab]);
    let shown = screen(&mut model, 80, 24);
    check(&shown, "processes-80.txt", include_str!("processes-80.txt"));
}

#[test]
fn processes_at_200_columns() {
    let mut model = model("");
    press(&mut model, &[KeyCode::Tab]);
    let shown = screen(&mut model, 200, 24);
    check(
        &shown,
        "processes-200.txt",
        include_str!("processes-200.txt"),
    );
}

#[test]
fn connections_by_rdma_are_not_in_shared_memory() {
    let mut model = Model::new(String::new()).unwrap();
    let start = Instant::now();
    for second in 0..2 {
        let mut row = row(libc::AF_INET, 6379, 40_000, ["redis-server", "redis-bench"]);
        row.flags = FLAG_SHUNTED | FLAG_REACHES;
        row.bytes[0][0] = 1000 * second;
        model.look(Ok(Look {
            at: start + Duration::from_secs(second),
            glances: Vec::new(),
            connections: vec![connection(&row, None)],
            processes: HashMap::new(),
        }));
    }
    press(&mut model, &[KeyCode::Tab]);
    let shown = screen(&mut model, 200, 24);
    for part in [
        "shm 0: 0B/s  rdma 1: 1.00kB/s  tcp 0: 0B/s",
        "connections: 0 in shared memory, 1 by RDMA, 0 on TCP",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    let row = shown.lines().find(|line| line.starts_with("redis-server/"));
    let words: Vec<_> = row.unwrap().split_whitespace().collect();
    assert_eq!(words[1..4], ["0", "1", "0"], "{shown}");
}

#[test]
fn a_filter_is_written_applied_and_corrected() {
    let mut model = model("");
    let write = |model: &mut Model, text: &str| {
        let keys: Vec<_> = text.chars().map(KeyCode::Char).collect();
        press(model, &keys);
    };
    write(&mut model, "/path = tpc");
    press(&mut model, &[KeyCode::Enter]);
    let shown = screen(&mut model, 80, 24);
    let last = shown.lines().last().unwrap();
    assert_eq!(last, "/path = tpc  \"tpc\" is not a path: shm, rdma or tcp");
    // What was shown stays until there is a filter.
    assert!(shown.contains(":6379"), "{shown}");
    press(&mut model, &[KeyCode::Backspace; 2]);
    write(&mut model, "cp");
    press(&mut model, &[KeyCode::Enter]);
    let shown = screen(&mut model, 80, 24);
    assert!(shown.contains("; 1 of 3 with path = tcp"), "{shown}");
    assert!(
        shown.contains(":80 ") && !shown.contains(":6379"),
        "{shown}"
    );
    // The processes are those that have an end of what is shown.
    press(&mut model, &[KeyCode::Tab]);
    let shown = screen(&mut model, 80, 24);
    assert!(
        shown.contains("nginx/80") && !shown.contains("redis"),
        "{shown}"
    );
    // Given up: as it was.
    write(&mut model, "/x");
    press(&mut model, &[KeyCode::Esc]);
    assert_eq!(screen(&mut model, 80, 24), shown);
    write(&mut model, "/ and pid = 1");
    press(&mut model, &[KeyCode::Enter]);
    let shown = screen(&mut model, 80, 24);
    assert!(shown.contains("The filter shows none of 5."), "{shown}");
}

#[test]
fn the_first_filter_may_be_wrong() {
    let wrong = Model::new("port = 80".to_owned()).err().unwrap();
    assert!(wrong.starts_with("\"port\" is no filter"), "{wrong}");
}

/// The first cells of the rows.
fn rows(model: &mut Model) -> Vec<String> {
    let shown = screen(model, 80, 10);
    let rows = shown.lines().skip(3).take(3);
    let firsts = rows.map(|row| row.split(' ').next().unwrap_or_default());
    firsts.map(str::to_owned).collect()
}

#[test]
fn rows_are_sorted_by_any_column_either_way() {
    let mut model = model("");
    let [redis, nginx, postgres] = ["127.0.0.1:6379", "127.0.0.1:80", "[::1]:5432"];
    assert_eq!(rows(&mut model), [redis, nginx, postgres]);
    press(&mut model, &[KeyCode::Char('r')]);
    assert_eq!(rows(&mut model), [postgres, nginx, redis]);
    // By path.
    press(&mut model, &[KeyCode::Left]);
    assert_eq!(rows(&mut model), [redis, postgres, nginx]);
    // By the accepting end: addresses are no words.
    press(&mut model, &[KeyCode::Char('<'); 4]);
    assert_eq!(rows(&mut model), [nginx, redis, postgres]);
    // By the reason.
    press(&mut model, &[KeyCode::Left, KeyCode::Char('r')]);
    assert_eq!(rows(&mut model), [nginx, redis, postgres]);
}

#[test]
fn what_was_selected_stays_so_wherever_it_goes() {
    let mut model = model("");
    let selected = |model: &Model| {
        let flow = model.flows.selected();
        flow.map(|flow| flow.connection.local.port())
    };
    assert_eq!(selected(&model), Some(6379));
    press(&mut model, &[KeyCode::Down]);
    assert_eq!(selected(&model), Some(80));
    press(
        &mut model,
        &[KeyCode::Char('r'), KeyCode::Left, KeyCode::Right],
    );
    assert_eq!(selected(&model), Some(80));
    press(&mut model, &[KeyCode::End, KeyCode::Down]);
    assert_eq!(selected(&model), Some(5432));
    // Nobody has chosen the first one: it is whatever comes first.
    press(&mut model, &[KeyCode::Home, KeyCode::Char('r')]);
    assert_eq!(selected(&model), Some(5432));
    press(&mut model, &[KeyCode::Char('r')]);
    assert_eq!(selected(&model), Some(6379));
}

#[test]
fn the_screen_follows_what_is_selected() {
    let mut model = model("");
    let mut shown = |keys: &[KeyCode]| {
        press(&mut model, keys);
        let shown = screen(&mut model, 80, 5);
        shown.lines().nth(3).unwrap_or_default().to_owned()
    };
    assert!(shown(&[]).starts_with("127.0.0.1:6379"));
    assert!(shown(&[KeyCode::End]).starts_with("[::1]:5432"));
    assert!(shown(&[KeyCode::PageUp]).starts_with("127.0.0.1:6379"));
}

#[test]
fn without_a_daemon_it_says_so_and_goes_on() {
    let mut model = model("");
    model.look(Err(anyhow::anyhow!("no shuntd answers")));
    let shown = screen(&mut model, 80, 24);
    assert!(shown.contains("\nno shuntd answers\n"), "{shown}");
    assert!(!shown.contains("6379"), "{shown}");
    // One has come: rates take two looks.
    model.look(Ok(look(Instant::now(), 7)));
    let shown = screen(&mut model, 80, 10);
    let row = shown.lines().find(|line| line.contains(":6379")).unwrap();
    assert!(row.ends_with("-     -     -"), "{shown}");
}

#[test]
fn no_connection_is_no_silence() {
    let mut model = Model::new(String::new()).unwrap();
    let mut nothing = look(Instant::now(), 0);
    nothing.connections.clear();
    model.look(Ok(nothing));
    let shown = screen(&mut model, 80, 24);
    assert!(shown.contains("No program under Shunt has a connection."));
}

#[test]
fn keys_end_stop_and_hide() {
    let mut model = model("");
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    let quit = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
    assert_eq!(model.key(quit), Action::Quit);
    assert_eq!(model.key(control('z')), Action::Stop);
    press(&mut model, &[KeyCode::Enter]);
    assert!(!screen(&mut model, 80, 24).contains("accepted by"));
    // While a filter is written, a letter is a letter.
    press(&mut model, &[KeyCode::Char('/'), KeyCode::Char('q')]);
    assert_eq!(model.key(control('u')), Action::None);
    assert_eq!(model.draft.as_deref(), Some(""));
    assert_eq!(model.key(control('c')), Action::Quit);
}

#[test]
fn colours_are_there_unless_unwanted() {
    let has_colours = |colours| {
        let terminal = terminal(&mut model(""), 80, 24, colours);
        let mut cells = terminal.backend().buffer().content().iter();
        cells.any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(has_colours(true));
    assert!(!has_colours(false));
}

#[test]
fn a_screen_may_have_any_size_and_another_one_later() {
    let states: [fn(&mut Model); 4] = [
        |_| (),
        |model| press(model, &[KeyCode::Tab, KeyCode::End]),
        |model| press(model, &[KeyCode::Char('/'), KeyCode::Char('x')]),
        |model| model.look(Err(anyhow::anyhow!("no shuntd answers"))),
    ];
    for state in states {
        let mut model = model("");
        state(&mut model);
        let before = screen(&mut model, 80, 24);
        for width in [0, 1, 2, 3, 5, 9, 20, 40] {
            for height in [0, 1, 2, 3, 4, 5, 17, 18] {
                screen(&mut model, width, height);
            }
        }
        assert_eq!(screen(&mut model, 80, 24), before);
    }
}
