//! A small unified diff of two texts, by lines.

use std::fmt::Write as _;

const CONTEXT: usize = 3;
/// Enough to see what is wrong.
pub(crate) const MANY: usize = 60;
/// After a hang the rest is only missing.
pub(crate) const FEW: usize = 14;

#[derive(Clone, Copy, PartialEq)]
enum Edit {
    Keep,
    Remove,
    Add,
}

/// At most `most` lines; `None` if the texts are equal.
pub(crate) fn unified(
    old_name: &str,
    new_name: &str,
    old: &str,
    new: &str,
    most: usize,
) -> Option<String> {
    if old == new {
        return None;
    }
    let edits = edits(
        &old.lines().collect::<Vec<_>>(),
        &new.lines().collect::<Vec<_>>(),
    );
    let mut text = format!("--- {old_name}\n+++ {new_name}\n");
    let mut shown = 0;
    let mut last = None;
    for (i, (edit, old_line, line)) in edits.iter().enumerate() {
        let from = i.saturating_sub(CONTEXT);
        let near = &edits[from..(i + CONTEXT + 1).min(edits.len())];
        if near.iter().all(|(e, ..)| *e == Edit::Keep) {
            continue;
        }
        if shown == most {
            let rest = edits[i..].iter().filter(|(e, ..)| *e != Edit::Keep).count();
            let _ = writeln!(text, "… {rest} more lines differ");
            break;
        }
        if last != Some(i.wrapping_sub(1)) {
            let _ = writeln!(text, "@@ line {}", old_line + 1);
        }
        last = Some(i);
        shown += 1;
        let sign = match edit {
            Edit::Keep => ' ',
            Edit::Remove => '-',
            Edit::Add => '+',
        };
        let _ = writeln!(text, "{sign}{line}");
    }
    Some(text)
}

/// Greedy: on a difference, skip to the nearest place where both go on alike.
/// Not minimal, but linear in practice, and these texts mostly agree.
fn edits<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(Edit, usize, &'a str)> {
    let (mut i, mut j) = (0, 0);
    let mut edits = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            edits.push((Edit::Keep, i, old[i]));
            i += 1;
            j += 1;
            continue;
        }
        let (skip_old, skip_new) = resync(&old[i..], &new[j..]);
        edits.extend(
            old[i..i + skip_old]
                .iter()
                .map(|line| (Edit::Remove, i, *line)),
        );
        i += skip_old;
        edits.extend(
            new[j..j + skip_new]
                .iter()
                .map(|line| (Edit::Add, i, *line)),
        );
        j += skip_new;
    }
    edits
}

fn resync(old: &[&str], new: &[&str]) -> (usize, usize) {
    for distance in 1..=(old.len() + new.len()).min(400) {
        for a in 0..=distance.min(old.len()) {
            let b = distance - a;
            if b <= new.len()
                && ((a < old.len() && b < new.len() && old[a] == new[b])
                    || (a == old.len() && b == new.len()))
            {
                return (a, b);
            }
        }
    }
    (old.len(), new.len())
}

#[cfg(test)]
mod tests {
    use super::{MANY, unified};

    #[test]
    fn equal_texts_have_no_diff() {
        assert_eq!(unified("a", "b", "x\ny\n", "x\ny\n", MANY), None);
    }

    #[test]
    fn a_changed_line_is_removed_and_added() {
        let diff = unified("a", "b", "1\n2\n3\n", "1\n9\n3\n", MANY).unwrap();
        assert!(diff.contains("\n 1\n-2\n+9\n 3\n"), "{diff}");
    }

    #[test]
    fn a_missing_tail_is_shown() {
        let diff = unified("a", "b", "1\n2\n3\n", "1\n", MANY).unwrap();
        assert!(diff.contains("-2\n-3\n"), "{diff}");
    }

    #[test]
    fn an_added_line_does_not_spoil_the_rest() {
        let diff = unified(
            "a",
            "b",
            "1\n2\n3\n4\n5\n6\n7\n8\n",
            "0\n1\n2\n3\n4\n5\n6\n7\n8\n",
            MANY,
        )
        .unwrap();
        assert!(
            diff.contains("+0\n 1\n 2\n 3\n") && !diff.contains('8'),
            "{diff}"
        );
    }
}
