//! What a filter's words stand for outside of it: names of services and of programs.

use std::num::ParseIntError;

/// A port, by its number or by the name of its service (`services(5)`).
pub(crate) fn port(word: &str) -> Result<u16, ParseIntError> {
    word.parse().or_else(|wrong| {
        let services = std::fs::read_to_string("/etc/services").unwrap_or_default();
        service(&services, word).ok_or(wrong)
    })
}

/// The port of a service over TCP in the text of `services(5)`, by its name or an alias.
fn service(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, port) = (words.next()?, words.next()?.strip_suffix("/tcp")?);
        let is_it = first == name || words.any(|alias| alias == name);
        is_it.then(|| port.parse().ok())?
    })
}

/// Whether a process that calls itself `comm` may be of this name: the kernel keeps the first 15 bytes of it (`PR_SET_NAME(2const)`).
pub(crate) fn is_named(comm: &str, name: &str) -> bool {
    const KEPT: usize = 15;
    let name = name.as_bytes();
    comm.as_bytes() == &name[..name.len().min(KEPT)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_found_by_its_names_over_tcp() {
        let text =
            "# ssh 1/tcp\nssh\t22/udp\nssh\t22/tcp # Secure\nhttp 80/tcp www\nodd 70000/tcp\n";
        assert_eq!(service(text, "ssh"), Some(22));
        assert_eq!(service(text, "www"), Some(80));
        for unknown in ["Secure", "odd", "22", "", "http2"] {
            assert_eq!(service(text, unknown), None, "{unknown}");
        }
        assert_eq!(port("443"), Ok(443));
        assert!(port("no-such-service").is_err() && port("65536").is_err());
    }

    #[test]
    fn the_kernel_cuts_names() {
        assert!(is_named("averyveryverylo", "averyveryverylongname"));
        assert!(
            is_named("redis", "redis")
                && !is_named("redis", "redi")
                && !is_named("redis", "redis-server")
        );
    }
}
