//! Certificates by which the nodes trust each other, in one Secret: its pods are one domain of trust.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use super::super::options::HaConfigArgs;
use super::client::Client;

/// The Secret that the packaged manifests mount.
const NAME: &str = "signalbox-sync";
/// Nodes that the certificate is for.
const NODES: &str = "signalbox.io/nodes";
const AUTHORITIES: &str = "ca.crt";
const END: &str = "-----END CERTIFICATE-----";

/// Makes the Secret for replication, unless the cluster has one for these nodes, or one that somebody else has made.
pub(super) fn put(client: &Client, args: &HaConfigArgs) -> anyhow::Result<()> {
    if args.sync != Some(true) {
        return Ok(());
    }
    let mut nodes: Vec<String> = args.named_nodes()?.into_iter().map(|(name, _)| name).collect();
    nodes.sort();
    let names = nodes.join(",");
    let found = client.get("secret", NAME)?;
    let noted = found
        .as_ref()
        .map(|found| found["metadata"].get("annotations").and_then(|all| all[NODES].as_str()));
    if noted.is_some_and(|noted| noted.is_none_or(|noted| noted == names)) {
        println!("secret/{NAME} unchanged");
        return Ok(());
    }
    let (mut authorities, certificate, key) = make(nodes).context("making the certificates of the nodes")?;
    if let Some(found) = &found {
        // Nodes that have not read the new files yet are trusted, too.
        authorities += &latest_authority(found).unwrap_or_default();
    }
    let files = [(AUTHORITIES, authorities), ("tls.crt", certificate), ("tls.key", key)];
    let data: serde_json::Map<_, _> = files
        .into_iter()
        .map(|(name, text)| (name.to_owned(), Value::from(STANDARD.encode(text))))
        .collect();
    let metadata = json!({ "name": NAME, "namespace": args.namespace(), "annotations": { NODES: names } });
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data });
    // Not applied: the client would copy the key into an annotation.
    match found {
        Some(_) => client.replace(&secret),
        None => client.create(&secret),
    }
}

/// The first authority of a Secret.
fn latest_authority(secret: &Value) -> Option<String> {
    let data = STANDARD.decode(secret["data"][AUTHORITIES].as_str()?).ok()?;
    let text = String::from_utf8(data).ok()?;
    let end = text.find(END)? + END.len();
    Some(format!("{}\n", text.get(..end)?))
}

/// An authority, whose key is not kept, and a certificate with the names of all nodes, with its key.
fn make(nodes: Vec<String>) -> Result<(String, String, String), rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Another name than that of the certificate, which would be taken for its own authority.
    params.distinguished_name.push(DnType::CommonName, "signalbox nodes");
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(nodes)?.signed_by(&key, &issuer)?.pem();
    Ok((authority, certificate, key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_secret_trusts_the_previous_authority_and_no_older() {
        let authorities = format!("one\n{END}\ntwo\n{END}\n");
        let secret = json!({ "data": { AUTHORITIES: STANDARD.encode(authorities) } });
        assert_eq!(latest_authority(&secret), Some(format!("one\n{END}\n")));
        assert_eq!(latest_authority(&json!({ "data": {} })), None);
        let (authority, certificate, _) = make(vec!["n1".to_owned()]).unwrap();
        assert_eq!(
            (authority.matches(END).count(), certificate.matches(END).count()),
            (1, 1)
        );
    }
}
