//! Names of a watched cluster, with the certificates of its Routes and Secrets.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::scene::{HTTPS, certificate, certificates, is_shown, trusting, try_connect};
use crate::kube::agent::Cluster;
use crate::kube_api::objects::route;
use crate::lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

/// Certificate and key of a file.
fn parts(pem: &Path) -> (String, String) {
    let text = std::fs::read_to_string(pem).unwrap();
    let (chain, key) = text.split_at(text.find("-----BEGIN PRIVATE").unwrap());
    (chain.to_owned(), key.to_owned())
}

fn put_route(cluster: &Cluster, age: u32, host: &str, tls: Value) {
    let mut object = route(age, &format!("shop/{}", host.replace('.', "-")), host);
    object["spec"]["tls"] = tls;
    cluster.api.change(|store| store.put("routes", object));
}

/// Route with its own certificate.
fn put_own(cluster: &Cluster, host: &str, pem: &Path) {
    let (chain, key) = parts(pem);
    let tls = json!({ "termination": "edge", "certificate": chain, "key": key });
    put_route(cluster, 1, host, tls);
}

fn put_secret(cluster: &Cluster, name: &str, pem: &Path) {
    let (chain, key) = parts(pem);
    let data = json!({ "tls.crt": BASE64_STANDARD.encode(chain), "tls.key": BASE64_STANDARD.encode(key) });
    let metadata = json!({ "namespace": "shop", "name": name, "uid": name });
    let object = json!({ "metadata": metadata, "type": "kubernetes.io/tls", "data": data });
    cluster.api.change(|store| store.put("secrets", object));
}

fn text(lab: &Lab, cluster: &Cluster, has_certificates: bool) -> String {
    format!(
        "listeners:\n  - {{ name: https, protocol: https, listen: [\"{HTTPS}\"] }}\nclusters:\n  \
         - {{ name: east, {}, backend_tls: {{ ca: {} }}, kubernetes: {{ url: \"http://{}\", certificates: {has_certificates} }} }}\n",
        config::FAST_HEALTH,
        lab.dir().join("east-1.pem").display(),
        cluster.api.addr
    )
}

#[lab_test]
fn cluster_names_are_served_with_route_and_secret_certificates() {
    let lab = Lab::new();
    let _east = Router::start(&lab, "east-1");
    let cluster = Cluster::start(&lab.lb);
    cluster.put_routers(&["east-1"]);
    let host = lab.dir().join("east-1.pem");
    // The owner of a name does not answer for other names in its certificate.
    let own = certificate(&lab, "own", &["a.test", "bare.example.com"]);
    let kept = certificate(&lab, "kept", &["secret.example.com"]);
    put_own(&cluster, "a.test", &own);
    put_secret(&cluster, "kept", &kept);
    let external = json!({ "termination": "reencrypt", "externalCertificate": { "name": "kept" } });
    put_route(&cluster, 2, "secret.example.com", external);
    put_route(
        &cluster,
        3,
        "passed.example.com",
        json!({ "termination": "passthrough" }),
    );
    put_route(&cluster, 4, "bare.example.com", json!({ "termination": "edge" }));
    let sb = Signalbox::start(&lab, &text(&lab, &cluster, true));
    sb.wait_healthy(&["east-1"]);
    let is_served = |name: &str, pem: &Path| {
        let client = try_connect(&lab, name, Arc::new(trusting(&lab)));
        client.is_ok_and(|mut client| {
            let answer = client.get(name, "/");
            is_shown(&mut client, pem) && answer.status == 200 && http::field(&answer.text, "sni") == name
        })
    };
    for (name, pem) in [
        ("a.test", &own),
        ("secret.example.com", &kept),
        ("passed.example.com", &host),
        ("bare.example.com", &host),
    ] {
        assert!(
            eventually(SOON, || is_served(name, pem)),
            "{name}: {}",
            sb.json("/api/v1/certificates")
        );
    }
    let explained = sb.json("/api/v1/explain?host=https://a.test/");
    assert!(
        explained.to_string().contains("\"termination\":\"reencrypt\""),
        "{explained}"
    );
    for path in ["/api/v1/sources", "/api/v1/routes", "/api/v1/certificates"] {
        assert!(!sb.json(path).to_string().contains("PRIVATE"), "{path}");
    }
    // A renewed certificate, and one that is taken away.
    let renewed = certificate(&lab, "renewed", &["a.test"]);
    put_own(&cluster, "a.test", &renewed);
    assert!(eventually(SOON, || is_served("a.test", &renewed)));
    put_route(&cluster, 1, "a.test", json!({ "termination": "edge" }));
    assert!(eventually(SOON, || is_served("a.test", &host)));
    let directories = || {
        let mut places: Vec<_> = vec![lab.dir().to_owned()];
        places.extend(
            std::fs::read_dir(lab.dir())
                .unwrap()
                .flatten()
                .map(|entry| entry.path()),
        );
        let of_east = |place: &std::path::PathBuf| place.join("cluster-certificates/cluster-east").is_dir();
        places.iter().filter(|place| of_east(place)).count()
    };
    assert_eq!(directories(), 1);
    // `certificates: false` leaves no key of the cluster on disk.
    sb.reload(&text(&lab, &cluster, false));
    assert!(eventually(SOON, || is_served("secret.example.com", &host)));
    assert_eq!(directories(), 0);
}

#[lab_test]
fn a_learned_route_may_choose_its_tls_termination() {
    let lab = Lab::new();
    let _east = Router::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let sb = Signalbox::start(
        &lab,
        &format!(
            "{}\nlisteners:\n  - {{ name: https, protocol: https, listen: [\"{HTTPS}\"] }}\nclusters:\n  \
             - {{ name: east, {}, learn: true }}\n",
            certificates(&pem),
            config::FAST_HEALTH,
        ),
    );
    let address = crate::kube::agent::address("east-1");
    let hosts = json!([{ "name": "east-1", "address": address, "http": 80, "https": 443, "weight": 1 }]);
    let ends_here = |name: &str, termination: &str| {
        let routes = json!([{ "host": name, "origin": "test", "termination": termination }]);
        let learned = json!({ "hosts": hosts, "routes": routes }).to_string();
        let response = sb.unix("PUT", "/api/v1/clusters/east/learned", &learned);
        assert_eq!(response.status, 200, "{}", response.body);
        sb.wait_healthy(&["east-1"]);
        let mut client = try_connect(&lab, name, Arc::new(trusting(&lab))).unwrap();
        assert_eq!(client.get(name, "/").status, 200, "{name} {termination}");
        is_shown(&mut client, &pem)
    };
    assert!(ends_here("a.test", "edge"));
    assert!(!ends_here("a.test", "passthrough"));
    // The configuration re-encrypts nothing, so that there are no settings to verify hosts by; and no certificate is for
    // the other name.
    assert!(!ends_here("a.test", "reencrypt"));
    assert!(!ends_here("b.example.com", "edge"));
    let learned = json!({ "hosts": hosts, "routes": [{ "host": "a.test", "origin": "test", "termination": "here" }] });
    let response = sb.unix("PUT", "/api/v1/clusters/east/learned", &learned.to_string());
    assert_eq!(response.status, 400);
    assert!(response.body.contains("`reencrypt`"), "{}", response.body);
}
