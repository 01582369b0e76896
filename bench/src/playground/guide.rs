//! Guide that is printed when every host answers: the parts of the lab, and commands to try. Every command is indented
//! by two spaces and complete, so that an operator can copy it and a test can run it.

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
The lab has two clusters, north and south, each of two HAProxy router hosts. signalbox balances them, with cut-through.
north.lab.example goes to north, south.lab.example to south, app.lab.example to north : south = 80 : 20.
Run these commands as root in another terminal:

Route by Host header, by server name (TLS that ends at the router host), and by weight:

  {curl} http://north.lab.example/
  {curl} https://south.lab.example/
  for i in $(seq 10); do {curl} http://app.lab.example/; done | sort | uniq -c

Terminate TLS at signalbox, on the same port. edge.lab.example continues to north in plain text, reencrypt.lab.example
to south in a new TLS connection. Then see the routing decision, the certificates, and the redirect of plain HTTP:

  {curl} https://edge.lab.example/
  {curl} https://reencrypt.lab.example/
  {explain}
  {certificates}
  {curl} -o /dev/null -w '%{{http_code}} %{{redirect_url}}\\n' http://edge.lab.example/

Change the weights, or take a cluster out, and repeat the loop above:

  {api} -X PUT -d '{{\"clusters\":{{\"north\":50,\"south\":50}}}}' {path}
  {api} -X PUT -d '{{\"clusters\":{{\"south\":100}}}}' {path}

Start a download of some minutes, with its progress. Its flow is in tier `cut`: the kernel forwards its packets without
the process:

  {curl} --no-silent --limit-rate 20M -o /dev/null http://north.lab.example/bytes/8G
  {flows}

See the state of signalbox:

  {status}
  {routes}
  {hosts}
  {api} http://signalbox/metrics
  {enter} doctor

Replace the running signalbox by a new process. No connection is refused, and the download continues:

  {enter} run --takeover --config {config} &

Kill it during the download. The download continues without the process. The next process adopts the flow and its
counters:

  kill -9 $(ip netns pids {lb})

Kill a router host. Its connections end, and new ones go to the other host:

  kill -9 $(ip netns pids {north_1})

Stop signalbox. Cut flows continue until its programs and maps are removed. Then the download ends:

  kill $(ip netns pids {lb})
  {enter} detach

The configuration and the logs are in {dir}. signalbox reads an edited configuration by itself.
Ctrl-C here ends and removes everything.
",
        explain = ask("explain https://edge.lab.example/"),
        certificates = ask("certificates"),
        flows = ask("flows"),
        status = ask("status"),
        routes = ask("routes"),
        hosts = ask("hosts"),
    )
}
