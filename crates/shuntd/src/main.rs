//! The `shuntd` program: command line, signals, exit codes.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use shuntd::{Daemon, Given, Scope, Signals, Source};

/// Where the configuration is unless the command line or a user says otherwise.
const CONFIG: &str = "/etc/shunt/shunt.toml";
/// Another daemon has the address.
const ALREADY: u8 = 2;
/// A rule denies all of the program (or, without a name, the user) that is asked about.
const DENIED: u8 = 3;

/// Joins the two ends of local TCP connections of programs that run under Shunt.
///
/// Without options it serves the processes of the user who starts it, in the
/// foreground, until SIGTERM or SIGINT. `shunt run` starts one when needed.
#[derive(Debug, Parser)]
#[command(name = "shuntd", version)]
struct Options {
    /// Serve all users of this host (must be root)
    #[arg(long)]
    system: bool,
    /// With --system: listen at this socket file, too, for programs of other network namespaces
    /// (containers) [default: /run/shunt/VERSION]
    #[arg(long, value_name = "FILE", requires = "system")]
    socket: Option<PathBuf>,
    /// Stay in the foreground (always the case)
    #[arg(long)]
    foreground: bool,
    /// Read this configuration [default: if they exist, the user's shunt/shunt.toml in
    /// $XDG_CONFIG_HOME (not with --system), or /etc/shunt/shunt.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say whether the configuration, or this file, is valid, and end
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "config")]
    check: Option<Option<PathBuf>>,
    /// With --check: end with status 3 if a rule denies all connections of this program, or of the user if the names
    /// are empty, and say which (for `shunt doctor`)
    #[arg(long, value_names = ["UID", "PATH", "COMM"], num_args = 3, requires = "check", hide = true)]
    program: Option<Vec<String>>,
    /// Call the shuntd of another host, as the configuration says, tell whether it answers with the same key, and end
    #[arg(long, value_name = "ADDRESS", conflicts_with = "check")]
    reach: Option<IpAddr>,
    /// Write 1 to this descriptor and close it once clients can connect; or write 2 if another shuntd serves
    /// them already, or why none can start
    #[arg(long, value_name = "N")]
    ready_fd: Option<i32>,
    /// End after this long without a client (`shunt run` starts shuntd with 60)
    /// [default: never]
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        hide_default_value = true
    )]
    linger: u32,
    /// Print notable events to standard error
    #[arg(long, short)]
    verbose: bool,
    /// Find ends by their addresses only (for tests)
    #[arg(long, hide = true)]
    by_addresses: bool,
    /// Look for RDMA devices in this directory (for tests)
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    devices: Option<PathBuf>,
    /// Listen on this abstract address instead (for tests)
    #[arg(long, value_name = "NAME", hide = true)]
    name: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match (&options.check, options.reach) {
        (Some(file), _) => check(&options, file.as_deref()),
        (None, Some(address)) => reach(&options, address),
        (None, None) => serve(&options),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            shuntd::log_error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Reads the configuration and says what is there.
fn check(options: &Options, file: Option<&Path>) -> Result<ExitCode> {
    let source = source(options.system, file);
    let config = source.load()?;
    let path = source.path.display();
    if source.path.exists() {
        let rules = config.policy.rules.len();
        let s = if rules == 1 { "" } else { "s" };
        println!("{path}: valid, {rules} rule{s}");
        if let Some(between) = &config.hosts {
            // Whoever may not read the key can check the rest.
            if options.system || rustix::process::geteuid().is_root() {
                let keys = between.keys();
                let keys = keys.map_err(|mistake| anyhow!("{path}:{mistake}"))?;
                println!("{between}; public key {}", keys.public());
            } else {
                println!("{between}; whether the key can be used is checked for root only");
            }
        }
    } else {
        println!("{path} does not exist: the defaults hold");
    }
    if let Some([user, program, comm]) = options.program.as_deref() {
        let user = user
            .parse()
            .context("--program begins with a user's number")?;
        if let Some(line) = config.policy.denies_program(user, program, comm) {
            let all = format!("all of user {user}");
            let whom = if comm.is_empty() { &all } else { comm };
            println!("the rule at line {line} denies {whom}");
            return Ok(ExitCode::from(DENIED));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Calls another host's daemon.
fn reach(options: &Options, address: IpAddr) -> Result<ExitCode> {
    let source = source(true, options.config.as_deref());
    let config = source.load()?;
    let path = source.path.display();
    let between = config.hosts.as_ref();
    let between = between.with_context(|| {
        format!("{path} has no [hosts]: it says whom this host talks to, and by which key")
    })?;
    between
        .reach(address.to_canonical())
        .with_context(|| address.to_string())?;
    println!("{address}: a shuntd of this version answers, and has the same key");
    Ok(ExitCode::SUCCESS)
}

/// Where the configuration is.
fn source(system: bool, file: Option<&Path>) -> Source {
    let users = || {
        // What is not absolute is to be ignored (XDG Base Directory Specification).
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let set = |name| path(name).filter(|path| path.is_absolute());
        let home = || Some(set("HOME")?.join(".config"));
        let directory = set("XDG_CONFIG_HOME").or_else(home)?;
        Some(directory.join("shunt/shunt.toml"))
    };
    let own = || users().filter(|path| !system && path.exists());
    Source {
        path: file
            .map(Path::to_owned)
            .or_else(own)
            .unwrap_or_else(|| CONFIG.into()),
        required: file.is_some(),
    }
}

fn serve(options: &Options) -> Result<ExitCode> {
    let ready = options.ready_fd.map(shuntd::adopt_descriptor).transpose();
    let mut ready = ready.context("--ready-fd does not name an open descriptor above 2")?;
    let done = serve_until_told(options, &mut ready);
    if let (Err(error), Some(ready)) = (&done, ready) {
        say(&ready, &format!("{error:#}"));
    }
    done
}

/// Tells whoever started this process.
fn say(ready: &OwnedFd, text: &str) {
    let _ = rustix::io::write(ready, text.as_bytes()); // Nobody may be waiting any more.
}

fn serve_until_told(options: &Options, ready: &mut Option<OwnedFd>) -> Result<ExitCode> {
    let mut given = Given::new().context("what the service manager hands over cannot be used")?;
    let signals = Signals::new().context("cannot receive signals")?;
    let uid = rustix::process::geteuid();
    ensure!(!options.system || uid.is_root(), "--system needs root");
    let (scope, number) = if options.system {
        (Scope::Host, None)
    } else {
        (Scope::User(uid.as_raw()), Some(uid.as_raw()))
    };
    let source = source(options.system, options.config.as_deref());
    let config = source.load()?;
    raise_descriptor_limit();
    shuntd::come_first();

    let name = options
        .name
        .clone()
        .unwrap_or_else(|| shunt_abi::control_name(number));
    let listener = given.named(&name).context("cannot listen for clients")?;
    let listener = match listener.map_or_else(|| shuntd::listen(&name), Ok) {
        Ok(listener) => listener,
        Err(Errno::ADDRINUSE) => return is_taken(&name, number, ready),
        Err(error) => return Err(error).context("cannot listen for clients"),
    };
    let mut daemon = Daemon::new(listener, scope, config, options.verbose)
        .context("cannot set up the daemon")?;
    if options.system {
        if let Some(devices) = &options.devices {
            daemon.set_devices(devices.clone());
        }
        cross_namespaces(&mut daemon, options, &mut given)?;
        let path = source.path.display();
        let talks = daemon.talk_to_hosts();
        talks.with_context(|| path.to_string())?;
        shuntd::give_up().context("cannot give up what is not needed of root's rights")?;
    }
    if let Some(address) = given.left() {
        bail!("the service manager listens at {address}, where no client of this version looks");
    }
    let linger = Duration::from_secs(options.linger.into());
    daemon.set_linger(Some(linger).filter(|linger| !linger.is_zero()));
    daemon
        .stop_by(&signals.stop)
        .and_then(|()| daemon.reload_by(signals.reload, source))
        .context("cannot set up the daemon")?;
    match ready.take() {
        Some(ready) => say(&ready, "1"),
        // Who is started by `shunt run` is not the service whose environment that has.
        None => shuntd::notify_ready(),
    }
    daemon.run().context("epoll failed")?;
    // What clients passed is closed by the end of the process, which waits for
    // nothing.
    std::mem::forget(daemon);
    Ok(ExitCode::SUCCESS)
}

/// Says who has the address at which this daemon was to listen, and how the process ends.
fn is_taken(name: &str, user: Option<u32>, ready: &mut Option<OwnedFd>) -> Result<ExitCode> {
    let is_own = |user: u32| user == 0 || user == rustix::process::geteuid().as_raw();
    let stranger = shuntd::listener_of(name).filter(|(_, user)| !is_own(*user));
    if let Some((pid, user)) = stranger {
        bail!(
            "process {pid} of user {user} has taken the address @{name}: \
             it must end before a shuntd can start"
        );
    }
    let whom = user.map_or("this host".to_owned(), |user| format!("user {user}"));
    shuntd::log_error(&format!("another shuntd already serves {whom}"));
    // The end of the process closes it. Whoever started this process goes on when it is gone, not while it still seems to serve.
    if let Some(ready) = ready.take() {
        say(&ready, "2");
        std::mem::forget(ready);
    }
    Ok(ExitCode::from(ALREADY))
}

/// Serves programs of other network namespaces, too, as far as can be.
fn cross_namespaces(daemon: &mut Daemon, options: &Options, given: &mut Given) -> Result<()> {
    let default = PathBuf::from(shunt_abi::host_socket());
    let path = options.socket.as_ref().unwrap_or(&default);
    let listening = given
        .at(path)?
        .map_or_else(|| shuntd::listen_at(path), Ok)
        .map_err(why_not)
        .with_context(|| format!("cannot listen at {}", path.display()))
        .and_then(|file| Ok(daemon.listen_too(file)?));
    match listening {
        Ok(()) => {}
        Err(error) if options.socket.is_some() => return Err(error),
        Err(error) => {
            shuntd::log_error(&format!("{error:#}: containers will not find this daemon"));
        }
    }
    if !options.by_addresses {
        daemon.find_by_mirrors();
    }
    Ok(())
}

/// What is wrong with a path at which nothing can listen.
fn why_not(error: Errno) -> anyhow::Error {
    match error {
        Errno::NOTSOCK => anyhow!("it is no socket, so it is left as it is: name another file"),
        Errno::INVAL => anyhow!("it is no absolute path"),
        Errno::NOENT => anyhow!("the directory that its directory is to be made in does not exist"),
        Errno::ADDRINUSE => anyhow!("another shuntd listens there"),
        Errno::ACCESS => anyhow!("its directory must be root's, and nobody else may write there"),
        other => other.into(),
    }
}

/// A client takes two descriptors and its stock of memory two more. We use no
/// `select`, so the soft limit protects nothing.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
}
