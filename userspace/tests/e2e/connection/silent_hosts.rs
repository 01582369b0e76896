//! Hosts that do not answer the connects of workers: another host is asked long before `timeouts.connect` is over.

use crate::http::https::scene::{certificate, certificates};
use crate::lab::impair::{Impaired, Odds};
use crate::lab::{Lab, Router, SOON, Signalbox, config, cut, eventually, http, lab_test};

const HOSTS: [&str; 3] = ["east-1", "east-2", "east-3"];
const REDISPATCHES: &str = "signalbox_redispatches_total{cluster=\"east\"}";

/// Listeners for connections and for requests, with TLS and without. Connects may take longer than a test waits.
fn start(lab: &Lab, hosts: &[&str]) -> Signalbox {
    let pem = certificate(lab, "lb", &["shop.example.com"]);
    let keys = [
        cut::PATIENT[0],
        cut::PATIENT[1],
        "balance: round-robin",
        "backend_tls: { verify: false }",
    ];
    let body = format!(
        "datapath: {{ peek: userspace }}\ntimeouts: {{ connect: 10m }}\n{}\nlisteners:\n  \
         - {{ name: http, protocol: http, listen: [\"10.1.0.1:80\"] }}\n  \
         - {{ name: tls, protocol: tls, listen: [\"10.1.0.1:443\"] }}\n  \
         - {{ name: requests, protocol: http, routing: request, listen: [\"[fd00:1::1]:80\"] }}\n  \
         - {{ name: https, protocol: https, listen: [\"[fd00:1::1]:443\"] }}\n\
         clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n  \
         - {{ host: shop.example.com, clusters: {{ east: 1 }}, tls: {{ termination: reencrypt }} }}\n",
        certificates(&pem),
        config::cluster("east", &keys, hosts)
    );
    let sb = Signalbox::start(lab, &body);
    sb.wait_healthy(hosts);
    sb
}

fn curl(lab: &Lab, address: &str, url: &str) -> String {
    http::field(&http::curl(lab, address, &["-k", url]).body, "host")
}

#[lab_test]
fn connects_of_workers_leave_a_silent_host() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &HOSTS);
    let sb = start(&lab, &HOSTS);
    let ways: [(&str, &dyn Fn() -> String); 4] = [
        ("http", &|| http::ask(&lab, "10.1.0.1:80", "a.test").field("host")),
        ("tls", &|| curl(&lab, "10.1.0.1", "https://a.test/")),
        ("requests", &|| {
            http::ask(&lab, "[fd00:1::1]:80", "a.test").field("host")
        }),
        ("https", &|| curl(&lab, "[fd00:1::1]", "https://shop.example.com/")),
    ];
    for (way, ask) in ways {
        let link = Impaired::host_link(&lab, "east-2", Odds::SILENT);
        let before = sb.metric(REDISPATCHES);
        // For about a second after each time, the host is not even asked.
        let is_left = eventually(SOON, || {
            let host = ask();
            assert!(host == "east-1" || host == "east-3", "{way}: {host:?}");
            sb.metric(REDISPATCHES) > before
        });
        assert!(is_left, "{way}: {}", sb.get("/metrics").1);
        drop(link);
        assert!(eventually(SOON, || ask() == "east-2"), "{way}: the host is asked again");
    }
    let active = || HOSTS.map(|host| sb.host(host)["active_connections"].as_u64().unwrap());
    assert!(eventually(SOON, || active() == [0; 3]), "{:?}", active());
}

/// A client of one host waits for it: there is no other.
#[lab_test]
fn a_connect_stays_at_the_only_host() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let sb = start(&lab, &["east-1"]);
    let link = Impaired::host_link(&lab, "east-1", Odds::SILENT);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| http::ask(&lab, "10.1.0.1:80", "a.test").status);
        let is_asked = || sb.host("east-1")["active_connections"] == 1;
        assert!(eventually(SOON, is_asked));
        // Longer than a host of several may be silent.
        std::thread::sleep(std::time::Duration::from_millis(600));
        drop(link);
        assert_eq!(asking.join().unwrap(), 200);
    });
    assert_eq!(sb.metric(REDISPATCHES), 0.0);
}
