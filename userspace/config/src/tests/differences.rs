//! Every difference between two files is a difference that a person is shown.

use signalbox_core::routing::diff::diff;

use super::parse;

const BASE: &str = r#"
version: 1
admin: { listen: "127.0.0.1:8089", token_file: /token, read: open }
shield: { deny: [192.0.2.7] }
tls: { profile: intermediate }
certificates: [{ cert: /a.pem, key: /a.key }]
pages: { 503: /busy.html }
log: { connections: { to: stdout } }
metrics: { routes: 10 }
timeouts: { idle: 1h, body: 30s }
limits: { per_source: { concurrent: 100 }, heads: { fields: 128 } }
datapath: { peek: auto }
listeners:
  - { name: web, protocol: http, listen: ["10.1.0.1:80"], routing: request, redirect_port: 443 }
  - { name: tls, protocol: https, listen: ["10.1.0.1:443"], termination: reencrypt, strict_sni: false, client_certificates: { ca: /ca.pem, required: false }, forwarded: { policy: append }, ambiguous_paths: refuse }
services:
  - { name: db, protocol: tcp, listen: ["10.1.0.1:3306"], cluster: east, idle: 1h }
clusters:
  - name: east
    balance: round-robin
    health: { http: { path: /healthz }, interval: 5s, timeout: 1s }
    ejection: { failures: 3 }
    answers: strict
    backend_tls: { ca: /hosts.pem }
    hosts: [{ name: e1, address: 10.2.0.1, http: 80, https: 443, weight: 1 }]
  - name: west
    hosts: [{ name: w1, address: 10.3.0.1, http: 80, https: 443 }, { name: w2, address: w2.example.com, http: 80 }]
routes:
  - host: a.test
    clusters: { east: 1, west: 2 }
    allow: [192.0.2.0/24]
    connections: { rate: 10, concurrent: 5 }
    headers: { request: { set: { X-A: b } }, response: { remove: [Server] } }
    tls: { termination: edge, insecure: redirect }
  - { host: a.test, path: /api, clusters: { west: 1 }, timeouts: { answer: 10s } }
"#;

/// A part of the file, its replacement, and the object and field that must be named.
const EDITS: [(&str, &str, &str); 50] = [
    ("read: open", "read: token", "admin"),
    ("127.0.0.1:8089", "127.0.0.1:8090", "admin listen"),
    ("deny: [192.0.2.7]", "deny: [192.0.2.8]", "shield lists.deny"),
    ("shield: { deny: [192.0.2.7] }\n", "", "shield lists.deny"),
    ("profile: intermediate", "profile: modern", "tls profile"),
    (
        "certificates: [{ cert: /a.pem, key: /a.key }]\n",
        "",
        "tls certificates",
    ),
    ("key: /a.key", "key: /b.key", "tls certificates"),
    ("503: /busy.html", "502: /busy.html", "pages"),
    ("/busy.html", "/other.html", "pages"),
    ("to: stdout", "to: /var/log/c.log", "log"),
    ("routes: 10 }", "routes: 20 }", "metrics routes"),
    ("idle: 1h, body", "idle: 2h, body", "timeouts idle"),
    ("body: 30s", "body: 31s", "timeouts http.body"),
    ("concurrent: 100", "concurrent: 99", "limits per_source.concurrent"),
    ("peek: auto", "peek: userspace", "datapath peek"),
    ("routing: request", "routing: connection", "web routing"),
    ("policy: append", "policy: replace", "tls http.forwarded"),
    ("fields: 128", "fields: 256", "limits heads.fields"),
    ("answers: strict", "answers: lenient", "east answers"),
    ("redirect_port: 443", "redirect_port: 8443", "web http.redirect_port"),
    ("paths: refuse", "paths: pass", "tls http.ambiguous_paths"),
    ("10.1.0.1:80\"", "10.1.0.2:80\"", "web listen"),
    ("termination: reencrypt", "termination: edge", "tls tls.termination"),
    ("strict_sni: false", "strict_sni: true", "tls tls.strict_sni"),
    ("ca: /ca.pem", "ca: /other.pem", "tls tls.client_certificates.ca"),
    (
        "required: false",
        "required: true",
        "tls tls.client_certificates.required",
    ),
    (
        ", client_certificates: { ca: /ca.pem, required: false }",
        "",
        "tls tls.client_certificates",
    ),
    ("cluster: east, idle: 1h", "cluster: west, idle: 1h", "db cluster"),
    ("cluster: east, idle: 1h", "cluster: east, idle: 2h", "db idle"),
    ("idle: 1h }", "idle: 1h, backup: west }", "db backup"),
    ("redirect_port: 443", "cluster: east, backup: west", "web backup"),
    ("round-robin", "maglev", "east balance"),
    ("interval: 5s", "interval: 6s", "east health.interval"),
    ("path: /healthz", "path: /health", "east health"),
    ("failures: 3", "failures: 4", "east ejection.failures"),
    ("ca: /hosts.pem", "verify: false", "east backend_tls.verify"),
    ("weight: 1", "weight: 2", "east/e1 weight"),
    ("weight: 1", "weight: 1, backup: true", "east/e1 backup"),
    ("address: w2.example.com", "address: w3.example.com", "west/w2 hostname"),
    ("w2.example.com, http: 80", "w2.example.com, http: 81", "west/w2 http"),
    ("  - name: west\n", "  - name: west\n    resolve: 5s\n", "west resolve"),
    ("allow: [192.0.2.0/24]", "allow: [192.0.2.0/25]", "a.test allow"),
    ("    allow: [192.0.2.0/24]\n", "", "a.test allow"),
    ("concurrent: 5", "concurrent: 6", "a.test connections.concurrent"),
    ("rate: 10,", "rate: 10, burst: 20,", "a.test connections.rate"),
    ("X-A: b", "X-A: c", "a.test requests.headers.request"),
    ("insecure: redirect", "insecure: none", "a.test tls.insecure"),
    (
        "answer: 10s",
        "answer: 11s",
        "a.test paths[/api].requests.timeouts.answer",
    ),
    (
        "answer: 10s",
        "answer: 10s, body: 5m",
        "a.test paths[/api].requests.timeouts.body",
    ),
    (
        "timeouts: { answer: 10s } }",
        "timeouts: { answer: 10s }, upgrades: [SPDY/3.1] }",
        "a.test paths[/api].requests.upgrades",
    ),
];

#[test]
fn every_edit_of_a_file_is_shown_in_words() {
    let base = parse(BASE).unwrap_or_else(|errors| panic!("{errors}")).model;
    let mut unseen = Vec::new();
    for (from, to, named) in EDITS {
        assert!(BASE.contains(from), "{from}");
        let edited = parse(&BASE.replacen(from, to, 1));
        let edited = edited.unwrap_or_else(|errors| panic!("{from} -> {to}: {errors}")).model;
        let shown = diff(&base, &edited).unwrap();
        let fields = shown.iter().flat_map(|change| {
            let fields = change
                .fields
                .iter()
                .map(|field| format!("{} {}", change.name, field.field));
            fields.collect::<Vec<_>>()
        });
        let fields: Vec<_> = fields.collect();
        let text = serde_json::to_string(&shown).unwrap();
        if !fields.iter().any(|field| field.starts_with(named)) || text.contains("Some(") || text.contains(" { ") {
            unseen.push(format!("{from} -> {to}: {fields:?} in {text}"));
        }
    }
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
}
