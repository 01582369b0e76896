//! Messages for operators about errors, with the fix.

use super::feed::{Feed, Necessity};
use super::resource_kind::ResourceKind;
use super::watch_error::WatchError;

/// Returns the message for an error that an operator has to fix, and whether a right is missing.
pub(super) fn diagnosis(feed: &Feed, error: WatchError, watching: bool) -> Option<(String, bool)> {
    match error {
        // The next request repairs these, or reports its own error.
        WatchError::Absent | WatchError::Expired => None,
        WatchError::Broken(_) if watching => None,
        WatchError::Broken(text) => Some((format!("the list of {} broke off: {text}", feed.name()), false)),
        WatchError::Forbidden(said) => Some((forbidden(feed, &said, watching), true)),
        WatchError::Unauthorized(text)
        | WatchError::Garbled(text)
        | WatchError::Unreachable(text)
        | WatchError::ConfigUnusable(text)
        | WatchError::Failed(text) => Some((text, false)),
    }
}

fn forbidden(feed: &Feed, said: &str, watching: bool) -> String {
    let verb = if watching { "watch" } else { "list" };
    let name = feed.name();
    let or = match feed.resource {
        ResourceKind::Claiming(_) => " (or leave it out by `resources` or `namespaces`)",
        ResourceKind::Pods if feed.necessity == Necessity::Speculative => {
            " (or say by `routers` where the router pods are)"
        }
        ResourceKind::Pods => "",
        ResourceKind::Nodes => " (or use `InternalIP`)",
        ResourceKind::IngressClasses => "; until then an Ingress without a class is left out",
        ResourceKind::Gateways if feed.necessity == Necessity::Optional => {
            "; until then the hostnames of its listeners do not count"
        }
        ResourceKind::Gateways => " (or name the Gateways by `gateways`)",
        ResourceKind::Namespaces if feed.necessity == Necessity::Optional => {
            "; until then the routers' word alone decides on Routes"
        }
        ResourceKind::Secrets => "; until then names with certificates in Secrets are passed through to the routers",
        ResourceKind::Namespaces => " (or leave `namespace_labels` out, or name routers by `router_name`)",
    };
    format!("the account may not {verb} {name} (403{said}): give it a role with the verbs list and watch{or}")
}
