//! `shunt container print`: how a container gets libshunt and finds the host's shuntd, in the words of
//! the tool that starts it.
//!
//! ```text
//!  host                                container
//!  directory of libshunt.so   ──ro──>  /opt/shunt              LD_PRELOAD
//!  directory of shuntd's file ──ro──>  /run/shunt              SHUNT_SOCKET
//! ```

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::control::Control;
use crate::library;

/// Who starts the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// Options for `docker run` (or podman's), on one line
    Docker,
    /// A part of a file for Docker Compose
    Compose,
    /// A file for the Container Device Interface, which podman, Docker and containerd read
    Cdi,
}

/// Where the library is inside.
const LIBRARY: &str = "/opt/shunt";
/// Where the directory of the daemon's file is inside.
const SOCKET: &str = shunt_abi::HOST_DIRECTORY;
/// The name by which the Container Device Interface knows it.
const KIND: &str = "shunt.rs/shunt";

/// What a container needs.
#[derive(Debug)]
struct Needs {
    /// Directories: outside, inside.
    mounts: [(String, String); 2],
    /// Variables.
    variables: [(&'static str, String); 2],
}

/// Prints it.
pub(crate) fn print(tool: Tool) -> Result<ExitCode> {
    let library = library::find().map_err(|fault| anyhow::anyhow!("{fault}"))?;
    if let Some(part) = library::closed_at(&library) {
        eprintln!(
            "shunt: other users cannot get through {}: programs of theirs stay on TCP",
            part.display()
        );
    }
    let socket = Control::named().unwrap_or_else(|| shunt_abi::host_socket().into());
    check(&socket)?;
    if !Control::is_at(&socket) {
        eprintln!(
            "shunt: no shuntd listens at {}: start `shuntd --system` as root, or containers stay \
             on plain TCP",
            socket.display()
        );
    }
    let needs = needs(&library, &socket)?;
    crate::print(&match tool {
        Tool::Docker => docker(&needs),
        Tool::Compose => compose(&needs),
        Tool::Cdi => cdi(&needs)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a socket whose directory has anything else in it: the container gets the whole directory, and
/// could use other sockets there.
fn check(socket: &Path) -> Result<()> {
    let name = socket.display();
    ensure!(
        socket.is_absolute() && !socket.components().any(|part| part == Component::ParentDir),
        "{name} is no absolute path without `..`: SHUNT_SOCKET must name the file in full"
    );
    let directory = socket.parent().filter(|path| *path != Path::new("/"));
    let advice = "have `shuntd --system --socket FILE` listen in a directory of its own";
    let directory = directory
        .with_context(|| format!("a container would get all of / with {name}: {advice}"))?;
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    for entry in entries {
        let entry = entry?;
        let other = entry.file_name();
        // Daemons of other versions listen there, too, or have: see `host_socket`.
        let is_shunts =
            socket.file_name() == Some(&other) || other.as_bytes().iter().all(u8::is_ascii_digit);
        ensure!(
            is_shunts && entry.file_type()?.is_socket(),
            "a container would get {} with {name}: {advice}",
            entry.path().display()
        );
    }
    Ok(())
}

fn needs(library: &Path, socket: &Path) -> Result<Needs> {
    let parts = |path: &Path| {
        let directory = text(path.parent().unwrap_or(Path::new("/")))?;
        let name = path.file_name().context("a path without a name")?;
        Ok::<_, anyhow::Error>((directory, text(Path::new(name))?))
    };
    let ((library, library_name), (sockets, socket_name)) = (parts(library)?, parts(socket)?);
    Ok(Needs {
        mounts: [(library, LIBRARY.into()), (sockets, SOCKET.into())],
        variables: [
            ("LD_PRELOAD", preload(&library_name)),
            (
                shunt_abi::SOCKET_VARIABLE,
                format!("{SOCKET}/{socket_name}"),
            ),
        ],
    })
}

/// A path that glibc's loader expands (`ld.so(8)`): from the program's directory up to the root, where
/// `..` stays. musl's loader does not, finds nothing there, and runs the program as if nothing were to be
/// preloaded; the plain path it would load, and end the program for symbols that musl lacks.
fn preload(name: &str) -> String {
    const DEEPEST: usize = 32;
    format!("$ORIGIN{}{LIBRARY}/{name}", "/..".repeat(DEEPEST))
}

/// A path as all these tools can be told it.
fn text(path: &Path) -> Result<String> {
    let special = |c: char| c.is_whitespace() || c.is_control() || "\"'\\$:,#".contains(c);
    match path.to_str() {
        Some(text) if !text.contains(special) => Ok(text.into()),
        _ => bail!(
            "{} has characters in it that container tools read otherwise: put it elsewhere",
            path.display()
        ),
    }
}

fn docker(needs: &Needs) -> String {
    let mounts = needs.mounts.iter();
    let mounts = mounts.map(|(outside, inside)| format!("--volume {outside}:{inside}:ro"));
    let variables = needs.variables.iter();
    let variables = variables.map(|(name, value)| format!("--env {name}={value}"));
    mounts.chain(variables).collect::<Vec<_>>().join(" ") + "\n"
}

fn compose(needs: &Needs) -> String {
    let mut text = String::from(
        "# At the head of compose.yaml. In each service: `<<: *shunt`. (A service with volumes or\n\
         # an environment of its own needs these lines among them instead.)\n\
         x-shunt: &shunt\n  volumes:\n",
    );
    for (outside, inside) in &needs.mounts {
        text += &format!("    - {outside}:{inside}:ro\n");
    }
    text += "  environment:\n";
    for (name, value) in &needs.variables {
        // Compose has variables of its own.
        text += &format!("    {name}: \"{}\"\n", value.replace('$', "$$"));
    }
    text
}

fn cdi(needs: &Needs) -> Result<String> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Specification {
        cdi_version: &'static str,
        kind: &'static str,
        devices: [Device; 1],
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Device {
        name: &'static str,
        container_edits: Edits,
    }
    #[derive(Serialize)]
    struct Edits {
        env: Vec<String>,
        mounts: Vec<Mount>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Mount {
        host_path: String,
        container_path: String,
        options: [&'static str; 4],
    }
    let env = needs.variables.iter();
    let mounts = needs.mounts.iter().cloned();
    let edits = Edits {
        env: env.map(|(name, value)| format!("{name}={value}")).collect(),
        mounts: mounts
            .map(|(host_path, container_path)| Mount {
                host_path,
                container_path,
                options: ["ro", "bind", "nosuid", "nodev"],
            })
            .collect(),
    };
    let specification = Specification {
        cdi_version: "0.5.0",
        kind: KIND,
        devices: [Device {
            name: "all",
            container_edits: edits,
        }],
    };
    Ok(serde_json::to_string_pretty(&specification)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Needs {
        needs(Path::new("/opt/x/libshunt.so"), Path::new("/run/shunt/9")).unwrap()
    }

    #[test]
    fn docker_gets_one_line_that_a_shell_splits_into_words() {
        let line = docker(&example());
        assert_eq!(line.lines().count(), 1);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words[..4],
            [
                "--volume",
                "/opt/x:/opt/shunt:ro",
                "--volume",
                "/run/shunt:/run/shunt:ro"
            ]
        );
        assert!(words[5].starts_with("LD_PRELOAD=$ORIGIN/../"));
        assert!(words[5].ends_with("/../opt/shunt/libshunt.so"));
        assert_eq!(words[6..], ["--env", "SHUNT_SOCKET=/run/shunt/9"]);
    }

    #[test]
    fn compose_does_not_take_the_loaders_variable_for_its_own() {
        let text = compose(&example());
        assert!(text.contains("    - /opt/x:/opt/shunt:ro\n"));
        assert!(text.contains("    LD_PRELOAD: \"$$ORIGIN/.."));
        assert!(text.contains("    SHUNT_SOCKET: \"/run/shunt/9\"\n"));
    }

    #[test]
    fn cdi_names_what_the_specification_asks_for() {
        let file: serde_json::Value = serde_json::from_str(&cdi(&example()).unwrap()).unwrap();
        assert_eq!(file["cdiVersion"], "0.5.0");
        assert_eq!(file["kind"], KIND);
        let device = &file["devices"][0];
        assert_eq!(device["name"], "all");
        let edits = &device["containerEdits"];
        assert_eq!(edits["mounts"][1]["hostPath"], "/run/shunt");
        assert_eq!(edits["mounts"][1]["containerPath"], "/run/shunt");
        assert_eq!(edits["env"][1], "SHUNT_SOCKET=/run/shunt/9");
    }

    #[test]
    fn paths_that_would_be_read_otherwise_are_refused() {
        for path in [
            "/a b/libshunt.so",
            "/a:b/libshunt.so",
            "/a,b/libshunt.so",
            "/$a/libshunt.so",
        ] {
            assert!(
                needs(Path::new(path), Path::new("/run/shunt/9")).is_err(),
                "{path}"
            );
        }
    }
}
