//! Builds C programs and runs them with and without the library.

#![allow(dead_code, unreachable_pub)] // Each test file takes what it needs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::{env, fs};

/// The library, built as this test was: cargo by itself builds no cdylib for a test.
pub fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = env::current_exe().expect("the test has a path");
        let directory = test
            .ancestors()
            .nth(2)
            .expect("the test is in target/<profile>/deps");
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--lib",
            "--package",
            env!("CARGO_PKG_NAME"),
        ]);
        if directory.ends_with("release") {
            build.arg("--release");
        }
        let built = build
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the library does not build");
        directory.join("libshunt.so")
    });
    &LIBRARY
}

/// Builds `tests/programs/<name>.c`; answers where the result is.
pub fn build(name: &str, flags: &[&str]) -> PathBuf {
    build_as(name, name, flags)
}

/// Builds `tests/programs/<name>.c` as `result`; answers where that is.
pub fn build_as(result: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
        .with_extension("c");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).expect("the target directory is writable");
    let result = directory.join(result);
    let built = Command::new("cc")
        .args([
            "-g",
            "-Wall",
            "-Wno-unused-value",
            "-Wno-unused-result",
            "-Wno-nonnull",
            "-pthread",
        ])
        .args(flags)
        .arg("-o")
        .args([&result, &source])
        .arg("-lutil")
        .output()
        .expect("a C compiler is installed");
    assert!(
        built.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    result
}

/// Runs a command with `preload` (if any) under a watchdog.
pub fn run(preload: Option<&str>, command: &[&str]) -> Output {
    let mut run = Command::new("timeout");
    run.args(["--kill-after=5", "60", "env", "-u", "LD_PRELOAD"]);
    if let Some(preload) = preload {
        run.arg(format!("LD_PRELOAD={preload}"));
    }
    run.args(command).output().expect("coreutils are installed")
}

/// Runs a command natively and under the library, and demands that nobody can
/// tell the difference. Answers the native output.
pub fn same(command: &[&str]) -> String {
    let native = run(None, command);
    let preloaded = run(library().to_str(), command);
    let text = |output: &Output| {
        format!(
            "{:?}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let (native_text, preloaded_text) = (text(&native), text(&preloaded));
    let difference = native_text
        .lines()
        .zip(preloaded_text.lines())
        .find(|(one, other)| one != other);
    assert!(
        native_text == preloaded_text,
        "{command:?} differs: {difference:#?}\nnative: {native_text}\npreloaded: {preloaded_text}"
    );
    native_text
}
