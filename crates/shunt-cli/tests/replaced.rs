//! Processes that go on with a libshunt.so that an upgrade has replaced.

mod common;

use common::isolated::stdout;

/// What `why` and `doctor` say of a process whose library of this version of the protocol was replaced as dpkg
/// replaces files, and the status of `doctor`.
fn after_upgrade_from(protocol: u16) -> Option<String> {
    let script = r#"
        dir=$(mktemp -d)
        cp OLD $dir/libshunt.so
        LD_PRELOAD=$dir/libshunt.so sleep 50 &
        until grep -q libshunt /proc/$!/maps; do sleep 0.01; done
        cp $SHUNT_LIB $dir/libshunt.new
        mv $dir/libshunt.new $dir/libshunt.so
        $SHUNT why $!
        $SHUNT doctor $! | grep -A 1 program
        $SHUNT doctor $! >/dev/null; echo $?
        kill $!
        rm -r $dir
    "#;
    let old = common::library(protocol);
    stdout(&script.replace("OLD", &old.display().to_string()))
}

#[test]
fn a_process_of_an_earlier_version_is_told_of_after_an_upgrade() {
    let Some(out) = after_upgrade_from(shunt_abi::PROTOCOL - 1) else {
        return;
    };
    let version = format!("speaks version {}", shunt_abi::PROTOCOL - 1);
    assert_eq!(out.matches(&version).count(), 2, "{out}");
    assert_eq!(out.matches("-> start it again").count(), 2, "{out}");
    assert!(out.ends_with("\n1\n"), "{out}");
}

#[test]
fn a_process_of_the_same_version_is_well_after_an_upgrade() {
    let Some(out) = after_upgrade_from(shunt_abi::PROTOCOL) else {
        return;
    };
    let sentence = "runs under Shunt, with a libshunt.so of this protocol that has been replaced";
    assert_eq!(out.matches(sentence).count(), 2, "{out}");
    assert!(!out.contains("->") && out.ends_with("\n0\n"), "{out}");
}
