//! nginx as a stream proxy. Its stream module can look at SNI but not at a Host header, so with HTTP it does less than
//! the others: every connection goes to the same upstream group.

use std::process::Command;

use anyhow::Result;

use crate::hosts::NAME;
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::bulk::PORT;
use crate::process;

const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

pub(super) fn command(lab: &Lab, workers: usize) -> Result<Command> {
    let config = lab.dir().join("nginx.conf");
    let dir = lab.dir().display();
    let module = if std::path::Path::new(MODULE).exists() {
        format!("load_module {MODULE};")
    } else {
        String::new()
    };
    let servers = |port: u16| -> String { HOSTS.iter().map(|host| format!("server {host}:{port}; ")).collect() };
    // The zones let the workers see each other's connections, as least_conn must; reuseport shares out the accepts.
    let text = format!(
        "{module}
daemon off;
user root;
worker_processes {workers};
pid {dir}/nginx.pid;
error_log stderr error;
events {{ worker_connections 16000; }}
stream {{
  proxy_timeout 1h;
  proxy_connect_timeout 5s;
  proxy_half_close on;
  upstream http {{ zone http 64k; least_conn; {http}}}
  upstream tls {{ zone tls 64k; least_conn; {tls}}}
  upstream bulk {{ zone bulk 64k; least_conn; {bulk}}}
  server {{ listen {VIP}:80 reuseport backlog=16384; proxy_pass http; }}
  map $ssl_preread_server_name $group {{ {NAME} tls; }}
  server {{ listen {VIP}:443 reuseport backlog=16384; ssl_preread on; proxy_pass $group; }}
  server {{ listen {VIP}:{PORT} reuseport; proxy_pass bulk; }}
}}
",
        http = servers(80),
        tls = servers(443),
        bulk = servers(PORT),
    );
    process::with_config(&lab.lb, &["nginx", "-c"], &config, &text)
}
