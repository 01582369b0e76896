//! Sōzu, a balancer in Rust with epoll workers: HTTP requests by Host, and bytes. It does not look at a server name
//! without ending TLS, so its TLS port is plain TCP.

use std::process::Command;

use anyhow::Result;

use crate::hosts::NAME;
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::bulk::PORT;
use crate::process;

pub(super) fn command(lab: &Lab, workers: usize) -> Result<Command> {
    let config = lab.dir().join("sozu.toml");
    let dir = lab.dir().display();
    let backends = |port: u16| -> String {
        let each = HOSTS.iter().map(|host| format!("{{ address = \"{host}:{port}\" }}, "));
        each.collect()
    };
    // In turns, for its least-loaded choice stays with the first host while all are idle.
    let text = format!(
        "command_socket = \"{dir}/sozu.sock\"
log_level = \"error\"
log_target = \"stdout\"
worker_count = {workers}
worker_automatic_restart = false
max_connections = 8000
max_buffers = 16000
buffer_size = 16393
activate_listeners = true
front_timeout = 3600
back_timeout = 3600
connect_timeout = 5

[[listeners]]
protocol = \"http\"
address = \"{VIP}:80\"
[[listeners]]
protocol = \"tcp\"
address = \"{VIP}:443\"
[[listeners]]
protocol = \"tcp\"
address = \"{VIP}:{PORT}\"

[clusters.http]
protocol = \"http\"
load_balancing = \"ROUND_ROBIN\"
frontends = [ {{ address = \"{VIP}:80\", hostname = \"{NAME}\" }} ]
backends = [ {http}]
[clusters.tls]
protocol = \"tcp\"
load_balancing = \"ROUND_ROBIN\"
frontends = [ {{ address = \"{VIP}:443\" }} ]
backends = [ {tls}]
[clusters.bulk]
protocol = \"tcp\"
load_balancing = \"ROUND_ROBIN\"
frontends = [ {{ address = \"{VIP}:{PORT}\" }} ]
backends = [ {bulk}]
",
        http = backends(80),
        tls = backends(443),
        bulk = backends(PORT),
    );
    let mut command = process::with_config(&lab.lb, &["sozu", "--config"], &config, &text)?;
    command.arg("start");
    Ok(command)
}
