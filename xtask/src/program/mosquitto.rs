//! Mosquitto: two publishers and, for each of their topics, two subscribers,
//! who must get every line in order.

use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::fmt::Write;
use std::fs;

const MESSAGES: usize = 5000;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let port = free_port()?;
    let configuration = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nlog_type error\nlog_type warning\n\
         max_queued_messages 0\nmax_inflight_messages 200\n"
    );
    fs::write(lab.directory.join("mosquitto.conf"), configuration)?;
    lab.serve(port, &["/usr/sbin/mosquitto", "-c", "mosquitto.conf"])?;

    for topic in 1..=2 {
        let mut lines = String::new();
        for number in 0..MESSAGES {
            let size = number * 7 % 900;
            writeln!(lines, "{topic} {number} {:x>size$}", "")?;
        }
        fs::write(lab.directory.join(format!("topic{topic}")), lines)?;
    }
    let script = format!(
        "sub() {{ mosquitto_sub -p {port} -i $1$2 -c -q 1 -t topic$1 $3 $4; }}
# The broker knows the subscribers before anything is published, and keeps for
# them what comes before they are back.
for topic in 1 2; do for n in a b; do sub $topic $n -E || exit; done; done
for topic in 1 2; do
    for n in a b; do sub $topic $n -C {MESSAGES} >got$topic$n & all=\"$all $!\"; done
    mosquitto_pub -p {port} -i pub$topic -q 1 -t topic$topic -l <topic$topic & all=\"$all $!\"
done
for one in $all; do wait $one || exit; done
for topic in 1 2; do for n in a b; do cmp topic$topic got$topic$n || exit; done; done"
    );
    lab.client(60, &["bash", "-c", &script])?;
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("mosquitto: {output}");
    }
    lab.finish(Signal::TERM)
}
