//! What callgrind writes (its manual, "Callgrind Format Specification").

use anyhow::{Context, Result};
use std::collections::{BTreeMap, HashMap};

/// Only this counts: not the program that calls, nor libc.
const OBJECT: &str = "/libshunt.so";
/// What the compiler has inlined of the standard library.
const STANDARD: &str = "(inlined from core)";
/// Assembly, and what has no line numbers.
const UNKNOWN: &str = "(assembly)";

/// The name of a dump, and the instructions of our library by source file.
pub(super) fn read(text: &str) -> Result<(String, BTreeMap<String, u64>)> {
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("desc: Trigger: Client Request: "))
        .context("a dump without a name")?;
    let (mut objects, mut files) = (HashMap::new(), HashMap::new());
    let (mut ours, mut file) = (false, String::new());
    let mut counts = BTreeMap::new();
    let mut inclusive = false;
    for line in text.lines() {
        match line.split_once('=') {
            Some(("ob", object)) => ours = resolve(&mut objects, object).ends_with(OBJECT),
            Some(("cob", object)) => {
                resolve(&mut objects, object);
            }
            Some(("fl" | "fi" | "fe", name)) => file = short(&resolve(&mut files, name)),
            Some(("cfi" | "cfl", name)) => {
                resolve(&mut files, name);
            }
            // The next line says what the called function has cost.
            Some(("calls", _)) => inclusive = true,
            Some(_) => {}
            None if !line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) => {}
            None if inclusive => inclusive = false,
            None if ours => {
                let cost = line.split_whitespace().nth(1).unwrap_or("0");
                *counts.entry(file.clone()).or_insert(0) += cost.parse::<u64>()?;
            }
            None => {}
        }
    }
    Ok((name.to_owned(), counts))
}

/// `(3) name` gives number 3 its name, `(3)` means it.
fn resolve(names: &mut HashMap<String, String>, text: &str) -> String {
    match text.split_once(") ") {
        Some((number, name)) => {
            names.insert(number.to_owned(), name.to_owned());
            name.to_owned()
        }
        None => names
            .get(text.trim_end_matches(')'))
            .cloned()
            .unwrap_or_default(),
    }
}

fn short(path: &str) -> String {
    match path.split_once("/crates/") {
        Some((_, ours)) => ours.replace("/src/", "/"),
        None if path.contains("/library/") => STANDARD.to_owned(),
        None => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_library_itself_is_counted() {
        let text = "desc: Trigger: Client Request: send\n\
            ob=(1) /x/calls\nfl=(1) ???\nfn=(1) main\n0 9\n\
            ob=(2) /x/libshunt.so\nfl=(2) /x/crates/a/src/b.rs\nfn=(2) send\n7 40\n\
            fi=(3) /r/library/core/x.rs\n+1 5\nfe=(2)\n* 2\n\
            cob=(1)\ncfi=(1)\ncfn=(1)\ncalls=1 0\n9 1000\n";
        let (name, counts) = read(text).unwrap();
        assert_eq!(name, "send");
        let wanted = [("a/b.rs".to_owned(), 42), (STANDARD.to_owned(), 5)];
        assert_eq!(counts, BTreeMap::from(wanted));
    }
}
