//! Messages for operators about troubles, with the remedy.

use super::feed::{Feed, Need};
use super::trouble::Trouble;
use super::what::What;

/// Returns the message for a trouble that an operator has to mend, and whether a right is missing.
pub(super) fn complaint(feed: &Feed, trouble: Trouble, watching: bool) -> Option<(String, bool)> {
    match trouble {
        // The next request mends these, or has a trouble of its own.
        Trouble::Absent | Trouble::Expired => None,
        Trouble::Broken(_) if watching => None,
        Trouble::Broken(text) => Some((format!("the list of {} broke off: {text}", feed.name()), false)),
        Trouble::Forbidden(said) => Some((forbidden(feed, &said, watching), true)),
        Trouble::Unauthorized(text)
        | Trouble::Garbled(text)
        | Trouble::Unreachable(text)
        | Trouble::Unprepared(text)
        | Trouble::Failed(text) => Some((text, false)),
    }
}

fn forbidden(feed: &Feed, said: &str, watching: bool) -> String {
    let verb = if watching { "watch" } else { "list" };
    let name = feed.name();
    let or = match feed.what {
        What::Names(_) => " (or leave it out by `resources` or `namespaces`)",
        What::Pods if feed.need == Need::Guess => " (or say by `routers` where the router pods are)",
        What::Pods => "",
        What::Nodes => " (or use `InternalIP`)",
        What::IngressClasses => "; until then an Ingress without a class is left out",
        What::Gateways if feed.need == Need::Help => "; until then the hostnames of its listeners do not count",
        What::Gateways => " (or name the Gateways by `gateways`)",
        What::Namespaces if feed.need == Need::Help => "; until then the routers' word alone decides on Routes",
        What::Namespaces => " (or leave `namespace_labels` out, or give `router_name` beside it)",
    };
    format!("the account may not {verb} {name} (403{said}): give it a role with the verbs list and watch{or}")
}
