//! The C programs and what their comment headers declare.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Which way a program's bytes must go when both ends run under Shunt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PathKind {
    /// At least this share of the bytes through rings, in percent.
    Shunted(f64),
    /// All over TCP, for the reason given.
    Tcp(String),
    /// Either.
    Free,
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shunted(share) => write!(f, "shunted {share}%"),
            Self::Tcp(reason) => write!(f, "tcp {reason}"),
            Self::Free => f.write_str("free"),
        }
    }
}

/// One way to compile and run one source file.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// `rw`, or `rw.fortify` for a variant.
    pub(crate) name: String,
    pub(crate) source: PathBuf,
    /// Further flags for the compiler.
    pub(crate) flags: Vec<String>,
    /// Those by which the source is built once more, as a module that the program opens.
    pub(crate) module: Option<Vec<String>>,
    pub(crate) path_kind: PathKind,
    /// That holds for `--upgrade=eager` only.
    pub(crate) not_for_sync: bool,
    /// Seconds, where the default does not suffice.
    pub(crate) timeout: Option<u64>,
    /// Where connections are used again, some of its own are.
    pub(crate) recycles: bool,
    /// With both ends shunted shuntd must lend one process a descriptor of the other's.
    pub(crate) needs_lending: bool,
}

/// Every program in `folder`, each followed by its variants.
pub(crate) fn find(folder: &Path) -> Result<Vec<Program>> {
    let mut sources: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| {
            format!(
                "cannot read {}: run from the repository's root",
                folder.display()
            )
        })?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    let mut programs = Vec::new();
    for source in sources {
        let text = std::fs::read_to_string(&source)?;
        let stem = source
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        programs.extend(parse(&stem, &source, &text));
    }
    Ok(programs)
}

/// Reads the `// key: value` lines before the first line that is not a comment.
pub(crate) fn parse(stem: &str, source: &Path, text: &str) -> Vec<Program> {
    let mut plain = Program {
        name: stem.to_owned(),
        source: source.to_owned(),
        flags: Vec::new(),
        module: None,
        path_kind: PathKind::Shunted(0.0),
        not_for_sync: false,
        timeout: None,
        needs_lending: false,
        recycles: false,
    };
    let mut variants = Vec::new();
    for line in text.lines().map_while(|l| l.strip_prefix("//")) {
        let Some((key, value)) = line.trim().split_once(':') else {
            continue;
        };
        let mut words = value.split_whitespace();
        match key {
            "path" => plain.path_kind = path_kind(&mut words),
            "sync" => plain.not_for_sync = words.next() == Some("free"),
            "timeout" => plain.timeout = words.next().and_then(|w| w.parse().ok()),
            "recycles" => plain.recycles = words.next() == Some("some"),
            "needs" => plain.needs_lending = words.any(|need| need == "lending"),
            "flags" => plain.flags.extend(words.map(str::to_owned)),
            "module" => plain.module = Some(words.map(str::to_owned).collect()),
            "variant" => {
                if let Some(name) = words.next() {
                    variants.push((
                        name.to_owned(),
                        words.map(str::to_owned).collect::<Vec<_>>(),
                    ));
                }
            }
            _ => {}
        }
    }
    let mut programs = vec![plain.clone()];
    for (name, flags) in variants {
        let mut program = plain.clone();
        program.name = format!("{stem}.{name}");
        program.flags.extend(flags);
        programs.push(program);
    }
    programs
}

fn path_kind<'a>(words: &mut impl Iterator<Item = &'a str>) -> PathKind {
    match words.next() {
        Some("tcp") => PathKind::Tcp(words.next().unwrap_or("?").to_owned()),
        Some("free") => PathKind::Free,
        _ => {
            let share = words
                .next()
                .and_then(|w| w.trim_end_matches('%').parse().ok());
            PathKind::Shunted(share.unwrap_or(0.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PathKind, parse};
    use std::path::Path;

    #[test]
    fn headers_declare_paths_and_variants() {
        let text = "// Title: not a key.\n// path: shunted 40%\n// variant: fast -O2 -DX\n#include <x>\n// path: free\n";
        let programs = parse("rw", Path::new("rw.c"), text);
        assert_eq!(programs.len(), 2);
        assert_eq!(programs[0].path_kind, PathKind::Shunted(40.0));
        assert_eq!(programs[1].name, "rw.fast");
        assert_eq!(programs[1].flags, ["-O2", "-DX"]);
    }

    #[test]
    fn a_program_without_a_header_must_use_rings() {
        assert_eq!(
            parse("a", Path::new("a.c"), "int x;")[0].path_kind,
            PathKind::Shunted(0.0)
        );
        let tcp = parse("a", Path::new("a.c"), "// path: tcp URGENT\n");
        assert_eq!(tcp[0].path_kind, PathKind::Tcp("URGENT".into()));
    }
}
