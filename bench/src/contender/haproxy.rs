//! HAProxy as one would put it before router hosts: TCP mode, so that it may splice, and Host header and server name
//! only peeked at.

use std::process::Command;

use anyhow::Result;

use crate::hosts::NAME;
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::bulk::PORT;
use crate::process;

pub(super) fn command(lab: &Lab, threads: usize, splice: bool) -> Result<Command> {
    let config = lab.dir().join("haproxy.cfg");
    let servers = |port: u16| -> String {
        let line = |(i, host)| format!("  server host{i} {host}:{port} check inter 5s\n");
        (1..).zip(HOSTS).map(line).collect()
    };
    let splice = if splice { "option splice-auto" } else { "" };
    // A request that is not HTTP after all is refused, as signalbox refuses names without a route.
    let text = format!(
        "global
  nbthread {threads}
  maxconn 5000
defaults
  mode tcp
  {splice}
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend http
  bind {VIP}:80 backlog 16384
  tcp-request inspect-delay 5s
  tcp-request content accept if HTTP
  tcp-request content reject
  use_backend http if {{ req.hdr(host) -i {NAME} }}
backend http
  balance leastconn
{http}frontend tls
  bind {VIP}:443 backlog 16384
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req.ssl_hello_type 1 }}
  tcp-request content reject
  use_backend tls if {{ req.ssl_sni -i {NAME} }}
backend tls
  balance leastconn
{tls}frontend bulk
  bind {VIP}:{PORT}
  default_backend bulk
backend bulk
  balance leastconn
{bulk}",
        http = servers(80),
        tls = servers(443),
        bulk = servers(PORT),
    );
    process::with_config(&lab.lb, &["haproxy", "-db", "-f"], &config, &text)
}
