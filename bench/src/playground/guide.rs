//! Guide that is printed once everything answers: the parts of the lab, and commands to try. Every command is indented
//! by two spaces and complete, so that it can be copied, and that a test can run it.

use super::site::{BALANCER, Site};
use super::{balancer, client};

/// Text of the guide.
pub(super) fn text(site: &Site) -> String {
    let (curl, enter) = (client::curl(site), balancer::enter(site));
    let (signalbox, socket) = (site.program(), site.socket());
    let (signalbox, socket) = (signalbox.display(), socket.display());
    let ask = |what: &str| format!("{signalbox} {what} --socket {socket}");
    let api = format!("curl --unix-socket {socket}");
    let config = balancer::config(site);
    let (config, dir) = (config.display(), site.dir().display());
    let (lb, north_1) = (site.namespace(BALANCER), site.namespace("north-1"));
    let path = "http://signalbox/api/v1/routes/app.lab.example";
    format!(
        "
Two clusters, north and south, of two HAProxy router hosts each; signalbox in front, with cut-through.
north.lab.example goes to north, south.lab.example to south, app.lab.example to north : south = 80 : 20.
In another terminal, as root, try:

By Host header; by server name, with TLS that ends at the router host; by weight:

  {curl} http://north.lab.example/
  {curl} https://south.lab.example/
  for i in $(seq 10); do {curl} http://app.lab.example/; done | sort | uniq -c

TLS that ends at signalbox, on the same port: edge.lab.example goes on to north in plain, reencrypt.lab.example to south
in TLS anew. Then why, with which certificate, and where a request in plain is sent:

  {curl} https://edge.lab.example/
  {curl} https://reencrypt.lab.example/
  {explain}
  {certificates}
  {curl} -o /dev/null -w '%{{http_code}} %{{redirect_url}}\\n' http://edge.lab.example/

Shift the weights, or take all traffic off a cluster, and repeat the last one:

  {api} -X PUT -d '{{\"clusters\":{{\"north\":50,\"south\":50}}}}' {path}
  {api} -X PUT -d '{{\"clusters\":{{\"south\":100}}}}' {path}

A download that takes minutes, with its progress. While it runs, its flow is in tier `cut`: the packets pass by signalbox:

  {curl} --no-silent --limit-rate 20M -o /dev/null http://north.lab.example/bytes/8G
  {flows}

What else there is to see:

  {status}
  {routes}
  {hosts}
  {api} http://signalbox/metrics
  {enter} doctor

Replace the running signalbox by a new process: no connection is refused, and the download goes on:

  {enter} run --takeover --config {config} &

Kill it during the download: the download goes on with nobody there. Started again, it finds the flow and counts on:

  kill -9 $(ip netns pids {lb})

Kill a router host: connections go to the other one, its own end:

  kill -9 $(ip netns pids {north_1})

Stop signalbox in good order. What is cut stays, until its programs and maps are removed; then the download ends:

  kill $(ip netns pids {lb})
  {enter} detach

Configuration (edit it, it is noticed) and logs are in {dir}. Ctrl-C here ends and removes everything.
",
        explain = ask("explain https://edge.lab.example/"),
        certificates = ask("certificates"),
        flows = ask("flows"),
        status = ask("status"),
        routes = ask("routes"),
        hosts = ask("hosts"),
    )
}
