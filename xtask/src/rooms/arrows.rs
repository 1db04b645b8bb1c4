//! Which names files take from one another.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Texts by the path of the module that each is; the root's is empty.
pub(super) type Sources = BTreeMap<String, String>;

/// A file takes a name from another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrow {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) name: String,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { from, to, name } = self;
        write!(f, "    {from} takes {name} from {to}")
    }
}

/// A path, and the name that a `use` gives it.
struct Import {
    path: Vec<String>,
    name: String,
}

/// Files by their modules, without those that are there for tests only.
pub(super) type Files<'a> = BTreeMap<&'a str, File>;

/// What one file says.
#[derive(Default)]
pub(super) struct File {
    /// By a private `use`.
    imports: Vec<Import>,
    /// By `pub use`, whoever may see it.
    exports: Vec<Import>,
    /// Paths in its code.
    paths: Vec<Vec<String>>,
    /// Modules for tests that are files of their own.
    tests: Vec<String>,
}

/// Reads them.
pub(super) fn read(sources: &Sources) -> Result<Files<'_>> {
    let mut files = Files::new();
    for (module, text) in sources {
        let tokens = TokenStream::from_str(text)
            .map_err(|error| anyhow!("cannot read {module}: {error}"))?;
        let mut file = File::default();
        file.read(tokens);
        files.insert(module.as_str(), file);
    }
    let mut tests = BTreeSet::new();
    for (module, file) in &files {
        tests.extend(file.tests.iter().map(|name| below(module, name)));
    }
    files.retain(|module, _| !is_within_any(module, &tests));
    Ok(files)
}

/// Whether a module is one of these, or inside one.
fn is_within_any(module: &str, others: &BTreeSet<String>) -> bool {
    let inside = |rest: &str| rest.is_empty() || rest.starts_with("::");
    let is_within = |other: &String| module.strip_prefix(other.as_str()).is_some_and(inside);
    others.iter().any(is_within)
}

/// All arrows.
pub(super) fn all(files: &Files) -> BTreeSet<Arrow> {
    let tree = Tree { files };
    let mut arrows = BTreeSet::new();
    for from in tree.files.keys() {
        tree.taken_by(from, |(to, name)| {
            if to != *from {
                arrows.insert(Arrow {
                    from: (*from).to_owned(),
                    to,
                    name,
                });
            }
        });
    }
    arrows
}

impl File {
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let (mut at, mut is_public, mut is_test) = (0, false, false);
        while at < tokens.len() {
            let next = &tokens[at + 1..];
            match &tokens[at] {
                TokenTree::Punct(sharp) if sharp.as_char() == '#' => {
                    if let Some(TokenTree::Group(attribute)) = next.first() {
                        is_test |= is_for_tests(attribute.stream());
                        at += 1;
                    }
                }
                TokenTree::Ident(word) if is_test && word == "mod" => {
                    if let [TokenTree::Ident(name), TokenTree::Punct(_), ..] = next {
                        self.tests.push(name.to_string());
                    }
                    let ends = |token| is_block(token) || is_punct(token, ';');
                    at += next.iter().position(ends).map_or(0, |end| end + 1);
                    is_test = false;
                }
                TokenTree::Ident(word) if word == "pub" => {
                    is_public = true;
                    at += usize::from(matches!(next.first(), Some(TokenTree::Group(_))));
                }
                TokenTree::Ident(word) if word == "use" => {
                    let end = next.iter().position(|token| is_punct(token, ';'));
                    let imports = imports_in(&next[..end.unwrap_or(next.len())], &[]);
                    if is_public {
                        self.exports.extend(imports);
                    } else if !is_test {
                        self.imports.extend(imports);
                    }
                    at += end.map_or(next.len(), |end| end + 1);
                    (is_public, is_test) = (false, false);
                }
                TokenTree::Ident(_) => {
                    let path = path_at(&tokens[at..]);
                    // A name alone says nothing; `a::b` is five tokens less two.
                    at += (path.len() - 1) * 3;
                    if path.len() > 1 {
                        self.paths.push(path);
                    }
                    (is_public, is_test) = (false, false);
                }
                TokenTree::Group(group) => self.read(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }
}

/// Whether an attribute says that what follows is there for tests only.
fn is_for_tests(attribute: TokenStream) -> bool {
    let text = attribute.to_string();
    text.starts_with("cfg") && text.contains("test") && !text.contains("not (test")
}

fn is_block(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// The path that begins here: names with `::` in between.
fn path_at(tokens: &[TokenTree]) -> Vec<String> {
    let mut path = Vec::new();
    let mut at = 0;
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        path.push(name.to_string());
        let goes_on = |offset: usize| tokens.get(at + offset).is_some_and(|t| is_punct(t, ':'));
        let is_name = matches!(tokens.get(at + 3), Some(TokenTree::Ident(_)));
        if !(goes_on(1) && goes_on(2) && is_name) {
            break;
        }
        at += 3;
    }
    path
}

/// What the tree of a `use` names.
fn imports_in(tokens: &[TokenTree], before: &[String]) -> Vec<Import> {
    let mut imports = Vec::new();
    for part in tokens.split(|token| is_punct(token, ',')) {
        let mut path = before.to_vec();
        let mut name = None;
        let mut group = None;
        for (i, token) in part.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = part.get(i + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(inner) => group = Some(inner.stream()),
                // Everything that is there, by this one name.
                token if is_punct(token, '*') => path.push("*".to_owned()),
                _ => {}
            }
        }
        if let Some(inner) = group {
            let inner: Vec<_> = inner.into_iter().collect();
            imports.extend(imports_in(&inner, &path));
        } else if path.len() > before.len() {
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
            imports.push(Import { path, name });
        }
    }
    imports
}

/// All files, by their modules.
struct Tree<'a> {
    files: &'a Files<'a>,
}

