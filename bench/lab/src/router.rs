//! Router hosts: configurations of HAProxy (as OpenShift runs it) and of nginx, and certificates for them.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_RSA_SHA256, RsaKeySize};

/// Configuration of a HAProxy that serves :80 and :443 with the certificate of `pem`, and answers health checks on
/// :1936. `bind` are further words of the web ports, `web` the lines of their frontend and later sections.
///
/// Timeouts of an hour: this host must not end connections that are held. HTTP/2 with prior knowledge needs no
/// option: HAProxy knows the preface.
pub fn haproxy(pem: impl Display, bind: &str, web: &str) -> String {
    format!(
        "global
  nbthread 1
  maxconn 6000
defaults
  mode http
  timeout client 1h
  timeout server 1h
  timeout connect 5s
  timeout http-keep-alive 1h
  timeout http-request 1h
frontend health
  bind :::1936 v4v6
  monitor-uri /healthz
frontend web
  bind :::80 v4v6 {bind}
  bind :::443 v4v6 {bind} ssl crt {pem} alpn h2,http/1.1
{web}"
    )
}

/// Configuration of an nginx in one process, whose files in `dir` begin with `name`. `http` are lines of its block
/// `http`, such as servers with the certificate of `pem`.
pub fn nginx(dir: impl Display, name: &str, pem: impl Display, http: &str) -> String {
    format!(
        "daemon off;
master_process off;
pid {dir}/{name}.pid;
error_log stderr error;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  keepalive_timeout 1h;
  keepalive_requests 1000000000;
  client_body_temp_path {dir}/{name}.body; proxy_temp_path {dir}/{name}.proxy; fastcgi_temp_path {dir}/{name}.fastcgi;
  uwsgi_temp_path {dir}/{name}.uwsgi; scgi_temp_path {dir}/{name}.scgi;
  ssl_certificate {pem}; ssl_certificate_key {pem};
{http}}}
"
    )
}

/// Makes a self-signed certificate, ECDSA with P-256 as is common, whose common name is `name` and which is good for
/// `names`: returns the file in `dir` with the certificate and its key. The certificate is also added to `ca.pem`, so
/// that a client can check that it ends TLS at a router host and nowhere else.
pub fn certificate(dir: &Path, name: &str, names: &[&str]) -> Result<PathBuf> {
    certificate_of(dir, name, names, &KeyPair::generate()?)
}

/// Makes a self-signed certificate as [`certificate`] does, with an RSA key of 2048 bits.
pub fn rsa_certificate(dir: &Path, name: &str, names: &[&str]) -> Result<PathBuf> {
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?;
    certificate_of(dir, name, names, &key)
}

fn certificate_of(dir: &Path, name: &str, names: &[&str], key: &KeyPair) -> Result<PathBuf> {
    let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.self_signed(key)?.pem();
    let pem = dir.join(format!("{name}.pem"));
    std::fs::write(&pem, format!("{certificate}{}", key.serialize_pem()))?;
    let ca = dir.join("ca.pem");
    let known = std::fs::read_to_string(&ca).unwrap_or_default();
    std::fs::write(&ca, known + &certificate)?;
    Ok(pem)
}
