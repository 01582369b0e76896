//! `GET /api/v1/certificates`: the certificates in force, without their keys.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde_json::{Value, json};
use signalbox_core::tls::names::Validity;
use signalbox_tls::certificate::Certificate;
use signalbox_tls::watch::now;

use crate::control::Control;

/// `GET /api/v1/certificates`: the certificates in force, and files that cannot be used.
pub(super) async fn list(State(control): State<Arc<Control>>) -> Json<Value> {
    let (certificates, now) = (control.shared.certificates.load(), now());
    let list: Vec<_> = certificates.certificates().iter().map(|one| view(one, now)).collect();
    Json(json!({
        "apiVersion": "v1",
        "certificates": list,
        "errors": **control.shared.certificate_errors.load(),
    }))
}

fn view(certificate: &Certificate, now: u64) -> Value {
    json!({
        "label": certificate.label,
        "names": certificate.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "default": certificate.is_default,
        "key": format!("{:?}", certificate.kind).to_uppercase(),
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "not_before": certificate.not_before,
        "not_after": certificate.not_after,
        "state": match certificate.validity(now) {
            Validity::Valid => "valid",
            Validity::Expired => "expired",
            Validity::NotYet => "not yet valid",
        },
        "days_left": (i128::from(certificate.not_after) - i128::from(now)) / 86_400,
        "warnings": certificate.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
