//! The rooms of the engine: modules that know only those before them in [`ORDER`], and no circle of files.
//!
//! An arrow is a name that a file takes from another one: by `use`, or by a path in its code. A re-export is no
//! arrow, and who takes a name through one has it from the file that defines it. What only tests take does not
//! count, whether they stand in a module of the file or in a file of their own (`#[cfg(test)] mod tests;`). Methods are not seen: a type's own may be spread over the files that come after it.

mod arrows;

use crate::build::root;
use anyhow::{Context, Result, bail};
use arrows::{Arrow, Files, Sources};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// From the lowest to the highest: each may know those before it.
const ORDER: &[(&str, &str)] = &[
    ("outcome", "how an operation ends"),
    ("real", "libc's own functions"),
    ("sys", "system calls of our own"),
    ("config", "what `shunt run` says"),
    ("iov", "a program's buffers"),
    (
        "thread",
        "who this thread and process are; tokens and locks",
    ),
    ("table", "what a descriptor names"),
    ("pool", "objects that are reused"),
    ("kept", "descriptors of our own"),
    ("hold", "what keeps an object alive"),
    ("region", "counters that others see"),
    ("share", "who has a socket since a fork"),
    ("uring_map", "submission queues of io_uring"),
    ("tcp", "what the kernel says of a connection"),
    ("cores", "who had which core"),
    ("wake", "how a sleeper is called"),
    ("reach", "processes on other hosts"),
    ("link", "memory that two processes share"),
    ("socket", "one TCP socket, and what is noted there"),
    ("control", "what is said to shuntd"),
    ("stats", "the line of statistics"),
    ("stream", "the bytes of an attached connection"),
    ("signal", "signal handlers, counted"),
    ("epoll", "epoll sets"),
    ("entry", "a socket, a set, or neither"),
    ("upgrade", "from the kernel to the rings"),
    ("recycle", "what is kept of connections that are closed"),
    ("life", "what surrounds socket, close, fork, exec"),
    ("ready", "poll, select and epoll, as called"),
    ("io", "send, recv and their like, as called"),
];

/// The step.
pub(crate) fn step() -> Result<String> {
    let sources = read(&root().join("crates/shunt-engine/src"))?;
    let files = arrows::read(&sources)?;
    let wrong = check(&files, ORDER);
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(format!("{} files in {} rooms", files.len(), ORDER.len()))
}

/// All files below a directory, by the path of the module that each is.
fn read(directory: &Path) -> Result<Sources> {
    let mut sources = Sources::new();
    let mut left = vec![(directory.to_path_buf(), String::new())];
    while let Some((directory, module)) = left.pop() {
        for file in fs::read_dir(&directory)? {
            let path = file?.path();
            let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else {
                continue;
            };
            let inner = match (module.as_str(), stem) {
                ("", "lib") => String::new(),
                ("", stem) => stem.to_owned(),
                (module, stem) => format!("{module}::{stem}"),
            };
            if path.is_dir() {
                left.push((path, inner));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                sources.insert(inner, text);
            }
        }
    }
    Ok(sources)
}

/// What is wrong with the arrows, a line each.
fn check(files: &Files, order: &[(&str, &str)]) -> Vec<String> {
    let arrows = arrows::all(files);
    let mut wrong = Vec::new();
    let place = |room: &str| order.iter().position(|(name, _)| *name == room);
    for room in files.keys().map(|file| room(file)) {
        if !room.is_empty() && place(room).is_none() {
            wrong.push(format!("{room} has no place in the order of rooms"));
        }
    }
    wrong.dedup();
    for Arrow { from, to, name } in &arrows {
        if !to.is_empty() && place(room(to)) > place(room(from)) && !from.is_empty() {
            wrong.push(format!("{from} takes {name} from {to}, which is above it"));
        }
    }
    for circle in circles_in(&arrows) {
        wrong.push(format!(
            "these files know one another: {}",
            circle.join(", ")
        ));
        let inside = |arrow: &&Arrow| circle.contains(&arrow.from) && circle.contains(&arrow.to);
        wrong.extend(arrows.iter().filter(inside).map(Arrow::to_string));
    }
    wrong
}

fn room(file: &str) -> &str {
    file.split("::").next().unwrap_or(file)
}

