//! Contenders that route requests and end TLS: in plain at port 80; at port 443 in TLS that ends here, for one name to
//! plain hosts, for another to hosts with TLS of their own (re-encrypt). All add the usual fields about the client,
//! reuse connections to hosts, verify these hosts, and have a certificate of ECDSA and one of RSA for a name of its own.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::hosts::{CERTIFICATE, NAME, REENCRYPTED_NAME, RSA_CERTIFICATE, RSA_NAME, WEBSOCKET_PATH};
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::echo::PORT as ECHO_PORT;
use crate::{process, product};

pub(super) fn haproxy(lab: &Lab, threads: usize, splice: bool) -> Result<Command> {
    let dir = lab.dir().display();
    let servers = |rest: &str| -> String {
        let line = |(i, host)| format!("  server host{i} {host}{rest}\n");
        (1..).zip(HOSTS).map(line).collect()
    };
    let splice = if splice { "option splice-auto" } else { "" };
    let text = format!(
        "global
  nbthread {threads}
  maxconn 5000
  ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
  mode http
  {splice}
  option forwardfor
  option http-keep-alive
  http-reuse safe
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h
frontend http
  bind {VIP}:80 backlog 16384
  bind {VIP}:443 backlog 16384 ssl crt {dir}/{CERTIFICATE} crt {dir}/{RSA_CERTIFICATE} alpn h2,http/1.1
  http-request set-header X-Forwarded-Proto https if {{ ssl_fc }}
  http-request set-header X-Forwarded-Proto http if !{{ ssl_fc }}
  use_backend sockets if {{ path {WEBSOCKET_PATH} }}
  use_backend plain if {{ req.hdr(host) -i {NAME} {RSA_NAME} }}
  use_backend tls if {{ req.hdr(host) -i {REENCRYPTED_NAME} }}
backend plain
  balance leastconn
{plain}backend sockets
  balance leastconn
{sockets}backend tls
  balance leastconn
{tls}",
        sockets = servers(&format!(":{ECHO_PORT} check inter 5s")),
        plain = servers(":80 check inter 5s"),
        tls = servers(&format!(
            ":443 check inter 5s ssl verify required ca-file {dir}/{CERTIFICATE} verifyhost {REENCRYPTED_NAME} sni str({REENCRYPTED_NAME})"
        )),
    );
    process::with_config(
        &lab.lb,
        &["haproxy", "-db", "-f"],
        &lab.dir().join("haproxy-http.cfg"),
        &text,
    )
}

