//! Users of processes, and their names as `/etc/passwd` has them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, PoisonError};

/// The user of a process that can be seen.
pub(crate) fn of_process(pid: u32) -> Option<u32> {
    let about = std::fs::metadata(format!("/proc/{pid}")).ok()?;
    Some(about.uid())
}

/// The user with this name or number.
pub(crate) fn number(user: &str) -> Option<u32> {
    let numeric = user.parse().ok();
    numeric.or_else(|| {
        entries(&passwd())
            .find(|(name, _)| *name == user)
            .map(|e| e.1)
    })
}

/// A user's name, or else the number. The file is read once for each user.
pub(crate) fn name(uid: u32) -> String {
    static NAMES: Mutex<Option<HashMap<u32, String>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    names.entry(uid).or_insert_with(|| named(uid)).clone()
}

fn named(uid: u32) -> String {
    let passwd = passwd();
    let found = entries(&passwd).find(|entry| entry.1 == uid);
    found.map_or_else(|| uid.to_string(), |(name, _)| name.to_owned())
}

fn passwd() -> String {
    let bytes = std::fs::read("/etc/passwd").unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `NAME:PASSWORD:UID:...` per line.
fn entries(passwd: &str) -> impl Iterator<Item = (&str, u32)> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name, fields.nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let found: Vec<_> = entries("root:x:0:0::/:\n:x:1\nbad\nx:y:z\na:x:7").collect();
        assert_eq!(found, [("root", 0), ("a", 7)]);
    }

    #[test]
    fn a_user_without_a_name_has_a_number() {
        assert_eq!(name(4_000_000), "4000000");
        assert_eq!(number("4000000"), Some(4_000_000));
        assert_eq!(number("no such user"), None);
    }
}
