//! TLS with an API server: its authorities, its name, and the client's certificate.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use signalbox_tls::client::{AnyCertificate, system_roots};
use signalbox_tls::provider::provider;

/// Settings of handshakes with a server.
#[derive(Default)]
pub(super) struct ServerTls {
    /// Authorities that sign the server's certificate; those of the system if there are none.
    pub(super) authorities: Option<Vec<CertificateDer<'static>>>,
    /// Whether any certificate is accepted.
    pub(super) is_unverified: bool,
    /// Name to ask for and to verify, if it is not the address' host.
    pub(super) server_name: Option<String>,
    pub(super) identity: Option<ClientCertificate>,
}

/// A certificate to show, and its key, both in PEM.
#[cfg_attr(test, derive(Debug))]
pub(super) struct ClientCertificate {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl ServerTls {
    /// Configuration of handshakes. Errors say what to fix.
    pub(super) fn client_config(&self) -> Result<ClientConfig, String> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = if self.is_unverified {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        } else {
            builder.with_root_certificates(self.roots()?)
        };
        let Some(ClientCertificate { certificate, key }) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates(certificate).map_err(|error| format!("the client's certificate {error}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the client's key is not PEM: {error}"))?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("the client's certificate cannot be used: {error}"))
    }

    /// Name to ask for instead of the address' host.
    pub(super) fn name(&self) -> Result<Option<ServerName<'static>>, String> {
        let name = self.server_name.clone();
        name.map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|error| format!("`tls-server-name` {name:?} is no name: {error}"))
        })
        .transpose()
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let Some(authorities) = &self.authorities else {
            return system_roots().map_err(|error| signalbox_sys::error_chain(&error));
        };
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots
                .add(authority.clone())
                .map_err(|error| format!("a certificate authority cannot be used: {error}"))?;
        }
        Ok(roots)
    }
}

/// Reads the certificates of a PEM text; at least one. Errors continue a sentence that begins with the name of the
/// text.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("holds no certificate in PEM: give the file of the authorities".to_owned()),
        Err(error) => Err(format!("is not PEM: {error}")),
    }
}