pub(super) fn nginx(lab: &Lab, workers: usize) -> Result<Command> {
    let dir = lab.dir().display();
    let servers = |port: u16| -> String { HOSTS.iter().map(|host| format!("server {host}:{port}; ")).collect() };
    // Connections end after 1000 requests by default; a body of 1 MiB would be written to a file.
    let text = format!(
        "daemon off;
user root;
worker_processes {workers};
pid {dir}/nginx-http.pid;
error_log stderr error;
events {{ worker_connections 16000; }}
http {{
  access_log off;
  client_body_temp_path {dir}/nginx-http-body;
  proxy_temp_path {dir}/nginx-http-proxy;
  fastcgi_temp_path {dir}/nginx-http-fastcgi;
  uwsgi_temp_path {dir}/nginx-http-uwsgi;
  scgi_temp_path {dir}/nginx-http-scgi;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  proxy_http_version 1.1;
  proxy_max_temp_file_size 0;
  proxy_set_header Host $host;
  proxy_set_header Connection \"\";
  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
  proxy_set_header X-Forwarded-Proto $scheme;
  ssl_certificate {dir}/{CERTIFICATE};
  ssl_certificate_key {dir}/{CERTIFICATE};
  ssl_protocols TLSv1.2 TLSv1.3;
  upstream plain {{ zone plain 64k; least_conn; {plain} keepalive 64; keepalive_requests 1000000000; }}
  upstream sockets {{ zone sockets 64k; least_conn; {sockets} }}
  upstream tls {{ zone tls 64k; least_conn; {tls} keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen {VIP}:80 reuseport backlog=16384;
    listen {VIP}:443 reuseport backlog=16384 ssl http2;
    server_name {NAME};
    location / {{ proxy_pass http://plain; }}
    location = {WEBSOCKET_PATH} {{
      proxy_pass http://sockets;
      proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection upgrade;
      proxy_read_timeout 1h;
    }}
  }}
  server {{
    listen {VIP}:443 ssl http2;
    server_name {RSA_NAME};
    ssl_certificate {dir}/{RSA_CERTIFICATE};
    ssl_certificate_key {dir}/{RSA_CERTIFICATE};
    location / {{ proxy_pass http://plain; }}
  }}
  server {{
    listen {VIP}:443 ssl http2;
    server_name {REENCRYPTED_NAME};
    location / {{
      proxy_pass https://tls;
      proxy_ssl_protocols TLSv1.2 TLSv1.3;
      proxy_ssl_server_name on;
      proxy_ssl_name {REENCRYPTED_NAME};
      proxy_ssl_verify on;
      proxy_ssl_trusted_certificate {dir}/{CERTIFICATE};
    }}
  }}
}}
",
        plain = servers(80),
        sockets = servers(ECHO_PORT),
        tls = servers(443),
    );
    process::with_config(&lab.lb, &["nginx", "-c"], &lab.dir().join("nginx-http.conf"), &text)
}

pub(super) fn signalbox(lab: &Lab, workers: usize, tier: &str, program: &Path) -> Result<Command> {
    let dir = lab.dir().display();
    let hosts = |ports: &str| -> String {
        let host = |(i, host)| format!("      - {{ name: host{i}, address: {host}, {ports} }}\n");
        (1..).zip(HOSTS).map(host).collect()
    };
    let datapath = match tier {
        "auto" => String::new(),
        // Requests that are their connection's last are cut.
        "last" => "datapath: { last_requests: on }\n".to_owned(),
        // The rest of a long answer is cut on connections that stay.
        "long" => "datapath: { long_answers: on }\n".to_owned(),
        tier => format!("datapath: {{ tier: {tier} }}\n"),
    };
    let text = format!(
        "{datapath}timeouts: {{ shutdown: 1s }}
limits: {{ per_source: {{ peeking: 0 }} }}
certificates: [{{ cert: {dir}/{CERTIFICATE}, default: true }}, {{ cert: {dir}/{RSA_CERTIFICATE} }}]
listeners:
  - {{ name: http, protocol: http, routing: request, listen: [\"{VIP}:80\"] }}
  - {{ name: https, protocol: https, listen: [\"{VIP}:443\"] }}
clusters:
  - name: hosts
    balance: least-connections
    health: {{ tcp: {{}}, interval: 5s, timeout: 2s }}
    backend_tls: {{ ca: {dir}/{CERTIFICATE} }}
    hosts:
{hosts}  - name: sockets
    balance: least-connections
    health: {{ tcp: {{}}, interval: 5s, timeout: 2s }}
    hosts:
{sockets}routes:
  - {{ host: {NAME}, clusters: {{ hosts: 1 }}, tls: {{ termination: edge, insecure: allow }} }}
  - {{ host: {NAME}, path: {WEBSOCKET_PATH}, clusters: {{ sockets: 1 }} }}
  - {{ host: {RSA_NAME}, clusters: {{ hosts: 1 }}, tls: {{ termination: edge, insecure: allow }} }}
  - {{ host: {REENCRYPTED_NAME}, clusters: {{ hosts: 1 }}, tls: {{ termination: reencrypt }} }}
unmatched: reject
",
        hosts = hosts("http: 80, https: 443"),
        sockets = hosts(&format!("http: {ECHO_PORT}")),
    );
    let mut command = product::run(lab, program, &text)?;
    command.args(["--workers", &workers.to_string()]);
    Ok(command)
}
