//! Fields that pass a client's certificate on to hosts.

use std::rc::Rc;

use signalbox_core::model::tls::CertificateFields;
use signalbox_core::wire::http1::edit::{FieldEdit, FieldName};
use signalbox_tls::shown::ShownCertificate;

use crate::datapath::http::leg::Leg;

/// Fields for the requests of a client's connection; `None` if it has shown no certificate.
pub(super) fn fields(client: &Leg, fields: CertificateFields) -> Option<Rc<[FieldEdit]>> {
    let Leg::Tls(stream) = client else { return None };
    let shown = ShownCertificate::read(stream.peer_certificate()?)?;
    match fields {
        CertificateFields::Off => None,
        CertificateFields::ClientCert => {
            // A byte sequence of structured fields (RFC 9440, section 2.1).
            let value = format!(":{}:", shown.base64).into_bytes();
            Some([FieldEdit::Set(FieldName::constant("Client-Cert"), value)].into())
        }
        CertificateFields::XSsl => Some(as_router(shown).into()),
    }
}

/// Fields that OpenShift's router has. Its `%{+Q}` adds no quotes: HAProxy ignores that where it sets fields.
fn as_router(shown: ShownCertificate) -> Vec<FieldEdit> {
    let set = |name, value| FieldEdit::Set(FieldName::constant(name), value);
    vec![
        set("X-SSL", b"1".to_vec()),
        set("X-SSL-Client-Verify", b"0".to_vec()),
        set("X-SSL-Client-SHA1", shown.sha1.into()),
        set("X-SSL-Client-DN", shown.subject),
        set("X-SSL-Client-CN", shown.common_name),
        set("X-SSL-Issuer", shown.issuer),
        set("X-SSL-Client-NotBefore", shown.not_before.into()),
        set("X-SSL-Client-NotAfter", shown.not_after.into()),
        set("X-SSL-Client-DER", shown.base64.into()),
    ]
}
