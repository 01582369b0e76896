//! Fields that pass a client's certificate on to hosts.

use std::rc::Rc;

use signalbox_core::http1::edit::{FieldEdit, FieldName};
use signalbox_core::model::tls::CertificateFields;
use signalbox_tls::shown::ShownCertificate;

use super::leg::Leg;

/// Fields for the requests of a client's connection; `None` if it has shown no certificate.
pub(super) fn fields(client: &Leg, fields: CertificateFields) -> Option<Rc<[FieldEdit]>> {
    let Leg::Tls(stream) = client else { return None };
    let shown = ShownCertificate::read(stream.peer_certificate()?)?;
    let set = |name, value: String| FieldEdit::Set(FieldName::constant(name), value.into_bytes());
    match fields {
        CertificateFields::Off => None,
        // A byte sequence of structured fields (RFC 9440, section 2.1).
        CertificateFields::ClientCert => Some([set("Client-Cert", format!(":{}:", shown.base64))].into()),
        CertificateFields::XSsl => Some(as_router(&shown).into()),
    }
}

/// Fields in the format of OpenShift's router.
fn as_router(shown: &ShownCertificate) -> Vec<FieldEdit> {
    let set = |name, value: String| FieldEdit::Set(FieldName::constant(name), value.into_bytes());
    vec![
        set("X-SSL", "1".to_owned()),
        set("X-SSL-Client-Verify", "0".to_owned()),
        set("X-SSL-Client-SHA1", quoted(&shown.sha1)),
        set("X-SSL-Client-DN", quoted(&shown.subject)),
        set("X-SSL-Client-CN", quoted(&shown.common_name)),
        set("X-SSL-Issuer", quoted(&shown.issuer)),
        set("X-SSL-Client-NotBefore", quoted(&shown.not_before)),
        set("X-SSL-Client-NotAfter", quoted(&shown.not_after)),
        set("X-SSL-Client-DER", quoted(&shown.base64)),
    ]
}

/// Quoted text, in the router's format.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}
