//! A libshunt.so that does nothing, for tests of the command alone.

#[allow(dead_code)] // Some test files need none.
pub(crate) mod isolated;

use std::path::PathBuf;
use std::process::Command;

/// A library with libshunt's note for this version of the protocol, and nothing else.
pub(crate) fn library(protocol: u16) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let name = directory.join(format!("libshunt-{protocol}.so"));
    // Other tests may be about to load it: it appears as a whole.
    let unique = format!("{:?}-{}", std::thread::current().id(), std::process::id());
    let (source, made) = (
        directory.join(format!("{unique}.s")),
        directory.join(format!("{unique}.so")),
    );
    let text = format!(
        ".section .note.shunt,\"a\",%note\n.balign 4\n.long 6, 4, 1\n\
         .asciz \"Shunt\"\n.balign 4\n.long {protocol}\n"
    );
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-nostdlib", "-o"])
        .args([&made, &source])
        .status()
        .expect("a C compiler is installed");
    assert!(built.success());
    // … and stays, for processes that have loaded it.
    if let Err(error) = std::fs::hard_link(&made, &name) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&made).unwrap(), std::fs::read(&name).unwrap());
    }
    std::fs::remove_file(made).unwrap();
    std::fs::remove_file(source).unwrap();
    std::fs::canonicalize(name).unwrap()
}

/// A C program of `tests/programs`, built.
#[allow(dead_code)] // Each test file uses its part of this.
pub(crate) fn program(name: &str) -> PathBuf {
    build("cc", name, name).expect("a C compiler is installed")
}

/// The same with musl in place of glibc; `None` where that is not installed.
#[allow(dead_code)]
pub(crate) fn musl_program(name: &str) -> Option<PathBuf> {
    build("musl-gcc", name, &format!("{name}-musl"))
}

fn build(compiler: &str, name: &str, program: &str) -> Option<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    // Other tests may be about to run it: it appears as a whole.
    let unique = format!("{program}-{:?}", std::thread::current().id());
    let made = directory.join(format!("{unique}-{}", std::process::id()));
    let built = Command::new(compiler)
        .arg("-o")
        .args([&made, &source])
        .status()
        .ok()?;
    assert!(built.success());
    let program = directory.join(program);
    std::fs::rename(&made, &program).unwrap();
    Some(program)
}
