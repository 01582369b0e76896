//! Page that a check by HTTP asks an application's endpoint for.

use super::application::{AppKey, Application, Endpoint};
use crate::model::{HealthPage, HealthPageTemplate, Naming};
use crate::wire::hostname::Hostname;

/// Path of the front end at which OpenShift's nodes check an application.
const FRONTEND_HEALTH_PATH: &str = "/health";

impl HealthPageTemplate {
    /// Page that an endpoint is asked for; `None`: it is not checked by HTTP.
    #[must_use]
    pub(super) fn render(&self, application: &Application, endpoint: &Endpoint, naming: &Naming) -> Option<HealthPage> {
        let speaks = ["http", "ws"]
            .iter()
            .any(|protocol| endpoint.protocols.contains(*protocol));
        if !speaks && !self.include_non_http {
            return None;
        }
        let host = match &self.host_header {
            Some(template) => Some(self::host_header(template, application, endpoint)),
            None => application_hostname(application, naming),
        };
        Some(HealthPage {
            path: self.path.clone().unwrap_or_else(|| mapped_health_path(endpoint)),
            host_header: host.filter(|host| is_host_header(host)),
        })
    }
}

/// Health path of an endpoint: the path that its node maps `/health`, or else the root, to; otherwise `/`.
fn mapped_health_path(endpoint: &Endpoint) -> String {
    let of = |frontends: &[&str]| {
        let meant = |mapping: &&super::Mapping| frontends.contains(&mapping.frontend.as_str());
        endpoint
            .mappings
            .iter()
            .find(meant)
            .map(|mapping| mapping.backend.clone())
    };
    let path = of(&[FRONTEND_HEALTH_PATH]).or_else(|| of(&["", "/"]));
    path.filter(|path| HealthPage::is_valid_path(path))
        .unwrap_or_else(|| "/".to_owned())
}

fn host_header(template: &str, application: &Application, endpoint: &Endpoint) -> String {
    let AppKey { app, namespace } = &application.key;
    let gear = endpoint
        .gear
        .as_ref()
        .filter(|gear| application.head.as_ref() != Some(*gear));
    let values = [app, namespace, gear.unwrap_or(app)];
    let places = HealthPageTemplate::PLACEHOLDERS.iter().zip(values);
    places.fold(template.to_owned(), |text, (place, value)| text.replace(place, value))
}

/// DNS name of an application: `APP-NAMESPACE.DOMAIN`, or else the first alias that is a host name.
fn application_hostname(application: &Application, naming: &Naming) -> Option<String> {
    let AppKey { app, namespace } = &application.key;
    let of_domain = naming
        .domain
        .as_ref()
        .map(|domain| format!("{app}-{namespace}.{domain}"));
    of_domain.or_else(|| application.aliases.iter().find(|alias| is_host_header(alias)).cloned())
}

/// Whether a text can be a Host header; events may hold any text.
fn is_host_header(text: &str) -> bool {
    let name = match text.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => text,
    };
    Hostname::parse(name.as_bytes()).is_ok()
}
