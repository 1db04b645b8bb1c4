//! `shunt reasons`: the catalogue.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use shunt_abi::Reason;

#[derive(Serialize)]
struct Entry {
    number: u8,
    name: &'static str,
    text: &'static str,
}

/// Prints every reason.
pub(crate) fn reasons(json: bool) -> Result<ExitCode> {
    let entries: Vec<_> = Reason::ALL
        .iter()
        .map(|&reason| Entry {
            number: reason as u8,
            name: reason.name(),
            text: reason.text(),
        })
        .collect();
    if json {
        crate::print_json(&entries)?;
    } else {
        let mut text = String::new();
        for Entry {
            number,
            name,
            text: sentence,
        } in entries
        {
            writeln!(text, "{number:>2}  {name:<16} {sentence}")?;
        }
        crate::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
