use super::*;
use crate::ss::connection::tests::{detail, row};
use crate::ss::connection::{connection, listener};

fn parse(line: &str) -> Result<Expression, String> {
    Expression::parse(&[line.to_owned()])
}

/// Whether a plain connection from port 40000 to redis (port 6379, pid 7) is shown, and the
/// listener of that.
fn shows(line: &str) -> (bool, bool) {
    let mut row = row();
    row.name = *b"redis\0\0\0\0\0\0\0\0\0\0\0";
    row.status = Reason::PeerPlain as u8;
    let (connection, listener) = (connection(&row, Some(&detail())), listener(&row, |_| None));
    let expression = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    (
        expression.shows(Item::Connection(&connection)),
        expression.shows(Item::Listener(&listener)),
    )
}

#[test]
fn no_words_show_everything() {
    assert_eq!(shows(""), (true, true));
    assert_eq!(shows("state all"), (true, true));
}

#[test]
fn states_are_those_of_listeners_and_of_connections() {
    for line in ["state listening", "state listen", "exclude established"] {
        assert_eq!(shows(line), (false, true), "{line}");
    }
    for line in ["state established", "state connected", "exclude listening"] {
        assert_eq!(shows(line), (true, false), "{line}");
    }
}

#[test]
fn ports_are_compared_as_numbers() {
    for line in [
        "sport = :6379",
        "sport 6379",
        "sport == 6379",
        "sport>=:6379",
        "sport lt 7000",
    ] {
        assert_eq!(shows(line), (true, true), "{line}");
    }
    for line in ["sport != :6379", "sport gt 6379", "sport = 40000"] {
        assert_eq!(shows(line), (false, false), "{line}");
    }
    // A listener has no peer, whatever that is compared with.
    assert_eq!(shows("dport = :40000"), (true, false));
    assert_eq!(shows("dport != :1"), (true, false));
}

#[test]
fn a_port_may_be_that_of_a_service_and_a_program_may_have_a_long_name() {
    if crate::ss::word::port("ssh").is_ok() {
        assert_eq!(shows("sport = :ssh or src 127.0.0.1:ssh"), (false, false));
    }
    let program = |wanted: &str| Expression::Program(wanted.to_owned());
    let mut row = row();
    row.name = *b"averyveryverylo\0";
    let listener = listener(&row, |_| None);
    assert!(program("averyveryverylongname").shows(Item::Listener(&listener)));
}

#[test]
fn addresses_may_be_networks_and_have_ports() {
    for line in [
        "src 127.0.0.1",
        "src 127.0.0.0/8",
        "src = 127.0.0.1:6379",
        "src :6379",
        "src *:6379",
        "src 0.0.0.0/0",
    ] {
        assert_eq!(shows(line), (true, true), "{line}");
    }
    for line in [
        "src 127.0.0.2",
        "src 10.0.0.0/8",
        "src 127.0.0.1:1",
        "src [::1]:6379",
    ] {
        assert_eq!(shows(line), (false, false), "{line}");
    }
    assert_eq!(shows("dst 127.0.0.1:40000"), (true, false));
    assert_eq!(shows("dst != 10.0.0.0/8"), (true, true));
}

#[test]
fn addresses_of_version_6_are_in_brackets_or_bare() {
    let v6: SocketAddr = "[2001:db8::7]:80".parse().unwrap();
    for word in [
        "2001:db8::7",
        "2001:db8::/32",
        "[2001:db8::7]:80",
        "[2001:db8::]/16:80",
        "::/0",
    ] {
        let network = Network::parse(word);
        if word == "[2001:db8::]/16:80" {
            assert_eq!(network, None, "the bits are within the brackets");
            continue;
        }
        assert!(network.unwrap().has(v6), "{word}");
    }
    assert!(Network::parse("[2001:db8::/32]:80").unwrap().has(v6));
    assert!(!Network::parse("2001:db9::/32").unwrap().has(v6));
    let mapped: SocketAddr = "[::ffff:127.0.0.1]:80".parse().unwrap();
    assert!(Network::parse("127.0.0.1").unwrap().has(mapped));
    assert!(Network::parse("::ffff:127.0.0.0/104").unwrap().has(mapped));
    assert!(!Network::parse("::ffff:128.0.0.0/104").unwrap().has(mapped));
}

#[test]
fn processes_programs_users_reasons_and_paths_are_fields_too() {
    for line in [
        "pid 7",
        "pid = 7",
        "program redis",
        "user root",
        "user 0",
        "uid 0",
    ] {
        assert!(shows(line).0, "{line}");
    }
    for line in ["pid 8", "pid > 7", "program red", "user 1234567"] {
        assert_eq!(shows(line), (false, false), "{line}");
    }
    assert_eq!(shows("reason peer_plain"), (true, false));
    assert_eq!(shows("reason PENDING"), (false, false));
    assert_eq!(shows("path tcp"), (true, false));
    assert_eq!(shows("path = shm"), (false, false));
}

#[test]
fn conditions_are_joined_as_in_ss() {
    for line in [
        "sport 6379 dport 40000",
        "sport 6379 and dport 40000",
        "sport 1 or dport 40000",
        "sport 1 or sport 6379 and dport 40000",
        "( sport 1 or sport 6379 ) and ! dport 1",
        "(sport=:1||sport=:6379)&&path!=shm",
        &("(".repeat(50) + "sport 6379" + &")".repeat(50)),
        "state established not ( pid 8 or pid 9 )",
    ] {
        assert!(shows(line).0, "{line}");
    }
    for line in [
        "sport 6379 dport 1",
        "(sport 6379 or dport 1) and pid 8",
        "not sport 6379",
    ] {
        assert!(!shows(line).0, "{line}");
    }
}

#[test]
fn mistakes_are_named() {
    for (line, part) in [
        ("sport", "needs a value"),
        ("sport = no-such-service", "not a port"),
        ("src = 300.1.1.1", "not an address"),
        ("src 10.0.0.0/33", "not an address"),
        ("( sport 1", "is missing"),
        ("sport 1 )", "not expected"),
        ("colour = red", "no filter"),
        ("state syn-sent", "no state"),
        ("reason NONE", "`shunt reasons` lists all"),
        ("program > a", "equal or not"),
        ("sport 1 and", "the filter ends where"),
        ("(", "the filter ends where"),
        (
            "redis-server",
            "\"redis-server\" is no filter, as `sport = :80` would be",
        ),
        (
            "state listening state established",
            "in front of all else, once",
        ),
        ("sport 1 state listening", "in front of all else, once"),
        ("user = nobody-here", "not a user"),
        (&"( ".repeat(4000), "nested too deeply"),
        (&"not ".repeat(4000), "nested too deeply"),
        (&"pid 1 or ".repeat(100_000), "too long"),
        ("src ::ffff:10.0.0.0/90", "not an address"),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.contains(part), "{line}: {error}");
    }
}
