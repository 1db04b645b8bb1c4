//! `shunt reasons`: the catalogue.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use shunt_abi::Reason;

use crate::why::advice;

#[derive(Serialize)]
struct Entry {
    number: u8,
    name: &'static str,
    text: &'static str,
    /// What to do, if anything can be done.
    advice: Option<&'static str>,
}

/// The reason of this name, in whatever case.
pub(crate) fn named(name: &str) -> Result<Reason, String> {
    let known = |reason: &&Reason| reason.name().eq_ignore_ascii_case(name);
    let found = Reason::ALL.iter().find(known).copied();
    found.ok_or_else(|| "no such reason: `shunt reasons` lists all".into())
}

/// Prints every reason, or these with what to do.
pub(crate) fn reasons(wanted: &[Reason], json: bool) -> Result<ExitCode> {
    let all = wanted.is_empty();
    let shown = if all { Reason::ALL } else { wanted };
    let entries: Vec<_> = shown
        .iter()
        .map(|&reason| Entry {
            number: reason as u8,
            name: reason.name(),
            text: reason.text(),
            advice: advice::of(reason),
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
            advice,
        } in entries
        {
            writeln!(text, "{number:>2}  {name:<16} {sentence}")?;
            if let (false, Some(advice)) = (all, advice) {
                writeln!(text, "    -> {advice}")?;
            }
        }
        crate::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
