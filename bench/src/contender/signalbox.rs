//! signalbox with a given datapath tier; all other settings are defaults.

use anyhow::Result;

use super::template::{Filling, Template, template};
use crate::suite::Suite;

const CONNECTIONS: Template = template!("signalbox/connections.yaml");
const HTTP: Template = template!("signalbox/http.yaml");

/// Configuration with a tier, without the part that [`crate::product::configuration`] adds.
pub(super) fn body(mut filling: Filling, suite: Suite, tier: &str) -> Result<String> {
    let is_http = suite == Suite::Http;
    // The default is compared with other balancers; another tier is for comparison with the default.
    let datapath = match tier {
        "auto" => String::new(),
        // Not a tier: connections have a socket until they are cut, as on kernels without the functions that the kernel
        // peek needs.
        "userspace" => "datapath: { peek: userspace }".to_owned(),
        // Requests that are their connection's last are cut.
        "last" if is_http => "datapath: { last_requests: on }".to_owned(),
        // The rest of a long answer is cut on connections that stay.
        "long" if is_http => "datapath: { long_answers: on }".to_owned(),
        tier => format!("datapath: {{ tier: {tier} }}"),
    };
    filling.words.push(("datapath", datapath));
    if is_http { &HTTP } else { &CONNECTIONS }.fill(&filling)
}
