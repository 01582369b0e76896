//! Settings of listeners for requests: `forwarded`, `request_id`, `ambiguous_paths` and `redirect_port`.

use signalbox_core::model::Protocol;
use signalbox_core::model::http::{AmbiguousPaths, HttpPolicy};
use signalbox_core::wire::http::forwarded::ForwardedPolicy;
use signalbox_core::wire::http1::edit::FieldName;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};

/// Policies, as the annotation `haproxy.router.openshift.io/set-forwarded-headers` of Routes has them.
const POLICIES: [(&str, ForwardedPolicy); 4] = [
    ("append", ForwardedPolicy::Append),
    ("if-none", ForwardedPolicy::IfNone),
    ("never", ForwardedPolicy::Never),
    ("replace", ForwardedPolicy::Replace),
];

/// Keys of a listener that only one that routes by request has.
pub(super) struct HttpKeys<'a> {
    forwarded: Option<NodeRef<'a>>,
    request_id: Option<NodeRef<'a>>,
    ambiguous_paths: Option<NodeRef<'a>>,
    redirect_port: Option<NodeRef<'a>>,
}

impl<'a> HttpKeys<'a> {
    pub(super) fn take(map: &mut MapDecoder<'a>) -> Self {
        Self {
            forwarded: map.take("forwarded"),
            request_id: map.take("request_id"),
            ambiguous_paths: map.take("ambiguous_paths"),
            redirect_port: map.take("redirect_port"),
        }
    }

    /// Decodes the keys. `is_served`: whether the listener routes by request. `spoken`: its protocol, and whether TLS ends
    /// there.
    pub(super) fn decode(
        &self,
        is_served: bool,
        spoken: Option<(Protocol, bool)>,
        report: &mut Report,
    ) -> Option<HttpPolicy> {
        let is_http = spoken.is_none_or(|spoken| spoken == (Protocol::Http, false));
        let ends_tls = spoken.is_none_or(|(_, ends_tls)| ends_tls);
        for (key, place, is_wanted, needs) in [
            (
                "forwarded",
                &self.forwarded,
                is_served,
                "`routing: request` or `protocol: https`",
            ),
            (
                "request_id",
                &self.request_id,
                is_served,
                "`routing: request` or `protocol: https`",
            ),
            (
                "ambiguous_paths",
                &self.ambiguous_paths,
                is_http || ends_tls,
                "`protocol: http` or `https`",
            ),
            ("redirect_port", &self.redirect_port, is_http, "`protocol: http`"),
        ] {
            if let Some(place) = place.as_ref().filter(|_| !is_wanted) {
                place.error(report, format!("`{key}` needs {needs}"));
            }
        }
        let mut policy = HttpPolicy::default();
        policy.ambiguous_paths = or_default(self.ambiguous_paths.as_ref(), policy.ambiguous_paths, |place| {
            place.keyword("a treatment of ambiguous paths", &AmbiguousPaths::ALL, report)
        });
        policy.redirect_port = optional_value(self.redirect_port.as_ref(), |place| place.port(report))?;
        if !is_served {
            return Some(policy);
        }
        if let Some(mut map) = self
            .forwarded
            .as_ref()
            .and_then(|place| MapDecoder::open(place, report))
        {
            let word = map.take("policy");
            let trusted = map.take("trusted");
            map.finish(report);
            policy.forwarded = or_default(word.as_ref(), policy.forwarded, |place| {
                place.keyword("a policy for X-Forwarded fields", &POLICIES, report)
            });
            policy.trusted = optional_value(trusted.as_ref(), |place| {
                let items = place.items("prefixes", usize::MAX, report)?;
                Some(items.filter_map(|item| item.prefix(report)).collect())
            })?;
        }
        policy.request_id = optional_value(self.request_id.as_ref(), |place| request_id(place, report))?;
        Some(policy)
    }
}

fn request_id(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if FieldName::parse(text).is_some_and(|name| name.is_editable()) {
        return Some(text.to_owned());
    }
    let text = quote(text);
    place.error(
        report,
        format!("{text} is not a field that may be set, such as X-Request-Id"),
    );
    None
}
