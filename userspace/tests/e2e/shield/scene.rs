//! Scene of all tests but those of floods: a listener and two services of both families in front of one host, and a
//! server of the balancer's own node that no guard covers.

use crate::lab::callers::{is_answered, is_greeted, is_served, second_v6};
use crate::lab::services::{Answerer, greeter};
use crate::lab::{Lab, SOON, Server, Signalbox, eventually};

/// The listener `web`, the service `db` and the server of the node.
pub(crate) const WEB: [&str; 2] = ["10.1.0.1:8080", "[fd00:1::1]:8080"];
pub(crate) const DB: [&str; 2] = ["10.1.0.1:3306", "[fd00:1::1]:3306"];
pub(crate) const NODE: [&str; 2] = ["10.1.0.1:9000", "[fd00:1::1]:9000"];
/// The service `dns`.
pub(crate) const DNS: [&str; 2] = ["10.1.0.1:53", "[fd00:1::1]:53"];
/// Two clients on one network, by family.
pub(crate) const GOOD: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
pub(crate) const BAD: [&str; 2] = ["10.1.0.3", "fd00:1::3"];
/// The latter as prefixes.
pub(crate) const BAD_NETS: [&str; 2] = ["10.1.0.3/32", "fd00:1::3/128"];

pub(crate) struct Scene {
    pub(crate) sb: Signalbox,
    _servers: [Server; 2],
    _answerer: Answerer,
    pub(crate) lab: Lab,
}

/// A configuration with a top-level shield, and further keys of the listener and of the service `db`.
pub(crate) fn body(shield: &str, web: &str, db: &str) -> String {
    format!(
        r#"{shield}
listeners:
  - {{ name: web, protocol: tcp, listen: ["10.1.0.1:8080", "[fd00:1::1]:8080"], cluster: east{web} }}
services:
  - {{ name: db, protocol: tcp, listen: ["10.1.0.1:3306", "[fd00:1::1]:3306"], cluster: east{db} }}
  - {{ name: dns, protocol: udp, listen: ["10.1.0.1:53", "[fd00:1::1]:53"], cluster: east }}
clusters:
  - name: east
    health: {{ tcp: {{ port: 3306 }}, interval: 1s, timeout: 1s, rise: 1, fall: 100 }}
    hosts:
      - {{ name: east-1, address: 10.2.0.2, tcp: 3306, ports: {{ dns: 5353 }} }}
      - {{ name: east-1-v6, address: "fd00:2::2", tcp: 3306, ports: {{ dns: 5353 }} }}
"#
    )
}

impl Scene {
    pub(crate) fn new(shield: &str, web: &str, db: &str) -> Self {
        Self::of(Lab::new(), &body(shield, web, db))
    }

    /// Makes a scene in a lab whose directory has files already.
    pub(crate) fn of(lab: Lab, body: &str) -> Self {
        second_v6(&lab);
        let host = lab.host("east-1");
        let servers = [
            greeter(host, "[::]:3306", "east-1"),
            greeter(&lab.lb, "[::]:9000", "node"),
        ];
        let answerer = Answerer::start(host, "[::]:5353", "east-1");
        let sb = Signalbox::start(&lab, body);
        let scene = Self {
            sb,
            _servers: servers,
            _answerer: answerer,
            lab,
        };
        scene.wait_ready();
        scene
    }

    /// Waits until the services lead somewhere.
    pub(crate) fn wait_ready(&self) {
        self.sb.wait_healthy(&["east-1", "east-1-v6"]);
        let ready = || {
            let answer = self.sb.json("/api/v1/services");
            let services = answer["services"].as_array().cloned().unwrap_or_default();
            let hosts = services.iter().flat_map(|service| service["hosts"].as_array());
            let mut hosts = hosts.flatten().peekable();
            hosts.peek().is_some() && hosts.all(|host| host["reachable"] == true)
        };
        assert!(eventually(SOON, ready), "{}", self.sb.json("/api/v1/services"));
    }

    /// Returns which of `web`, `db` and `dns` serve a client, by both families. A service of one family must serve the
    /// other.
    pub(crate) fn served(&self, who: [&str; 2]) -> Vec<&'static str> {
        let mut served = Vec::new();
        for (name, ports) in [("web", WEB), ("db", DB), ("dns", DNS)] {
            let is_served = |family: usize| {
                if name == "dns" {
                    is_answered(&self.lab, who[family], ports[family])
                } else {
                    is_greeted(&self.lab, who[family], ports[family])
                }
            };
            let by = std::thread::scope(|scope| {
                let v6 = scope.spawn(|| is_served(1));
                [is_served(0), v6.join().unwrap()]
            });
            assert_eq!(by[0], by[1], "{name}: {who:?} by IPv4 and by IPv6");
            if by[0] {
                served.push(name);
            }
        }
        served
    }

    /// Waits until a client is served in this way.
    pub(crate) fn wait_served(&self, who: [&str; 2], by: &[&str]) {
        // Families are asked one after the other, between which a change may take place. It may also cut a connection
        // that is just being opened.
        let settled = || {
            let first = is_served(&self.lab, who[0], WEB[0]) == by.contains(&"web");
            let second = is_served(&self.lab, who[1], DB[1]) == by.contains(&"db");
            first && second
        };
        let has_settled = eventually(SOON, settled);
        assert!(has_settled, "{who:?} should be served by {by:?}: {}", self.shield());
        assert_eq!(self.served(who), by, "{who:?}: {}", self.shield());
    }

    fn shield(&self) -> serde_json::Value {
        self.sb.json("/api/v1/shield")
    }
}