/// Sets of files that all reach one another, each sorted.
fn circles_in(arrows: &BTreeSet<Arrow>) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(&arrow.from).or_default().insert(&arrow.to);
    }
    let reached = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut left: Vec<&str> = next.get(from).into_iter().flatten().copied().collect();
        while let Some(file) = left.pop() {
            if reached.insert(file) {
                left.extend(next.get(file).into_iter().flatten());
            }
        }
        reached
    };
    let all: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|&file| (file, reached(file))).collect();
    let returns = |from: &str, to: &str| all.get(to).is_some_and(|back| back.contains(from));
    let mut circles = BTreeSet::new();
    for (&file, reached) in &all {
        if reached.contains(file) {
            let circle = reached.iter().filter(|to| returns(file, to));
            circles.insert(circle.map(|file| (*file).to_owned()).collect::<Vec<_>>());
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &[(&str, &str)] = &[("low", ""), ("middle", ""), ("high", "")];

    fn sources(files: &[(&str, &str)]) -> Sources {
        let owned = |&(file, text): &(&str, &str)| (file.to_owned(), text.to_owned());
        files.iter().map(owned).collect()
    }

    fn wrong(files: &[(&str, &str)]) -> Vec<String> {
        check(&arrows::read(&sources(files)).unwrap(), ORDER)
    }

    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let sources = sources(files);
        let all = arrows::all(&arrows::read(&sources).unwrap());
        all.iter().map(Arrow::to_string).collect()
    }

    #[test]
    fn the_engine_has_no_arrow_up_and_no_circle() {
        step().unwrap();
    }

    #[test]
    fn an_arrow_down_is_fine() {
        let files = [
            ("low", "pub fn f() {}"),
            ("high", "use crate::low;\nfn g() { low::f() }"),
        ];
        assert_eq!(wrong(&files), [""; 0]);
    }

    #[test]
    fn an_arrow_up_is_found_wherever_it_stands() {
        let up = "low takes f from high, which is above it";
        let texts = [
            "use crate::high::f;",
            "use crate::{high::{e as d, f}, middle};",
            "fn g() { let x = crate::high::f(); }",
            "fn g() { assert!(crate::high::f()); }",
            "use crate::high; fn g() { high::f() }",
        ];
        for text in texts {
            let found = wrong(&[("low", text), ("high", ""), ("middle", "")]);
            assert!(found.contains(&up.to_owned()), "{text}: {found:?}");
        }
    }

    #[test]
    fn who_takes_all_names_of_a_file_at_once_takes_them_from_there() {
        let up = "low takes * from high, which is above it";
        for text in ["use crate::high::*;", "use crate::{high::{*, d}, middle};"] {
            let found = wrong(&[("low", text), ("high", ""), ("middle", "")]);
            assert!(found.contains(&up.to_owned()), "{text}: {found:?}");
        }
        let down = [("low", ""), ("high", "use crate::low::*;")];
        assert_eq!(wrong(&down), [""; 0]);
    }

    #[test]
    fn a_name_comes_from_the_file_that_defines_it() {
        let files = [
            ("low", "mod inner;\npub(crate) use inner::f;"),
            ("low::inner", "pub(crate) fn f() {}"),
            ("middle", "use crate::low::f;"),
        ];
        assert_eq!(arrows(&files), ["    middle takes f from low::inner"]);
    }

    #[test]
    fn a_function_of_a_modules_name_is_taken_with_it() {
        let files = [
            ("low", "mod f; mod g; pub(crate) use f::f;"),
            ("low::f", "pub(crate) fn f() {}"),
            ("low::g", "use super::f;"),
        ];
        assert_eq!(arrows(&files), ["    low::g takes f from low::f"]);
    }

    #[test]
    fn what_only_tests_take_does_not_count() {
        let text = "#[cfg(test)]\nmod tests { use crate::high::f; }\n#[cfg(all(test, not(miri)))]\nmod more { use crate::high::f; }";
        assert_eq!(wrong(&[("low", text), ("high", "")]), [""; 0]);
    }

    #[test]
    fn a_file_of_tests_does_not_count_and_one_of_that_name_which_is_built_does() {
        let up = [
            ("low::tests", "use crate::high::f; mod deep;"),
            ("low::tests::deep", "use crate::high::f;"),
            ("high", ""),
        ];
        let with = |low| wrong(&[&[("low", low)][..], &up].concat());
        assert_eq!(with("#[cfg(test)]\nmod tests;"), [""; 0]);
        assert_eq!(with("#[cfg(all(test, not(miri)))]\nmod tests;"), [""; 0]);
        let told = ["low::tests", "low::tests::deep"]
            .map(|from| format!("{from} takes f from high, which is above it"));
        assert_eq!(with("mod tests;"), told);
    }

    #[test]
    fn a_room_that_is_there_for_tests_needs_no_place() {
        let files = [("", "#[cfg(test)]\nmod trial; mod low;"), ("trial", "")];
        assert_eq!(wrong(&files), [""; 0]);
    }

    #[test]
    fn words_in_comments_and_strings_are_no_arrows() {
        let text = "//! [`crate::high::f`]\n/* crate::high */ const S: &str = \"crate::high::f\";";
        assert_eq!(wrong(&[("low", text), ("high", "")]), [""; 0]);
    }

    #[test]
    fn a_circle_of_files_is_found_with_its_arrows() {
        let files = [
            ("low", "mod one; mod other;"),
            ("low::one", "use super::other::f; pub(super) fn g() {}"),
            ("low::other", "pub(super) fn f() { super::one::g() }"),
        ];
        let told = [
            "these files know one another: low::one, low::other",
            "    low::one takes f from low::other",
            "    low::other takes g from low::one",
        ];
        assert_eq!(wrong(&files), told);
    }

    #[test]
    fn a_room_without_a_place_is_told() {
        let found = wrong(&[("cellar", "")]);
        assert_eq!(found, ["cellar has no place in the order of rooms"]);
    }
}
