//! Installs what the tests and the demo run, from Debian's own packages.

use crate::progress;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A file that proves its presence, and the Debian 12 package that has it.
type Package = (&'static str, &'static str);

/// What a task needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The demo: the build and three servers with their loads.
    Demo,
    /// The proof that a newcomer's two commands work: what makes a bare system.
    Newcomer,
    /// What makes the Debian package and, to try it, a bare system.
    Package,
    /// Containers of podman's, besides the tests.
    Containers,
    /// The lab: a guest under QEMU with soft-RoCE.
    Lab,
    /// Tests and measurements.
    Everything,
}

const DEMO: &[Package] = &[
    ("/usr/bin/gcc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
    ("/usr/bin/readelf", "binutils"),
    ("/usr/bin/redis-server", "redis-server"),
    ("/usr/bin/redis-benchmark", "redis-tools"),
    ("/usr/bin/memcached", "memcached"),
    ("/usr/bin/memcslap", "libmemcached-tools"),
    ("/usr/sbin/nginx", "nginx-light"),
    ("/usr/bin/wrk", "wrk"),
];

const NEWCOMER: &[Package] = &[
    ("/usr/sbin/debootstrap", "debootstrap"),
    ("/usr/bin/git", "git"),
];

const PACKAGE: &[Package] = &[
    ("/usr/bin/gcc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
    ("/usr/bin/readelf", "binutils"),
    ("/usr/bin/dpkg-shlibdeps", "dpkg-dev"),
    ("/usr/bin/xz", "xz-utils"),
    ("/usr/sbin/debootstrap", "debootstrap"),
];

const CONTAINERS: &[Package] = &[("/usr/bin/podman", "podman"), ("/usr/sbin/runc", "runc")];

const LAB: &[Package] = &[
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/bin/busybox", "busybox-static"),
    ("/sbin/ip", "iproute2"),
    ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "libibverbs1"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/usr/bin/iperf3", "iperf3"),
];

const TESTS: &[Package] = &[
    ("/usr/bin/ab", "apache2-utils"),
    ("/usr/bin/curl", "curl"),
    ("/usr/bin/openssl", "openssl"),
    ("/usr/bin/python3.11", "python3"),
    (
        "/usr/lib/python3.11/test/test_socket.py",
        "libpython3.11-testsuite",
    ),
    ("/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
    ("/usr/bin/socat", "socat"),
    ("/usr/sbin/apache2", "apache2"),
    ("/usr/sbin/php-fpm8.2", "php8.2-fpm"),
    ("/usr/sbin/haproxy", "haproxy"),
    ("/usr/sbin/sshd", "openssh-server"),
    ("/usr/bin/ssh", "openssh-client"),
    ("/usr/bin/rsync", "rsync"),
    ("/usr/bin/git", "git"),
    ("/usr/sbin/mariadbd", "mariadb-server"),
    ("/usr/bin/sysbench", "sysbench"),
    ("/usr/sbin/mosquitto", "mosquitto"),
    ("/usr/bin/mosquitto_pub", "mosquitto-clients"),
    ("/usr/bin/node", "nodejs"),
    ("/usr/bin/javac", "default-jdk-headless"),
    ("/usr/lib/python3/dist-packages/zmq", "python3-zmq"),
    ("/usr/bin/mpirun", "openmpi-bin"),
    ("/usr/bin/mpicc", "libopenmpi-dev"),
    ("/usr/bin/gunicorn", "gunicorn"),
    ("/usr/bin/uwsgi-core", "uwsgi-core"),
    (
        "/usr/lib/uwsgi/plugins/python3_plugin.so",
        "uwsgi-plugin-python3",
    ),
    ("/usr/sbin/varnishd", "varnish"),
    ("/usr/share/java/zookeeper.jar", "libzookeeper-java"),
    ("/usr/lib/python3/dist-packages/kazoo", "python3-kazoo"),
    ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    ("/usr/lib/python3/dist-packages/pika", "python3-pika"),
    ("/usr/bin/gdb", "gdb"),
    ("/usr/bin/strace", "strace"),
    ("/usr/bin/tmux", "tmux"),
    ("/usr/include/valgrind/callgrind.h", "valgrind"),
    ("/usr/bin/unshare", "util-linux"),
    ("/bin/ip", "iproute2"),
    ("/usr/sbin/nft", "nftables"),
    ("/usr/bin/ps", "procps"),
    ("/usr/bin/musl-gcc", "musl-tools"),
];

/// The command that installs packages, without their names.
pub(crate) const INSTALL: &str = "apt-get install --no-install-recommends";

/// How long to wait for somebody else who installs packages just now (seconds), as a fresh machine's updates do.
const LOCKED: &str = "DPkg::Lock::Timeout=300";

const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs what is missing; says nothing when nothing is.
pub(crate) fn run(need: Need) -> Result<()> {
    let missing = missing(need);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "missing programs and no apt-get here; install the equivalents of these Debian 12 packages: {list}"
        );
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "programs are missing; run this as root, then the same command again:\n    {INSTALL} {list}"
        );
    }
    progress::step(&format!("installing {list}"), || install(&missing))
        .with_context(|| format!("apt-get could not install {list}"))?;
    let left = self::missing(need);
    if !left.is_empty() {
        bail!("still missing after installation: {}", left.join(" "));
    }
    Ok(())
}

fn missing(need: Need) -> Vec<&'static str> {
    let lists: &[&[Package]] = match need {
        Need::Demo => &[DEMO],
        Need::Newcomer => &[DEMO, NEWCOMER],
        Need::Package => &[PACKAGE],
        Need::Containers => &[DEMO, TESTS, CONTAINERS],
        Need::Lab => &[LAB],
        Need::Everything => &[DEMO, TESTS],
    };
    lists
        .iter()
        .copied()
        .flatten()
        .filter(|(file, _)| !Path::new(file).exists())
        .map(|&(_, package)| package)
        .collect()
}

fn install(packages: &[&str]) -> Result<()> {
    let _quiet = KeepServicesOff::new()?;
    if apt(packages).is_ok() {
        return Ok(());
    }
    // A fresh machine has no package lists, an old one stale ones.
    let _ = progress::run(Command::new("apt-get").args(["update", "-q"]));
    apt(packages)
}

fn apt(packages: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command
        .args(INSTALL.split(' ').skip(1))
        .args(["-y", "-q", "-o", LOCKED])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    progress::run(&mut command)
}

/// While this lives, packages do not start their services (Debian's
/// `policy-rc.d` says no). An administrator's own policy is left alone.
struct KeepServicesOff {
    ours: bool,
}

impl KeepServicesOff {
    fn new() -> Result<Self> {
        let ours = !Path::new(POLICY).exists();
        if ours {
            fs::write(POLICY, "#!/bin/sh\nexit 101\n").context("write policy-rc.d")?;
            fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { ours })
    }
}

impl Drop for KeepServicesOff {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}
