//! Where the threads of a process stand that hangs.

use std::fmt::Write as _;
use std::iter::once;
use std::process::{Command, Stdio};

use crate::process::{comm, descendants};

/// A debugger may hang with what it looks at: it is ended after half a minute.
const GDB: [&str; 12] = [
    "-k",
    "5",
    "30",
    "gdb",
    "-q",
    "-nx",
    "-batch",
    "-iex",
    "set debuginfod enabled off",
    "-ex",
    "thread apply all bt 25",
    "-p",
];

/// The stacks of these processes and of all their descendants that are there, for people: by gdb, or where that fails
/// what the kernel says.
pub fn of(roots: &[u32]) -> String {
    let mut text = String::new();
    let family = |&root: &u32| once(root).chain(descendants(root));
    for pid in roots.iter().flat_map(family) {
        let name = comm(pid);
        if name.is_empty() {
            continue;
        }
        let _ = writeln!(text, "---- process {pid} ({name})");
        text += &by_gdb(pid).unwrap_or_else(|| by_kernel(pid));
    }
    text
}

fn by_gdb(pid: u32) -> Option<String> {
    let output = Command::new("timeout")
        .args(GDB)
        .arg(pid.to_string())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text
        .lines()
        .filter(|line| line.starts_with('#') || line.starts_with("Thread "));
    let stacks: String = lines.map(|line| format!("{line}\n")).collect();
    (!stacks.is_empty()).then_some(stacks)
}

/// Each thread's call, and where in the kernel it is.
fn by_kernel(pid: u32) -> String {
    let mut text = String::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let _ = writeln!(text, "thread {}", task.file_name().to_string_lossy());
        for file in ["wchan", "syscall", "stack"] {
            if let Ok(content) = std::fs::read_to_string(task.path().join(file)) {
                let content = content.trim().replace('\n', "\n         ");
                let _ = writeln!(text, "  {file}: {content}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_shows_where_it_sleeps() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (text, by_kernel) = (of(&[child.id()]), by_kernel(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let head = format!("---- process {} (", child.id());
        assert!(text.starts_with(&head), "{text}");
        assert!(text.contains("#0") || text.contains("syscall: "), "{text}");
        assert!(by_kernel.contains("syscall: "), "{by_kernel}");
    }
}
