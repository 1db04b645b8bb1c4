//! `ZooKeeper` with two clients: values of many sizes, changes that one makes and the other watches, and nodes that end
//! with a session.

use super::{PYTHON, script};
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::fs;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let port = free_port()?;
    let configuration = format!(
        "dataDir={}\nclientPortAddress=127.0.0.1\nclientPort={port}\nadmin.enableServer=false\n",
        lab.directory.display()
    );
    fs::write(lab.directory.join("zoo.cfg"), configuration)?;
    let words = [
        "env",
        "-u",
        "JAVA_TOOL_OPTIONS",
        "java",
        "-cp",
        "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-Dzookeeper.forceSync=no",
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        "./zoo.cfg",
    ];
    lab.serve(port, &words)?;
    let port = port.to_string();
    lab.client(60, &[PYTHON, &script("zookeeper_check.py"), &port])?;
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("zookeeper: {output}");
    }
    lab.finish(Signal::TERM)
}
