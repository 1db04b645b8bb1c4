//! What must hold of each section, and the summary.

use super::watch::Section;
use crate::setup::INSTALL;
use std::time::Duration;

/// The demo's table.
const ROWS: usize = 8;
/// A first run, with installation and build; and one when all is built.
const FIRST: Duration = Duration::from_secs(180);
const BUILT: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_secs(5);

/// Prints a line for each section and what does not hold; whether all does.
pub(super) fn report(place: &str, sections: &[Section]) -> bool {
    let mut good = !sections.is_empty();
    println!("\n{place}:");
    for section in sections {
        println!(
            "  {}: {:.1} s ({}), longest silence {:.1} s, last line: {}",
            section.name,
            section.took.as_secs_f64(),
            section.cpu,
            section.silence.as_secs_f64(),
            section.lines.last().map_or("", String::as_str)
        );
        for line in section
            .lines
            .iter()
            .filter(|line| line.starts_with("skipped: "))
        {
            println!("    {line}");
        }
        for fault in faults(section) {
            println!("    WRONG: {fault}");
            good = false;
        }
    }
    good
}

fn faults(section: &Section) -> Vec<String> {
    let mut faults = Vec::new();
    let missing = section.name.ends_with("missing");
    if (section.status == Some(0)) == missing {
        faults.push(format!("exit status {:?}", section.status));
    }
    if missing
        && !section
            .lines
            .iter()
            .any(|line| line.trim().starts_with(INSTALL))
    {
        faults.push("it does not say what to install".into());
    }
    if section.name.starts_with("demo") && section.silence > SILENCE {
        faults.push("silent for too long".into());
    }
    if section.name.starts_with("demo") && !missing {
        let limit = if section.name.ends_with("built") {
            BUILT
        } else {
            FIRST
        };
        if section.took > limit {
            faults.push(format!("longer than {} s", limit.as_secs()));
        }
        faults.extend(rows(&section.lines));
    }
    if section.name == "test" && !last_counts(&section.lines) {
        faults.push("the last line does not count".into());
    }
    faults
}

/// Each row tells a share of at least 99 %, or why it is less.
fn rows(lines: &[String]) -> Vec<String> {
    let shares: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("| ") && line.contains('%'))
        .map(|line| {
            (
                line,
                line.trim_end_matches(" |")
                    .rsplit("| ")
                    .next()
                    .unwrap_or_default(),
            )
        })
        .collect();
    let mut faults = Vec::new();
    if shares.len() != ROWS {
        faults.push(format!("{} rows instead of {ROWS}", shares.len()));
    }
    for (line, last) in shares {
        let share = last
            .split(' ')
            .next()
            .and_then(|word| word.parse::<f64>().ok());
        if share.is_none_or(|share| share < 99.0) && !last.contains(';') {
            faults.push(format!("no cause: {line}"));
        }
    }
    faults
}

fn last_counts(lines: &[String]) -> bool {
    let words: Vec<_> = lines
        .last()
        .map_or(Vec::new(), |line| line.split(", ").collect());
    let counts = |index: usize, what: &str| {
        let word: Option<&&str> = words.get(index);
        word.and_then(|word| word.split_once(' '))
            .is_some_and(|(count, name)| count.parse::<u32>().is_ok() && name == what)
    };
    words.len() == 3 && counts(0, "passed") && counts(1, "failed") && counts(2, "skipped")
}

#[cfg(test)]
mod tests {
    use super::{last_counts, rows};

    #[test]
    fn a_row_below_99_needs_a_cause() {
        let good = "| redis | 1 | 2 | 2.00× | 1.0 | 1.0 | 1.00× | 99.98 % |".to_owned();
        let told = good.replace("99.98 %", "0.00 %; 2 × PENDING: Not yet.");
        let untold = good.replace("99.98 %", "0.00 %");
        assert!(rows(&[vec![good; 7], vec![told]].concat()).is_empty());
        assert_eq!(rows(&vec![untold; 8]).len(), 8);
    }

    #[test]
    fn the_last_line_counts_three() {
        assert!(last_counts(&["12 passed, 0 failed, 3 skipped".into()]));
        assert!(!last_counts(&["12 passed, 0 failed".into()]));
    }
}
