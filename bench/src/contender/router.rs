//! HAProxy as OpenShift's router shapes it: a frontend of TCP looks at the server name and passes those that end here
//! on by a unix socket, with a PROXY header, to a frontend that ends TLS; maps with patterns choose backends, and each
//! request gets the router's fields and its cookie. The lines are those of the router's template for OpenShift 4.

use std::process::Command;

use anyhow::Result;

use crate::hosts::{CERTIFICATE, NAME, REENCRYPTED_NAME, RSA_CERTIFICATE, RSA_NAME, WEBSOCKET_PATH};
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::echo::PORT as ECHO_PORT;
use crate::process;

/// Fields that the router adds in each backend.
const FIELDS: &str = "  http-request add-header X-Forwarded-Host %[req.hdr(host)]
  http-request add-header X-Forwarded-Port %[dst_port]
  http-request add-header X-Forwarded-Proto http if !{ ssl_fc }
  http-request add-header X-Forwarded-Proto https if { ssl_fc }
  http-request add-header X-Forwarded-Proto-Version h2 if { ssl_fc_alpn -i h2 }
  http-request add-header Forwarded for=%[src];host=%[req.hdr(host)];proto=%[req.hdr(X-Forwarded-Proto)]
";

pub(super) fn command(lab: &Lab, threads: usize) -> Result<Command> {
    let dir = lab.dir();
    let shown = dir.display();
    let map = |name: &str, lines: &[String]| std::fs::write(dir.join(name), lines.concat());
    let pattern = |name: &str| name.replace('.', "\\.");
    let line = |name: &str, backend: &str| format!("^{}\\.?(:[0-9]+)?(/.*)?$ {backend}\n", pattern(name));
    let socket = format!("^{}\\.?(:[0-9]+)?{WEBSOCKET_PATH}(/.*)?$ sockets\n", pattern(NAME));
    let all = [
        socket,
        line(NAME, "plain"),
        line(RSA_NAME, "plain"),
        line(REENCRYPTED_NAME, "tls"),
    ];
    map("os_http_be.map", &all)?;
    map("os_edge_reencrypt_be.map", &all)?;
    map("os_sni_passthrough.map", &[])?;
    // The default certificate has no HTTP/2, those of routes have.
    map(
        "cert_config.map",
        &[
            format!("{shown}/{CERTIFICATE} [alpn h2,http/1.1] {NAME} {REENCRYPTED_NAME}\n"),
            format!("{shown}/{RSA_CERTIFICATE} [alpn h2,http/1.1] {RSA_NAME}\n"),
        ],
    )?;
    let backend = |name: &str, rest: &str| {
        let server = |(i, host)| format!("  server host{i} {host}{rest} cookie host{i} weight 1 check inter 5000ms\n");
        let servers: String = (1..).zip(HOSTS).map(server).collect();
        format!(
            "backend {name}
  mode http
  option redispatch
  option forwardfor
  balance leastconn
  timeout check 5000ms
{FIELDS}  cookie {name} insert indirect nocache httponly
{servers}"
        )
    };
    let verify = format!(
        ":443 ssl verifyhost {REENCRYPTED_NAME} verify required ca-file {shown}/{CERTIFICATE} sni str({REENCRYPTED_NAME})"
    );
    let text = format!(
        "global
  nbthread {threads}
  maxconn 5000
  tune.maxrewrite 8192
  tune.bufsize 32768
  ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
  maxconn 5000
  option httplog
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h
  timeout http-request 10s
  timeout http-keep-alive 1h
frontend public
  mode http
  bind {VIP}:80 backlog 16384
  tcp-request inspect-delay 5s
  tcp-request content accept if HTTP
  http-request del-header Proxy
  http-request set-header Host %[req.hdr(Host),lower]
  use_backend %[base,map_reg({shown}/os_http_be.map)]
frontend public_ssl
  mode tcp
  bind {VIP}:443 backlog 16384
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req.ssl_hello_type 1 }}
  acl sni req.ssl_sni -m found
  acl sni_passthrough req.ssl_sni,lower,map_reg({shown}/os_sni_passthrough.map) -m found
  use_backend be_none if sni sni_passthrough
  use_backend be_sni if sni
backend be_none
  mode tcp
backend be_sni
  mode tcp
  server fe_sni unix@{shown}/haproxy-sni.sock weight 1 send-proxy
frontend fe_sni
  mode http
  bind unix@{shown}/haproxy-sni.sock ssl crt {shown}/{RSA_CERTIFICATE} crt-list {shown}/cert_config.map accept-proxy
  http-request del-header Proxy
  http-request set-header Host %[req.hdr(Host),lower]
  use_backend %[base,map_reg({shown}/os_edge_reencrypt_be.map)]
{plain}{sockets}{tls}",
        plain = backend("plain", ":80"),
        sockets = backend("sockets", &format!(":{ECHO_PORT}")),
        tls = backend("tls", &verify),
    );
    process::with_config(
        &lab.lb,
        &["haproxy", "-db", "-f"],
        &dir.join("haproxy-router.cfg"),
        &text,
    )
}
