//! The guest's kernel, Debian's, and its files: a shell, the tools of iproute2, libibverbs, modules, and the trial. All in an initial
//! file system, so there is no disk.

use crate::build::root;
use crate::progress;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Modules that the guest loads, with all that these need.
const MODULES: [&str; 10] = [
    "crc32c_generic",
    // Linux 6.1's rdma_rxe asks for it by name, and does without saying so.
    "crc32_generic",
    "veth",
    "ib_core",
    "ib_uverbs",
    "rdma_rxe",
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
];

/// Programs of this machine that the guest has, too.
const PROGRAMS: [&str; 2] = ["/sbin/ip", "/usr/bin/rdma"];
/// Libraries that are loaded by name, and what names them.
const LOADED: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
];
const DRIVER: &str = "/etc/libibverbs.d/rxe.driver";
const SHELL: &str = "/bin/busybox";

/// A kernel, unpacked.
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    modules: PathBuf,
}

/// Debian's kernel of today, with modules for soft-RoCE (the one for clouds has none).
pub(super) fn kernel(directory: &Path) -> Result<Kernel> {
    let package = kernel_package()?;
    let version = package.trim_start_matches("linux-image-");
    let place = directory.join(&package);
    if !place.join("done").exists() {
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place)?;
        progress::run(
            Command::new("apt-get")
                .args(["-q", "-o", "APT::Sandbox::User=root", "download", &package])
                .current_dir(&place),
        )?;
        let archive = fs::read_dir(&place)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|end| end == "deb"))
            .context("no package was downloaded")?;
        progress::run(Command::new("dpkg").arg("-x").arg(&archive).arg(&place))?;
        fs::remove_file(&archive)?;
        fs::write(place.join("done"), "")?;
    }
    let modules = [place.join("lib/modules"), place.join("usr/lib/modules")];
    let modules = modules.into_iter().find(|path| path.is_dir());
    Ok(Kernel {
        image: place.join(format!("boot/vmlinuz-{version}")),
        modules: modules.context("a kernel without modules")?,
    })
}

fn kernel_package() -> Result<String> {
    let output = Command::new("apt-cache")
        .args(["depends", "linux-image-amd64"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let named = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = named.context("apt-cache knows no linux-image-amd64: run apt-get update")?;
    Ok(package.to_owned())
}

/// Makes the initial file system.
pub(super) fn initrd(
    directory: &Path,
    kernel: &Kernel,
    peer: &Path,
    plan: &str,
) -> Result<PathBuf> {
    let tree = directory.join("tree");
    let _ = fs::remove_dir_all(&tree);
    for name in ["bin", "dev", "proc", "sys", "run", "tmp", "etc", "modules"] {
        fs::create_dir_all(tree.join(name))?;
    }
    copy(Path::new(SHELL), &tree, "bin/busybox")?;
    symlink("busybox", tree.join("bin/sh"))?;
    for program in PROGRAMS {
        let name = Path::new(program).file_name().context("a program")?;
        copy(
            Path::new(program),
            &tree,
            &format!("usr/sbin/{}", name.to_string_lossy()),
        )?;
    }
    copy(peer, &tree, "bin/peer")?;
    let with_libraries = PROGRAMS.iter().chain(&LOADED).map(Path::new);
    for file in with_libraries.chain([peer]) {
        for library in libraries(file)? {
            copy(&library, &tree, relative(&library)?)?;
        }
    }
    for file in LOADED.iter().chain([&DRIVER]) {
        let file = Path::new(file);
        copy(file, &tree, relative(file)?)?;
    }
    let order = modules(&kernel.modules)?;
    for (number, module) in order.iter().enumerate() {
        let name = module.file_name().context("a module")?.to_string_lossy();
        copy(module, &tree, &format!("modules/{number:02}-{name}"))?;
    }
    let script = fs::read_to_string(root().join("tests/lab/rdma.sh"))?;
    let init = tree.join("init");
    fs::write(&init, script.replacen("PLAN", plan, 1))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let image = directory.join("initrd");
    let pack = format!(
        "find . | {SHELL} cpio -o -H newc 2>/dev/null | gzip -1 > '{}'",
        image.display()
    );
    progress::run(Command::new("sh").args(["-ec", &pack]).current_dir(&tree))?;
    Ok(image)
}

fn copy(from: &Path, tree: &Path, to: &str) -> Result<()> {
    let to = tree.join(to);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn relative(path: &Path) -> Result<&str> {
    let text = path.to_str().context("a path")?;
    Ok(text.trim_start_matches('/'))
}

/// What a program or library is linked with, the loader included.
fn libraries(file: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(file).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths
        .map(|path| PathBuf::from(path.trim_end_matches(':')))
        .collect())
}

/// The modules and those that they need, each behind what it needs.
fn modules(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut all = BTreeMap::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                left.push(path);
            } else if let Some(name) = module_name(&path) {
                all.insert(name, path);
            }
        }
    }
    let mut order = Vec::new();
    for name in MODULES {
        add(name, &all, &mut order)?;
    }
    Ok(order)
}

/// As the kernel calls it.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

fn add(name: &str, all: &BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Result<()> {
    let Some(path) = all.get(name) else {
        // Built in.
        return if MODULES.contains(&name) && name != "crc32c_generic" {
            bail!("the kernel has no module {name}")
        } else {
            Ok(())
        };
    };
    if order.contains(path) {
        return Ok(());
    }
    for needed in needs(&fs::read(path)?) {
        add(&needed, all, order)?;
    }
    order.push(path.clone());
    Ok(())
}

/// What a module says in its section `.modinfo` that it needs.
fn needs(module: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"\0depends=";
    let Some(at) = module.windows(MARK.len()).position(|part| part == MARK) else {
        return Vec::new();
    };
    let text = &module[at + MARK.len()..];
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(0);
    let names = String::from_utf8_lossy(&text[..end]).into_owned();
    let names = names.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::{module_name, needs};
    use std::path::Path;

    #[test]
    fn a_module_says_what_it_needs() {
        let module = b"ELF\0license=GPL\0depends=ib_core,udp_tunnel,ip6-udp-tunnel\0more\0";
        assert_eq!(needs(module), ["ib_core", "udp_tunnel", "ip6_udp_tunnel"]);
        assert_eq!(needs(b"ELF\0depends=\0"), [""; 0]);
        assert_eq!(needs(b"ELF"), [""; 0]);
    }

    #[test]
    fn modules_are_named_with_underscores() {
        let name = module_name(Path::new("/m/crc32c-generic.ko"));
        assert_eq!(name.as_deref(), Some("crc32c_generic"));
        assert_eq!(module_name(Path::new("/m/modules.order")), None);
    }
}
