//! Certificates by API: lists the active ones without their keys, adds and removes certificates.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use signalbox_api::sources::{CertificateChange, CertificateView, CertificatesAnswer};
use signalbox_core::routing::tls::names::Validity;
use signalbox_core::wire::hostname::HostnamePattern;
use signalbox_tls::certificate::{Certificate, Warning};
use signalbox_tls::store::CertificateStore;
use signalbox_tls::watch::now;

use super::problem::problem;
use super::reply::{ApiReply, answer};
use crate::control::Control;
use crate::control::kept_certificates::{KeepError, KeptCertificates, PutCertificate};

/// Time that an answer waits until a change is active: files are watched.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval of checks of the active certificates.
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);

/// `GET /api/v1/certificates`: the active certificates, and unusable files.
pub(super) async fn list(State(control): State<Arc<Control>>) -> ApiReply<CertificatesAnswer> {
    let (certificates, now) = (control.shared.tls.certificates.load(), now());
    answer(CertificatesAnswer {
        certificates: certificates.certificates().iter().map(|one| view(one, now)).collect(),
        errors: control.shared.tls.certificate_errors.load().to_vec(),
    })
}

/// `PUT /api/v1/certificates/{name}`: stores a certificate, and answers when it is active.
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    Path(name): Path<String>,
    body: String,
) -> ApiReply<CertificateChange> {
    let put: PutCertificate = match serde_json::from_str(&body) {
        Ok(put) => put,
        // The decoder's error may quote the text, which may be a key.
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let why = format!("not {{ certificate: PEM, key: PEM, pass_phrase: TEXT }}: line {line}, column {column}");
            return problem(StatusCode::BAD_REQUEST, "The body is not understood", &why);
        }
    };
    drop(zeroize::Zeroizing::new(body));
    let kept = kept(&control);
    let named_for = HostnamePattern::parse(&name).ok().filter(|_| name.contains('.'));
    let written = tokio::task::spawn_blocking(move || kept.put(&name, &put)).await;
    match written {
        Ok(Ok(certificate)) => {
            let has = |store: &CertificateStore| {
                let mut all = store.certificates().iter();
                all.any(|one| one.label == certificate.label && one.is_same(&certificate))
            };
            let is_in_force = settles(&control, has).await;
            let uncovered = named_for.filter(|name| !certificate.covers(name));
            let other_name = uncovered.map(|name| Warning::NotCovered { name: name.to_string() }.to_string());
            let of_certificate = certificate.warnings(now()).map(|warning| warning.to_string());
            answer(CertificateChange {
                removed: None,
                in_force: is_in_force,
                certificate: Some(view(&certificate, now())),
                warnings: Some(of_certificate.chain(other_name).collect()),
            })
        }
        Ok(Err(error)) => refusal(&error),
        Err(error) => refusal_of_server(&error.to_string()),
    }
}

/// `DELETE /api/v1/certificates/{name}`: removes a certificate that was added by API.
pub(super) async fn delete(
    State(control): State<Arc<Control>>,
    Path(name): Path<String>,
) -> ApiReply<CertificateChange> {
    let kept = kept(&control);
    match tokio::task::spawn_blocking(move || kept.remove(&name)).await {
        Ok(Ok(Some(label))) => {
            let is_gone = settles(&control, |store| {
                store.certificates().iter().all(|one| one.label != label)
            });
            let is_gone = is_gone.await;
            answer(CertificateChange {
                removed: Some(label),
                in_force: !is_gone,
                ..CertificateChange::default()
            })
        }
        Ok(Ok(None)) => {
            let why = "no certificate of this name has come by API; those of files are removed with the files";
            problem(StatusCode::NOT_FOUND, "There is no such certificate", why)
        }
        Ok(Err(error)) => refusal(&error),
        Err(error) => refusal_of_server(&error.to_string()),
    }
}

fn kept(control: &Control) -> KeptCertificates {
    KeptCertificates::of(&control.shared.snapshot.load().model)
}

/// Waits until the active certificates are as required. Returns whether they are.
async fn settles(control: &Control, is_right: impl Fn(&CertificateStore) -> bool) -> bool {
    let began = Instant::now();
    loop {
        if is_right(&control.shared.tls.certificates.load()) {
            return true;
        }
        // Without a listener that needs certificates, none is active.
        let model = Arc::clone(&control.shared.snapshot.load().model);
        if began.elapsed() > SETTLE_TIMEOUT || model.listeners.iter().all(|listener| listener.tls.is_none()) {
            return false;
        }
        tokio::time::sleep(SETTLE_INTERVAL).await;
    }
}

fn refusal(error: &KeepError) -> ApiReply<CertificateChange> {
    let status = match error {
        KeepError::Name(_) => StatusCode::BAD_REQUEST,
        KeepError::Unusable(_) | KeepError::TooLong => StatusCode::UNPROCESSABLE_ENTITY,
        KeepError::Disk { .. } => return refusal_of_server(&error.to_string()),
    };
    problem(
        status,
        "The certificate is refused; the previous one stays active",
        &error.to_string(),
    )
}

fn refusal_of_server(why: &str) -> ApiReply<CertificateChange> {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    problem(status, "The certificate could not be written", why)
}

fn view(certificate: &Certificate, now: u64) -> CertificateView {
    let days_left = (i128::from(certificate.not_after) - i128::from(now)) / 86_400;
    CertificateView {
        label: certificate.label.clone(),
        names: certificate.names.iter().map(ToString::to_string).collect(),
        default: certificate.is_default,
        key: format!("{:?}", certificate.kind).to_uppercase(),
        subject: certificate.subject.clone(),
        issuer: certificate.issuer.clone(),
        not_before: certificate.not_before,
        not_after: certificate.not_after,
        state: match certificate.validity(now) {
            Validity::Valid => "valid",
            Validity::Expired => "expired",
            Validity::NotYet => "not yet valid",
        }
        .into(),
        days_left: days_left as i64,
        warnings: certificate.warnings(now).map(|warning| warning.to_string()).collect(),
    }
}
