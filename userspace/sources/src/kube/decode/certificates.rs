//! Decodes certificates with their keys: of Routes, and of Secrets.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;
use signalbox_core::discovered::claims::{NamedCertificate, ObjectKind};
use signalbox_core::discovered::discovery::CertificateOrigin;
use signalbox_core::discovered::spi::Secret;

use super::{Metadata, or_null};

/// PEM text of a certificate, its intermediates and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kube) struct HeldCertificate {
    /// Object that holds the certificate.
    pub(in crate::kube) origin: CertificateOrigin,
    /// All of its PEM texts.
    pub(in crate::kube) pem: Secret,
}

/// TLS of a Route (`spec.tls`).
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RouteTls {
    termination: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    ca_certificate: Option<String>,
    external_certificate: Option<SecretRef>,
}

#[derive(Deserialize)]
struct SecretRef {
    name: String,
}

/// Entry of the TLS of an Ingress (`spec.tls`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IngressTls {
    #[serde(default, deserialize_with = "or_null")]
    hosts: Vec<String>,
    secret_name: Option<String>,
}

/// Secret of type `kubernetes.io/tls`.
#[derive(Deserialize)]
struct TlsSecret {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_null")]
    data: BTreeMap<String, String>,
}

/// Returns the certificates that an object names in its `spec.tls`, and whether its TLS ends at the routers even without
/// one.
pub(super) fn named(kind: ObjectKind, tls: &Value) -> Result<(Vec<NamedCertificate>, bool), serde_json::Error> {
    match kind {
        ObjectKind::Route if !tls.is_null() => {
            let tls = RouteTls::deserialize(tls)?;
            let ends = tls.termination.as_deref().is_some_and(|end| end != "passthrough");
            let secret = tls.external_certificate.as_ref().map(|secret| secret.name.clone());
            let has_one = ends && (secret.is_some() || tls.pem().is_some());
            let certificate = NamedCertificate {
                hostnames: Vec::new(),
                secret,
            };
            Ok((has_one.then_some(certificate).into_iter().collect(), ends))
        }
        ObjectKind::Ingress if !tls.is_null() => {
            let entries = Vec::<IngressTls>::deserialize(tls)?;
            let named = entries.into_iter().filter_map(|entry| {
                let secret = entry.secret_name.filter(|name| !name.is_empty())?;
                Some(NamedCertificate {
                    hostnames: entry.hosts,
                    secret: Some(secret),
                })
            });
            Ok((named.collect(), false))
        }
        _ => Ok((Vec::new(), false)),
    }
}

/// Returns the certificate that a Route itself holds.
pub(in crate::kube) fn of_route(value: &Value) -> Option<HeldCertificate> {
    let text = |key: &str| value.get("metadata")?.get(key)?.as_str().map(str::to_owned);
    let tls = RouteTls::deserialize(value.get("spec")?.get("tls")?).ok()?;
    Some(HeldCertificate {
        origin: CertificateOrigin {
            namespace: text("namespace")?,
            name: text("name")?,
            is_secret: false,
        },
        pem: tls.pem()?,
    })
}

/// Decodes a Secret of type `kubernetes.io/tls`.
///
/// # Errors
///
/// The Secret has no name, or not both of `tls.crt` and `tls.key` in Base64.
pub(super) fn of_secret(value: &Value) -> Result<HeldCertificate, serde_json::Error> {
    let TlsSecret { metadata, data } = TlsSecret::deserialize(value)?;
    let file = |key: &str| {
        let missing = || serde::de::Error::custom(format!("{key} is not there, or is no text in Base64"));
        let bytes = BASE64_STANDARD.decode(data.get(key).ok_or_else(missing)?);
        bytes
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(missing)
    };
    let (chain, key) = (file("tls.crt")?, file("tls.key")?);
    Ok(HeldCertificate {
        origin: CertificateOrigin {
            namespace: metadata.namespace,
            name: metadata.name,
            is_secret: true,
        },
        pem: joined([chain.as_str(), key.as_str()]),
    })
}

impl RouteTls {
    /// Texts in the order in which the router writes them; `None` without a certificate or its key.
    fn pem(&self) -> Option<Secret> {
        let text = |text: &'_ Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
        let (certificate, key) = (text(&self.certificate)?, text(&self.key)?);
        let intermediates = text(&self.ca_certificate).unwrap_or_default();
        Some(joined([certificate.as_str(), intermediates.as_str(), key.as_str()]))
    }
}

fn joined<const N: usize>(texts: [&str; N]) -> Secret {
    let lines = texts.iter().filter(|text| !text.is_empty()).map(|text| text.trim_end());
    let mut all: String = lines.collect::<Vec<_>>().join("\n");
    all.push('\n');
    Secret::new(&all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn route(tls: &Value) -> Value {
        json!({ "metadata": { "namespace": "shop", "name": "web" }, "spec": { "tls": tls } })
    }

    #[test]
    fn a_route_holds_its_certificate_or_names_a_secret() {
        let own = json!({ "termination": "edge", "certificate": "C\n", "key": "K", "caCertificate": "A\n\n" });
        let held = of_route(&route(&own)).unwrap();
        assert_eq!(held.pem.reveal(), "C\nA\nK\n");
        assert!(!held.origin.is_secret && held.origin.name == "web");
        let (named, ends) = named(ObjectKind::Route, &own).unwrap();
        assert!(ends && named.len() == 1 && named[0].secret.is_none());
        let external = json!({ "termination": "reencrypt", "externalCertificate": { "name": "s" } });
        let (named, _) = super::named(ObjectKind::Route, &external).unwrap();
        assert_eq!(named[0].secret.as_deref(), Some("s"));
        assert_eq!(of_route(&route(&external)), None);
        // The router's own certificate serves such a name.
        let bare = json!({ "termination": "edge", "certificate": "", "key": "K" });
        assert_eq!(super::named(ObjectKind::Route, &bare).unwrap(), (vec![], true));
        let passed = json!({ "termination": "passthrough" });
        assert_eq!(super::named(ObjectKind::Route, &passed).unwrap(), (vec![], false));
        assert_eq!(super::named(ObjectKind::Route, &Value::Null).unwrap(), (vec![], false));
        assert!(super::named(ObjectKind::Route, &json!({ "key": 5 })).is_err());
    }

    #[test]
    fn an_ingress_names_secrets_for_hosts() {
        let tls = json!([{ "hosts": ["a.test"], "secretName": "s" }, { "hosts": null }, { "secretName": "t" }]);
        let (named, ends) = named(ObjectKind::Ingress, &tls).unwrap();
        let named: Vec<_> = named
            .iter()
            .map(|one| (one.hostnames.len(), one.secret.as_deref()))
            .collect();
        assert_eq!((named, ends), (vec![(1, Some("s")), (0, Some("t"))], false));
    }

    #[test]
    fn a_secret_is_decoded_and_never_shown() {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let metadata = json!({ "namespace": "shop", "name": "s" });
        let value = json!({ "metadata": metadata, "data": { "tls.crt": encoded("C"), "tls.key": encoded("KEY") } });
        let held = of_secret(&value).unwrap();
        assert_eq!(held.pem.reveal(), "C\nKEY\n");
        assert!(!format!("{held:?}").contains("KEY"));
        for data in [
            json!({ "tls.crt": encoded("C") }),
            json!({ "tls.crt": "%", "tls.key": "%" }),
            Value::Null,
        ] {
            let error = of_secret(&json!({ "metadata": metadata, "data": data })).unwrap_err();
            assert!(error.to_string().starts_with("tls."), "{error}");
        }
    }
}