impl Tree<'_> {
    /// Calls `visit` with each file and name that a file takes.
    fn taken_by(&self, from: &str, mut visit: impl FnMut((String, String))) {
        let file = &self.files[from];
        let mut modules = BTreeMap::new();
        for Import { path, name } in &file.imports {
            match self.find(from, path) {
                Some((module, None)) => {
                    // What has the module's name, too, is taken with it.
                    let (_, item) = module.rsplit_once("::").unwrap_or(("", &module));
                    let parent = parent(&module).to_owned();
                    let same_name = self.defined(parent.clone(), item.to_owned());
                    if same_name.0 != parent {
                        visit(same_name);
                    }
                    modules.insert(name.as_str(), module);
                }
                Some((module, Some(item))) => visit(self.defined(module, item)),
                None => {}
            }
        }
        for path in &file.paths {
            let found = match modules.get(path[0].as_str()) {
                Some(module) => self.walk(module.clone(), &path[1..]),
                None => self.find(from, path),
            };
            if let Some((module, Some(item))) = found {
                visit(self.defined(module, item));
            }
        }
    }

    /// The module that a path leads to, and the item that it names there.
    fn find(&self, from: &str, path: &[String]) -> Option<(String, Option<String>)> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.walk(String::new(), rest),
            "self" => self.walk(from.to_owned(), rest),
            "super" => {
                let mut at = parent(from).to_owned();
                let more = rest.iter().take_while(|part| *part == "super").count();
                for _ in 0..more {
                    at = parent(&at).to_owned();
                }
                self.walk(at, &rest[more..])
            }
            child => {
                let child = below(from, child);
                let is_module = self.files.contains_key(child.as_str());
                is_module.then(|| self.walk(child, rest)).flatten()
            }
        }
    }

    fn walk(&self, mut at: String, path: &[String]) -> Option<(String, Option<String>)> {
        for (i, part) in path.iter().enumerate() {
            let next = below(&at, part);
            if !self.files.contains_key(next.as_str()) {
                return Some((at, path.get(i).cloned()));
            }
            at = next;
        }
        Some((at, None))
    }

    /// The file that defines what another one exports by a name.
    fn defined(&self, module: String, item: String) -> (String, String) {
        let exports = self.files.get(module.as_str()).map(|file| &file.exports);
        let export = exports
            .into_iter()
            .flatten()
            .find(|export| export.name == item);
        match export.and_then(|export| self.find(&module, &export.path)) {
            Some((further, Some(name))) if (&further, &name) != (&module, &item) => {
                self.defined(further, name)
            }
            _ => (module, item),
        }
    }
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(parent, _)| parent)
}

fn below(module: &str, child: &str) -> String {
    if module.is_empty() {
        child.to_owned()
    } else {
        format!("{module}::{child}")
    }
}
