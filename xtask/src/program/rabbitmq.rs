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
    let output = lab.server_output();
    let wrong = |line: &&str| line.contains("[error]") || line.contains("unexpectedly");
    if let Some(line) = output.lines().find(wrong) {
        bail!("rabbitmq: {line}");
    }
    lab.finish(Signal::TERM)
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
