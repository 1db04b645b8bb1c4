//! RabbitMQ: a publisher whose messages are confirmed and a consumer beside it, who must get them in order; and
//! messages got one by one.

use super::{PYTHON, script};
use crate::lab::{Lab, Side, Variant, free_ports};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let [port, names, nodes] = free_ports()?;
    serve(&mut lab, port, names, nodes)?;
    let port = port.to_string();
    let output = lab.client(60, &[PYTHON, &script("rabbitmq_check.py"), &port])?;
    if !output.contains(" messages, 0 errors") {
        bail!("rabbitmq_check: {output}");
    }
    if let Some(wrong) = wrong(&lab.server_output()) {
        bail!("rabbitmq: {wrong}");
    }
    lab.finish(Signal::TERM)
}

/// What the broker has said that it should not have: all lines of a report, which begin with the same time and process.
fn wrong(output: &str) -> Option<String> {
    let start = |line: &str| line.splitn(5, ' ').take(4).collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = output.lines().collect();
    let reports = lines.chunk_by(|one, next| start(one) == start(next));
    let mut reports = reports.map(|lines| lines.join("\n"));
    let is_wrong = |report: &String| {
        report.contains("unexpectedly") || report.contains("[error]") && !is_late_child(report)
    };
    reports.find(is_wrong)
}

/// A client that closes its connection right after its last channel makes the broker report, now and then, that the
/// channel's supervisor had shut down by itself when the connection's shut it down. It does so natively: 153 times when
/// 2,880 connections were closed without a pause between the broker's two answers.
fn is_late_child(report: &str) -> bool {
    let all = |word, allowed: &[&str]| {
        let mut lines = report.lines().filter_map(|line| line.split_once(word));
        let is_first_allowed = lines
            .next()
            .is_some_and(|(_, said)| allowed.contains(&said));
        // Two reports of one moment are one here.
        is_first_allowed && lines.all(|(_, said)| allowed.contains(&said))
    };
    report.contains(",rabbit_channel_sup_sup}")
        && all(" errorContext: ", &["shutdown_error"])
        && all(" reason: ", &["shutdown", "noproc"])
}

/// Starts a broker whose files are in the lab's directory, and the daemon that knows Erlang's nodes by their names,
/// which the broker would start by itself and leave behind.
fn serve(lab: &mut Lab, port: u16, names: u16, nodes: u16) -> Result<()> {
    let number = names.to_string();
    let words = ["epmd", "-address", "127.0.0.1", "-port", &number];
    lab.serve_beside(Side::Client, names, Signal::TERM, &words)?;
    let directory = lab.directory.display();
    let settings = [
        format!("HOME={directory}"),
        format!("ERL_EPMD_PORT={names}"),
        "RABBITMQ_NODENAME=shunt@localhost".to_owned(),
        "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1".to_owned(),
        format!("RABBITMQ_NODE_PORT={port}"),
        format!("RABBITMQ_DIST_PORT={nodes}"),
        format!("RABBITMQ_MNESIA_BASE={directory}/mnesia"),
        format!("RABBITMQ_LOG_BASE={directory}"),
        "RABBITMQ_LOGS=-".to_owned(),
        // What is installed has no say.
        "RABBITMQ_CONF_ENV_FILE=/dev/null".to_owned(),
        format!("RABBITMQ_CONFIG_FILE={directory}/none"),
        format!("RABBITMQ_ENABLED_PLUGINS_FILE={directory}/none"),
    ];
    let mut words = vec!["env"];
    words.extend(settings.iter().map(String::as_str));
    // The program of this name in `/usr/sbin` takes another user.
    words.push("/usr/lib/rabbitmq/bin/rabbitmq-server");
    lab.serve(port, &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE_CHILD: &str = "\
2026-11-30 08:06:19.576+00:00 [info] <0.883.0> closing AMQP connection <0.883.0> (127.0.0.1:4 -> 127.0.0.1:5)
2026-11-30 08:06:19.577+00:00 [error] <0.908.0>     supervisor: {<0.908.0>,rabbit_channel_sup_sup}
2026-11-30 08:06:19.577+00:00 [error] <0.908.0>     errorContext: shutdown_error
2026-11-30 08:06:19.577+00:00 [error] <0.908.0>     reason: shutdown
2026-11-30 08:06:19.577+00:00 [error] <0.908.0>     offender: [{nb_children,1},
2026-11-30 08:06:19.577+00:00 [error] <0.908.0>                {id,channel_sup}]
2026-11-30 08:06:19.577+00:00 [info] <0.941.0> accepting AMQP connection <0.941.0> (127.0.0.1:4 -> 127.0.0.1:5)
";

    #[test]
    fn a_report_is_wrong_but_that_of_a_channel_which_had_ended() {
        assert_eq!(wrong(LATE_CHILD), None);
        let killed = LATE_CHILD.replace("reason: shutdown", "reason: killed");
        let report = wrong(&killed).unwrap();
        assert_eq!(report.lines().count(), 5, "{report}");
        assert!(report.contains("reason: killed") && report.ends_with("channel_sup}]"));
        let both = LATE_CHILD.replace(
            "reason: shutdown",
            "reason: shutdown\n2026-11-30 08:06:19.577+00:00 [error] <0.908.0>     reason: killed",
        );
        assert!(wrong(&both).is_some());
        let gone = LATE_CHILD.replace("reason: shutdown", "reason: noproc");
        assert_eq!(wrong(&gone), None);
        let another = LATE_CHILD.replace("channel_sup_sup", "connection_sup");
        assert!(wrong(&another).is_some());
        let second = format!("{LATE_CHILD}2026-11-30 [error] <0.9.0> crash");
        assert!(wrong(&second).unwrap().ends_with("crash"));
        let closed = "client unexpectedly closed TCP connection";
        assert_eq!(wrong(closed).as_deref(), Some(closed));
    }
}
