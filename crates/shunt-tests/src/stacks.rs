//! Where the threads of a hung process stand.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process;

/// The stacks of these processes and of all their descendants.
pub(crate) fn of(roots: &[u32]) -> String {
    let mut text = String::new();
    for pid in process::family(roots) {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let _ = writeln!(text, "-- process {pid} ({})", comm.trim());
        match gdb(pid) {
            Some(stacks) => text.push_str(&stacks),
            None => text.push_str(&proc_view(pid)),
        }
    }
    text
}

fn gdb(pid: u32) -> Option<String> {
    let mut child = Command::new("gdb")
        .args([
            "-q",
            "-nx",
            "-batch",
            "-iex",
            "set debuginfod enabled off",
            "-ex",
            "thread apply all bt 24",
            "-p",
        ])
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let stdout = child.stdout.take()?;
    let reader = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap_or_default());
    let end = Instant::now() + Duration::from_secs(20);
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = reader.join().ok()?;
    let from = text.find("\nThread ")?;
    Some(text[from + 1..].to_owned())
}

fn proc_view(pid: u32) -> String {
    let mut text = String::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return text;
    };
    for task in tasks.flatten() {
        let _ = writeln!(text, "thread {}", task.file_name().to_string_lossy());
        for file in ["wchan", "syscall", "stack"] {
            if let Ok(content) = std::fs::read_to_string(task.path().join(file)) {
                let _ = writeln!(
                    text,
                    "  {file}: {}",
                    content.trim().replace('\n', "\n         ")
                );
            }
        }
    }
    text
}
