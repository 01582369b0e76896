//! Waiting until everything answers, by asking as the operator will.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::balancer::Balancer;
use super::network::{HOSTS, Network};
use super::router::Router;
use super::site::Site;
use super::{client, say};
use crate::{interrupt, product};

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// URLs of the two clusters, each with its own route: one without TLS and one with.
const URLS: [&str; 2] = ["http://north.lab.example/", "https://south.lab.example/"];

/// Waits until every router host has answered through the balancer, or something has ended.
pub(super) fn wait(site: &Site, network: &Network, balancer: &mut Balancer, routers: &mut [Router]) -> Result<()> {
    client::write_config(site)?;
    let (mut seen, limit) = (Vec::new(), Instant::now() + READY_TIMEOUT);
    for url in URLS.iter().cycle() {
        interrupt::check()?;
        if let Some(news) = routers.iter_mut().find_map(Router::news) {
            bail!("{news}");
        }
        match balancer.news() {
            Some(news) if balancer.is_down() => bail!("{news}"),
            Some(news) => say(&news),
            None => {}
        }
        let mut curl = network.client.command("curl");
        curl.arg("-K").arg(client::config(site)).args(["--max-time", "2", url]);
        let output = curl.output()?;
        let answer = String::from_utf8_lossy(&output.stdout);
        match HOSTS.iter().find(|(name, _)| answer.starts_with(name)) {
            Some((name, _)) if !seen.contains(name) => seen.push(name),
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(50)),
        }
        if seen.len() == HOSTS.len() {
            break;
        }
        if Instant::now() > limit {
            let why = String::from_utf8_lossy(&output.stderr);
            let log = site.path("balancer.log");
            bail!(
                "only {seen:?} answered within 30 s; {url}: {answer}{why}See {}",
                log.display()
            );
        }
    }
    // Connections are served before the admin socket is open, and before the kernel peek is there.
    let mut status = ask_status(site);
    let is_early = |status: &Result<Value>| {
        let status = status.as_ref();
        status.map_or(true, |status| product::is_loading(&status.to_string()))
    };
    while is_early(&status) && Instant::now() < limit {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(50));
        status = ask_status(site);
    }
    tell_what_is_missing(&status?);
    Ok(())
}

/// Asks `signalbox status` about the balancer.
fn ask_status(site: &Site) -> Result<Value> {
    let mut status = Command::new(site.program());
    status.args(["status", "-o", "json", "--socket"]).arg(site.socket());
    let output = status.output()?;
    ensure!(
        output.status.success(),
        "signalbox status: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("signalbox status")
}

/// Reports the parts of the lab that this machine cannot provide.
fn tell_what_is_missing(status: &Value) {
    for missing in status["degraded"].as_array().into_iter().flatten() {
        let word = |key: &str| missing[key].as_str().unwrap_or_default().to_owned();
        say(&format!(
            "This machine lacks a part of the lab: {}: {}",
            word("feature"),
            word("why")
        ));
    }
}
