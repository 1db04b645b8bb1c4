//! The columns of both tables.

use super::look::{Flow, Program, Rates};
use super::sheet::{Column, On, Value};
use crate::ss::table::who_where;
use crate::user;

/// Columns of the screen from which on it is wide.
pub(super) const WIDE: u16 = 160;
/// No address is wider.
pub(super) const WIDEST: u16 = 47;

/// Bytes of a connection per second.
pub(super) const CONNECTIONS_BY: usize = 5;
/// Bytes that a process sends per second.
pub(super) const PROCESSES_BY: usize = 6;

pub(super) const CONNECTIONS: &[Column<Flow>] = &[
    Column::left("LOCAL", None, On::Each, |flow| {
        Value::Address(flow.connection.local)
    }),
    Column::left("PEER", None, On::Each, |flow| {
        Value::Address(flow.connection.peer)
    }),
    Column::left("SERVER", None, On::Wide, |flow| end(flow, "server")),
    Column::left("CLIENT", None, On::Wide, |flow| end(flow, "client")),
    Column::left("PATH", Some(4), On::Each, |flow| {
        Value::Text(flow.connection.path.to_owned())
    }),
    Column::right("BYTES", 5, On::Wide, |flow| {
        rate(flow, |rates| Some(rates.both()))
    }),
    Column::right("TO-CLIENT", 9, On::Each, |flow| {
        rate(flow, |rates| Some(rates.way(0)))
    }),
    Column::right("TO-SERVER", 9, On::Each, |flow| {
        rate(flow, |rates| Some(rates.way(1)))
    }),
    Column::right("MSGS", 5, On::Narrow, |flow| {
        rate(flow, |rates| both(rates.messages))
    }),
    Column::right("MSGS-TO-C", 9, On::Wide, |flow| {
        rate(flow, |rates| rates.messages[0])
    }),
    Column::right("MSGS-TO-S", 9, On::Wide, |flow| {
        rate(flow, |rates| rates.messages[1])
    }),
    Column::right("SLEEP", 5, On::Each, |flow| {
        rate(flow, |rates| sum(rates.sleeps))
    }),
    Column::right("AGE", 6, On::Wide, |flow| {
        Value::Age(flow.connection.age_seconds)
    }),
    Column::left("REASON", Some(16), On::Wide, |flow| {
        Value::Text(
            flow.connection
                .reason
                .clone()
                .unwrap_or_default()
                .into_owned(),
        )
    }),
];

pub(super) const PROCESSES: &[Column<Program>] = &[
    Column::left("PROCESS", None, On::Each, |program| {
        Value::Text(name(program))
    }),
    Column::left("USER", Some(12), On::Wide, |program| {
        Value::Text(program.uid.map(user::name).unwrap_or_default())
    }),
    Column::right("SHM", 5, On::Each, |program| {
        Value::Count(program.connections[0])
    }),
    Column::right("RDMA", 5, On::Wide, |program| {
        Value::Count(program.connections[1])
    }),
    Column::right("TCP", 5, On::Each, |program| {
        Value::Count(program.connections[2])
    }),
    Column::right("CPU", 5, On::Each, |program| Value::Percent(program.busy)),
    Column::right("SENT", 8, On::Each, |program| {
        Value::Number(program.bytes.map(|bytes| bytes[0]))
    }),
    Column::right("RECEIVED", 8, On::Each, |program| {
        Value::Number(program.bytes.map(|bytes| bytes[1]))
    }),
    Column::right("MSGS", 5, On::Narrow, |program| {
        Value::Number(both(program.messages))
    }),
    Column::right("MSGS-SENT", 9, On::Wide, |program| {
        Value::Number(program.messages[0])
    }),
    Column::right("MSGS-RECEIVED", 13, On::Wide, |program| {
        Value::Number(program.messages[1])
    }),
    Column::right("SLEEP", 5, On::Each, |program| {
        Value::Number(program.sleeps)
    }),
    Column::right("WOKEN", 5, On::Each, |program| Value::Number(program.woken)),
];

fn rate(flow: &Flow, of: fn(&Rates) -> Option<f64>) -> Value {
    Value::Number(flow.rates.as_ref().and_then(of))
}

fn both([one, other]: [Option<f64>; 2]) -> Option<f64> {
    Some(one? + other?)
}

/// Of what is known.
pub(super) fn sum(parts: [Option<f64>; 2]) -> Option<f64> {
    parts.into_iter().flatten().reduce(|one, other| one + other)
}

/// A process for people.
pub(super) fn name(program: &Program) -> String {
    let who = &program.who;
    who_where(&who.comm, who.pid, who.container.as_deref())
}

fn end(flow: &Flow, end: &str) -> Value {
    let processes = &flow.connection.processes;
    let found = processes.iter().find(|process| process.end == end);
    Value::Text(found.map_or_else(
        || "-".to_owned(),
        |p| who_where(&p.comm, p.pid, p.container.as_deref()),
    ))
}
