//! Questions to policies that are written as in the file.

use proptest::prelude::*;

use super::*;
use crate::config::Config;

const HOST: Namespace = Namespace {
    cookie: 1,
    is_host: true,
    number: Some(4_026_531_840),
};
const INSIDE: Namespace = Namespace {
    cookie: 2,
    is_host: false,
    number: Some(4_026_532_999),
};

/// A process of this user and name on the host.
fn end(user: u32, comm: &str) -> End<'_> {
    End {
        user,
        groups: Some(&[]),
        cgroups: Some(&[]),
        container: None,
        program: Some("/usr/bin/it"),
        comm,
        namespace: HOST,
        addresses: [address(80), address(4000)],
    }
}

fn address(port: u16) -> (IpAddr, u16) {
    ([10, 0, 0, 1].into(), port)
}

fn policy(text: &str) -> Policy {
    Config::parse(text).unwrap().policy
}

/// The reason why two ends are kept apart.
fn reason(text: &str, ends: [End<'_>; 2]) -> Option<Reason> {
    let policy = policy(text);
    let [one, other] = ends;
    let found = policy.against(ends).map(|denial| denial.reason);
    let turned = policy.against([other, one]).map(|denial| denial.reason);
    assert_eq!(found, turned, "the order of the ends does not count");
    found
}

/// Why an end that leaves the host stays on TCP.
fn leaving(text: &str, end: End<'_>) -> Option<Reason> {
    let denial = policy(text).against_leaving(end)?;
    Some(denial.reason)
}

/// Whether a rule that denies all of whom `condition` is true denies this end.
fn matches(condition: &str, end: End<'_>) -> bool {
    let text = format!("[[policy.rule]]\naction = \"deny\"\n{condition}\n");
    policy(&text).denies(end, Some(end)).is_some()
}

#[test]
fn a_rule_denies_a_program_if_nothing_else_decides() {
    let deny = |conditions: &str| format!("[[policy.rule]]\naction = \"deny\"\n{conditions}\n");
    let allow = |conditions: &str| format!("[[policy.rule]]\naction = \"allow\"\n{conditions}\n");
    let line = |text: &str| policy(text).denies_program(7, "/usr/bin/redis-server", "redis-server");
    assert_eq!(line(""), None);
    assert_eq!(line(&deny("")), Some(1));
    assert_eq!(line(&deny("program = \"redis*\"")), Some(1));
    assert_eq!(
        line(&deny(
            "program = [\"nginx\", \"/usr/*/redis-server\"]\nuser = 7"
        )),
        Some(1)
    );
    // It is about others, or about some of its connections.
    for condition in [
        "program = \"nginx\"",
        "program = \"/opt/*\"",
        "user = 8",
        "port = 80",
        "across = \"user\"",
    ] {
        assert_eq!(line(&deny(condition)), None, "{condition}");
    }
    // The first one decides, also where only some connections are its own.
    assert_eq!(line(&(deny("port = 80") + &deny(""))), Some(4));
    assert_eq!(line(&(allow("port = 80") + &deny(""))), None);
    assert_eq!(line(&(allow("user = 7") + &deny(""))), None);
    assert_eq!(line(&(allow("user = 8") + &deny(""))), Some(4));
}

#[test]
fn an_empty_file_pairs_processes_of_one_user_only() {
    assert_eq!(reason("", [end(1, "a"), end(1, "b")]), None);
    let differ = [end(1, "a"), end(2, "b")];
    assert_eq!(reason("", differ), Some(Reason::OtherUser));
    assert_eq!(reason("[policy]\ncross_user = true", differ), None);
}

#[test]
fn namespaces_are_crossed_unless_the_file_says_otherwise() {
    let inside = End {
        namespace: INSIDE,
        ..end(1, "b")
    };
    let ends = [end(1, "a"), inside];
    assert_eq!(reason("", ends), None);
    let apart = "[policy]\ncross_namespace = false";
    assert_eq!(reason(apart, ends), Some(Reason::OtherNamespace));
}

#[test]
fn the_first_rule_that_matches_an_end_decides_and_both_ends_must_be_allowed() {
    let text = r#"
[[policy.rule]]
action = "allow"
program = "nginx"
[[policy.rule]]
action = "deny"
"#;
    let (nginx, other) = (end(1, "nginx"), end(1, "curl"));
    assert_eq!(reason(text, [nginx, nginx]), None);
    assert_eq!(reason(text, [nginx, other]), Some(Reason::Policy));
    assert_eq!(reason(text, [other, other]), Some(Reason::Policy));
}

#[test]
fn a_denial_names_the_line_of_its_rule() {
    let text = "[policy]\n\n[[policy.rule]]\naction = \"deny\"\nuser = 1\n";
    let denial = policy(text).against([end(1, "a"), end(1, "b")]);
    assert_eq!(denial.unwrap().line, Some(3));
}

#[test]
fn everything_that_a_rule_names_must_match_and_of_a_list_one() {
    let it = end(7, "nginx");
    assert!(matches("user = 7\nprogram = \"nginx\"", it));
    assert!(!matches("user = 8\nprogram = \"nginx\"", it));
    assert!(matches("user = [8, 7]", it) && matches("user = \"root\"", end(0, "x")));
    assert!(matches("port = 80", it) && matches("port = \"3000-4000\"", it));
    assert!(matches("port = [1, 4000]", it) && !matches("port = [1, \"81-3999\"]", it));
    assert!(matches("address = \"10.0.0.0/8\"", it));
    assert!(!matches("address = [\"192.168.0.0/16\", \"::/0\"]", it));
    let member = End {
        groups: Some(&[5, 0]),
        ..it
    };
    assert!(matches("group = \"root\"", member) && !matches("group = [6]", member));
}

#[test]
fn programs_are_known_by_their_path_or_by_their_name() {
    let it = end(7, "redis-server");
    assert!(matches("program = \"redis-*\"", it));
    assert!(matches("program = \"/usr/bin/*\"", it) && !matches("program = \"/opt/*\"", it));
}

#[test]
fn containers_are_known_by_their_control_group_or_by_their_name() {
    let paths = ["/system.slice/docker-0123.scope".to_owned()];
    let inside = End {
        cgroups: Some(&paths),
        container: Some("0123"),
        ..end(7, "a")
    };
    assert!(matches("container = \"*\"", inside) && !matches("container = \"*\"", end(7, "a")));
    assert!(matches("container = \"01*\"", inside) && !matches("container = \"02*\"", inside));
    assert!(matches("container = \"/system.slice/*\"", inside));
    assert!(!matches("container = \"/user.slice/*\"", inside));
}

#[test]
fn namespaces_are_known_by_their_number() {
    let inside = End {
        namespace: INSIDE,
        ..end(7, "a")
    };
    assert!(matches("namespace = \"other\"", inside) && !matches("namespace = \"host\"", inside));
    assert!(matches("namespace = 4026532999", inside));
    assert!(!matches("namespace = 4026532999", end(7, "a")));
}

#[test]
fn a_rule_may_be_about_what_crosses() {
    let text = r#"
[policy]
cross_user = true
[[policy.rule]]
action = "allow"
user = [999, 0]
[[policy.rule]]
action = "deny"
across = "user"
"#;
    assert_eq!(reason(text, [end(999, "redis"), end(0, "x")]), None);
    assert_eq!(reason(text, [end(7, "a"), end(7, "b")]), None);
    let apart = [end(999, "redis"), end(7, "a")];
    assert_eq!(reason(text, apart), Some(Reason::Policy));
    let inside = End {
        namespace: INSIDE,
        ..end(7, "b")
    };
    let text = "[[policy.rule]]\naction = \"deny\"\nacross = \"namespace\"";
    assert_eq!(reason(text, [end(7, "a"), end(7, "b")]), None);
    assert_eq!(reason(text, [end(7, "a"), inside]), Some(Reason::Policy));
}

#[test]
fn a_rule_may_be_about_what_leaves_the_host() {
    let it = end(7, "a");
    assert_eq!(leaving("", it), None);
    let text = "[[policy.rule]]\naction = \"deny\"\nacross = \"host\"";
    assert_eq!(leaving(text, it), Some(Reason::Policy));
    assert_eq!(reason(text, [it, end(7, "b")]), None);
    for across in ["user", "namespace"] {
        let text = format!("[[policy.rule]]\naction = \"deny\"\nacross = \"{across}\"");
        assert_eq!(leaving(&text, it), Some(Reason::Policy), "{across}");
    }
    let text = "[[policy.rule]]\naction = \"allow\"\nuser = 7\n[[policy.rule]]\naction = \"deny\"";
    assert_eq!(leaving(text, it), None);
    assert_eq!(leaving(text, end(8, "a")), Some(Reason::Policy));
}

#[test]
fn what_nobody_knows_of_an_end_counts_against_it() {
    let unknown = End {
        groups: None,
        cgroups: None,
        program: None,
        namespace: Namespace {
            number: None,
            ..INSIDE
        },
        ..end(7, "a")
    };
    for condition in [
        "group = 5",
        "container = \"0123\"",
        "program = \"/usr/bin/x\"",
        "namespace = 5",
    ] {
        assert!(matches(condition, unknown), "{condition}");
        let text = format!(
            "[[policy.rule]]\naction = \"allow\"\n{condition}\n[[policy.rule]]\naction = \"deny\"\n"
        );
        assert_eq!(reason(&text, [unknown; 2]), Some(Reason::Policy), "{text}");
    }
    // What is known to be false is not saved by what is not known.
    assert!(!matches("group = 5\nuser = 8", unknown));
}

/// The parts of a rule that lists of rules are made of below.
fn rules() -> impl Strategy<Value = Vec<(bool, Option<u32>, Option<u16>)>> {
    let user = proptest::option::of(0..3u32);
    let port = proptest::option::of(prop_oneof![Just(80u16), Just(81), Just(4000)]);
    proptest::collection::vec((any::<bool>(), user, port), 0..6)
}

fn written(rules: &[(bool, Option<u32>, Option<u16>)]) -> String {
    let mut text = String::from("[policy]\ncross_user = true\n");
    for (allow, user, port) in rules {
        let action = if *allow { "allow" } else { "deny" };
        text += &format!("[[policy.rule]]\naction = \"{action}\"\n");
        text += &user.map_or(String::new(), |user| format!("user = {user}\n"));
        text += &port.map_or(String::new(), |port| format!("port = {port}\n"));
    }
    text
}

proptest! {
    #[test]
    fn lists_of_rules_are_read_from_the_top(rules in rules(), users in [0..3u32, 0..3u32]) {
        let allowed = |user: u32| {
            let is_it = |rule: &&(bool, Option<u32>, Option<u16>)| {
                rule.1.is_none_or(|u| u == user) && rule.2.is_none_or(|port| port != 81)
            };
            rules.iter().find(is_it).is_none_or(|rule| rule.0)
        };
        let expected = users.iter().all(|user| allowed(*user));
        let ends = users.map(|user| end(user, "a"));
        prop_assert_eq!(reason(&written(&rules), ends).is_none(), expected);
    }
}
