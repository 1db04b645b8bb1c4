//! The book: each document is in its table of contents, each link leads somewhere, and mdbook finds nothing wrong.

use crate::build::root;
use crate::report::Report;
use crate::tool;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MDBOOK: &str = "0.5.4";

/// The task.
pub(crate) fn run() -> Result<bool> {
    let mut report = Report::new();
    report.step("links", step);
    report.step("mdbook", build);
    Ok(report.finish())
}

/// Makes the book in `target/book`, without a warning.
fn build() -> Result<String> {
    // Only what builds: not what serves and watches.
    let mdbook = tool::prepare(
        "mdbook",
        MDBOOK,
        &["--no-default-features", "--features", "search"],
    )?;
    let output = Command::new(mdbook)
        .args(["build", "docs"])
        .current_dir(root())
        .output()
        .context("start mdbook")?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let is_bad = |line: &&str| ["WARN", "ERROR"].iter().any(|word| line.contains(word));
    let bad: Vec<_> = said.lines().filter(is_bad).collect();
    ensure!(output.status.success() && bad.is_empty(), "{said}");
    let page = root().join("target/book/getting-started.html");
    ensure!(page.exists(), "it has not made {}", page.display());
    Ok("target/book".to_owned())
}

/// The step.
pub(crate) fn step() -> Result<String> {
    let documents = documents(&root())?;
    let mut wrong = Vec::new();
    let mut links = 0;
    for document in &documents {
        let text =
            fs::read_to_string(document).with_context(|| format!("read {}", document.display()))?;
        for link in self::links(&text) {
            links += 1;
            if let Some(what) = broken(document, link).or_else(|| outside(document, link)) {
                wrong.push(format!("{}: ({link}): {what}", shown(document)));
            }
        }
    }
    wrong.extend(unlisted(&documents)?);
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(format!("{} documents, {links} links", documents.len()))
}

fn shown(document: &Path) -> String {
    let name = document.strip_prefix(root()).unwrap_or(document);
    name.display().to_string()
}

/// Everything written for people, in the root, in `docs` and in `tests`.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = BTreeSet::new();
    for directory in ["", "docs", "docs/decisions", "docs/applications", "tests"] {
        let directory = root.join(directory);
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.insert(path);
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// Documents of the book that its table of contents does not have.
fn unlisted(documents: &[PathBuf]) -> Result<Vec<String>> {
    let book = root().join("docs");
    let contents = book.join("SUMMARY.md");
    let text = fs::read_to_string(&contents).context("read docs/SUMMARY.md")?;
    let listed: BTreeSet<_> = links(&text).map(|link| book.join(link)).collect();
    let of_book = documents.iter().filter(|path| path.starts_with(&book));
    let missing = of_book.filter(|path| **path != contents && !listed.contains(*path));
    Ok(missing
        .map(|path| format!("docs/SUMMARY.md lacks {}", shown(path)))
        .collect())
}

/// What is wrong with a link to a file or to a heading.
fn broken(document: &Path, link: &str) -> Option<String> {
    if ["http://", "https://", "mailto:"]
        .iter()
        .any(|scheme| link.starts_with(scheme))
    {
        return None;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => document.to_owned(),
        file => document.parent()?.join(file),
    };
    if !target.exists() {
        return Some("there is no such file".into());
    }
    if heading.is_empty() {
        return None;
    }
    let text = fs::read_to_string(&target).unwrap_or_default();
    let has_it = headings(&text).any(|known| known == heading);
    (!has_it).then(|| format!("{} has no such heading", shown(&target)))
}

/// What is wrong with a link of the book to something that is not in it: in the built book it would be dead.
fn outside(document: &Path, link: &str) -> Option<String> {
    let book = root().join("docs").canonicalize().ok()?;
    let file = link.split('#').next().filter(|file| !file.is_empty())?;
    let directory = document.parent()?.canonicalize().ok()?;
    let target = directory.join(file).canonicalize().ok()?;
    let leaves = directory.starts_with(&book) && !target.starts_with(&book);
    leaves.then(|| "it leads out of the book: name the file in code font, without a link".into())
}

/// Lines that are not within a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of `[text](target)`, but within code.
fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text)
        .flat_map(|line| {
            // What is between two backquotes is every second part.
            let plain = line.split('`').step_by(2);
            // The text of a link may be code: its target is then in the next part.
            plain.flat_map(|part| part.split("](").skip(1))
        })
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Headings as links name them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let titles = prose(text).filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then_some(title.trim())
    });
    titles.map(|title| {
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# One `two`: three\n[a](b.md#c) and [`d`](e) `[f](g)`\n```\n# no\n[h](i)\n```\n[j](#one-two-three)\n";

    #[test]
    fn links_and_headings_are_found_outside_of_code() {
        assert_eq!(
            links(TEXT).collect::<Vec<_>>(),
            ["b.md#c", "e", "#one-two-three"]
        );
        assert_eq!(headings(TEXT).collect::<Vec<_>>(), ["one-two-three"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let readme = root().join("README.md");
        for good in [
            "docs/limits.md",
            "docs/limits.md#ends",
            "https://example.org",
            "docs",
        ] {
            assert_eq!(broken(&readme, good), None, "{good}");
        }
        assert!(
            broken(&readme, "docs/none.md")
                .unwrap()
                .contains("no such file")
        );
        // Also where it leads somewhere.
        let page = root().join("docs/applications/redis.md");
        assert_eq!(outside(&page, "../limits.md#ends"), None);
        assert_eq!(outside(&page, "https://example.org"), None);
        assert_eq!(outside(&readme, "Cargo.toml"), None);
        let out = outside(&page, "../../README.md").unwrap();
        assert!(out.contains("out of the book"), "{out}");
        let heading = broken(&readme, "docs/limits.md#none").unwrap();
        assert_eq!(heading, "docs/limits.md has no such heading");
    }
}
