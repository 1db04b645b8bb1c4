//! What is said where no daemon answers, and who listens instead.

use anyhow::anyhow;
use shunt_abi::control_name;

use super::{Control, knock};
use crate::{doctor, sys};

/// No daemon answers: why not, and what to do.
pub(crate) fn nobody() -> anyhow::Error {
    if let Some(path) = Control::named() {
        return anyhow!(
            "no shuntd answers at {}, which SHUNT_SOCKET names, so nothing is known of what runs under Shunt here",
            path.display()
        );
    }
    let why = match (Control::usurper(false), Control::listened_at(false)) {
        (Some((user, _)), _) => {
            format!("user {user} has taken the address of your shuntd, see `shunt doctor`")
        }
        (None, Some(_)) => {
            "who listens at the address of your shuntd takes no connections, see `shunt doctor`"
                .to_owned()
        }
        (None, None) => elsewhere(),
    };
    anyhow!("no shuntd answers, so nothing is known of what runs under Shunt here: {why}")
}

/// Which daemons there are that do not serve this user's `shunt`.
fn elsewhere() -> String {
    let other = doctor::daemon::of_another_version();
    let other = other.map(|name| {
        format!("a shuntd of another version listens (@{name}): ask by the `shunt` of that version")
    });
    let found: Vec<_> = other.into_iter().chain(neighbours()).collect();
    match &found[..] {
        [] => "`shunt run -- CMD` starts one".to_owned(),
        found => found.join("; ") + "; `shunt run -- CMD` starts yours",
    }
}

pub(super) const SELF: &str = "/proc/self";

/// No more users than these are looked for: anybody can take names.
const MOST: usize = 16;

/// Which other users have daemons of their own in this network namespace, and what to do.
pub(crate) fn neighbours() -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let prefix = control_name(Some(own));
    let prefix = prefix.trim_end_matches(|c: char| c.is_ascii_digit());
    let names = listening(SELF);
    let users = names.iter().filter_map(|name| name.strip_prefix(prefix));
    let mut users: Vec<u32> = users.filter_map(|user| user.parse().ok()).collect();
    users.retain(|user| *user != own);
    users.sort_unstable();
    users.truncate(MOST);
    users.retain(|user| serves(*user));
    match &users[..] {
        [] => None,
        [user] => Some(format!(
            "user {user} has a shuntd of his own: ask as that user"
        )),
        users => {
            let users: Vec<_> = users.iter().map(u32::to_string).collect();
            let users = users.join(", ");
            Some(format!(
                "users {users} have shuntds of their own: ask as one of them"
            ))
        }
    }
}

/// Whether who listens at the address of this user's daemon may be it.
fn serves(user: u32) -> bool {
    let owner = knock(Some(user))
        .ok()
        .and_then(|socket| sys::peer_credentials(&socket).ok());
    owner.is_some_and(|(_, owner)| owner == 0 || owner == user)
}

/// The abstract names at which somebody listens in the network namespace of this process, or of another one (its directory in `/proc`).
pub(crate) fn listening(process: &str) -> Vec<String> {
    // Names may be no text.
    let sockets = std::fs::read(format!("{process}/net/unix")).unwrap_or_default();
    let sockets = String::from_utf8_lossy(&sockets);
    let names = sockets.lines().filter_map(name);
    names.map(str::to_owned).collect()
}

/// The abstract name of a line of `/proc/net/unix` (`proc_pid_net(5)`), if the socket listens.
fn name(line: &str) -> Option<&str> {
    /// `__SO_ACCEPTCON`
    const LISTENS: &str = "00010000";
    let mut words = line.split_whitespace().skip(3);
    let listens = words.next() == Some(LISTENS);
    words.nth(3)?.strip_prefix('@').filter(|_| listens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_listens_at_an_abstract_name_counts() {
        let of = |flags, path| {
            let line = format!("0: 00000002 00000000 {flags} 0005 01 4711 {path}");
            name(&line).map(str::to_owned)
        };
        assert_eq!(of("00010000", "@shunt/7/host").unwrap(), "shunt/7/host");
        assert_eq!(of("00000000", "@shunt/7/host"), None);
        assert_eq!(of("00010000", "shunt/7/host"), None);
        assert_eq!(name("Num RefCount Protocol Flags Type St Inode Path"), None);
    }
}
