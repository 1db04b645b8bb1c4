//! Which container a process is in, as the paths of its control groups show: those that start
//! containers make a group for each, named after it.
//!
//! Of several on a path the outermost is the one. Who is in it may make groups inside, and name them as he likes.

/// What the names of containers' control groups begin with, by who starts them.
const PREFIXES: &[&str] = &[
    "docker-",
    "libpod-",
    "cri-containerd-",
    "crio-",
    "nerdctl-",
    "lxc.payload.",
    "machine-",
];

/// The container's name or, where the path has only that, its number: 64 hexadecimal digits.
pub(crate) fn of(cgroups: &[String]) -> Option<&str> {
    cgroups
        .iter()
        .find_map(|path| path.split('/').find_map(name))
}

/// A container as lists show it, zero padded: the first twelve digits of a number, as Docker and podman
/// have it.
pub(crate) fn shown(container: &str) -> [u8; 16] {
    let most = if is_number(container) { 12 } else { 16 };
    let mut shown = [0; 16];
    let bytes = container.bytes().take(most);
    shown
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
    shown
}

/// The container that a part of a path names.
fn name(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let named = PREFIXES.iter().find_map(|prefix| part.strip_prefix(prefix));
    // The process that watches a container, outside it.
    let watches = part.starts_with("libpod-conmon-") || part.starts_with("crio-conmon-");
    let found = named.filter(|name| !name.is_empty() && !watches);
    found.or_else(|| is_number(part).then_some(part))
}

fn is_number(part: &str) -> bool {
    part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn of_path(path: &str) -> Option<String> {
        of(&["/".to_owned(), path.replace("ID", ID)]).map(str::to_owned)
    }

    #[test]
    fn each_runtimes_paths_show_the_container() {
        for path in [
            "/system.slice/docker-ID.scope",
            "/docker/ID",
            "/machine.slice/libpod-ID.scope/container",
            "/libpod_parent/libpod-ID",
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope",
            "/kubepods/burstable/pod1/ID",
            "/kubepods.slice/crio-ID.scope",
        ] {
            assert_eq!(of_path(path).as_deref(), Some(ID), "{path}");
        }
        assert_eq!(
            of_path("/lxc.payload.web/system.slice").as_deref(),
            Some("web")
        );
        assert_eq!(
            of_path("/machine.slice/machine-web.scope").as_deref(),
            Some("web")
        );
    }

    #[test]
    fn nobody_leaves_a_container_by_a_group_that_he_has_made_inside() {
        assert_eq!(
            of_path("/lxc.payload.web/docker/ID").as_deref(),
            Some("web")
        );
        let other = "f".repeat(64);
        let inside = format!("/system.slice/docker-ID.scope/docker-{other}.scope");
        assert_eq!(of_path(&inside).as_deref(), Some(ID));
    }

    #[test]
    fn a_number_is_shown_short() {
        assert_eq!(&shown(ID), b"0123456789ab\0\0\0\0");
        assert_eq!(&shown("a-long-name-of-a-machine"), b"a-long-name-of-a");
        assert_eq!(&shown("web")[..4], b"web\0");
    }

    #[test]
    fn what_is_in_none_shows_none() {
        for path in [
            "/",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice/docker.service",
            "/machine.slice/libpod-conmon-ID.scope",
        ] {
            assert_eq!(of_path(path), None, "{path}");
        }
        assert_eq!(of(&[]), None);
    }
}
