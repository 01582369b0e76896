//! Rules by which endpoints of applications become layer-4 services, and their addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use signalbox_common::l4::abi::MAX_SERVICES;
use signalbox_core::model::AppPattern;
use signalbox_core::model::services::{Affinity, Mode, ServiceBind};
use signalbox_core::model::shield::ShieldPolicy;
use signalbox_core::model::{ExposeRule, Probe};

use super::map::MapDecoder;
use super::node::{NodeRef, Position};
use super::report::{Report, quote};
use super::routing_events::line;
use super::scalar::{optional_value, or_default};
use super::{health, services, shield};

/// Most rules, because each endpoint is compared with all of them.
const MAX_RULES: usize = 256;
/// Most addresses of a rule; also most patterns of port names, and most protocols.
const MAX_WORDS: usize = 64;
/// Default time that a connection is known without a packet.
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Context that rules are decoded in.
struct ExposeContext<'a> {
    default_shield: Option<&'a ShieldPolicy>,
    /// Number of services that there may be beside those of the configuration.
    services_left: usize,
    targets: Vec<(ServiceBind, Position)>,
    /// Line of a rule that takes every endpoint of TCP, if there was one.
    catch_all_line: Option<usize>,
}

/// Decodes all rules, with the places of their addresses. `services`: the number of services in the file.
pub(super) fn decode_all(
    place: &NodeRef<'_>,
    default_shield: Option<&ShieldPolicy>,
    services: usize,
    report: &mut Report,
) -> Option<Vec<(Position, ExposeRule)>> {
    let mut around = ExposeContext {
        default_shield,
        services_left: (MAX_SERVICES as usize - 1).saturating_sub(services),
        targets: Vec::new(),
        catch_all_line: None,
    };
    let mut all = Some(Vec::new());
    for item in place.items("rules", MAX_RULES, report)? {
        match (decode_one(&item, &mut around, report), &mut all) {
            (Some(one), Some(all)) => all.push(one),
            _ => all = None,
        }
    }
    all
}

fn decode_one(
    place: &NodeRef<'_>,
    context: &mut ExposeContext<'_>,
    report: &mut Report,
) -> Option<(Position, ExposeRule)> {
    let mut map = MapDecoder::open(place, report)?;
    let pattern = map.require("match");
    let listen = map.require("listen");
    let port_names = map.take("port_names");
    let protocols = map.take("protocols");
    let mode_at = map.take("mode");
    let affinity = map.take("affinity");
    let idle = map.take("idle");
    let health_at = map.take("health");
    let shield = map.take("shield");
    map.finish(report);

    let is_narrow = port_names.is_some() || protocols.is_some();
    let pattern = pattern.and_then(|place| self::pattern(&place, is_narrow, context, report));
    let spot = listen.as_ref().map(NodeRef::position);
    let listen = listen.and_then(|place| addresses(&place, context, report));
    let port_names = optional_value(port_names.as_ref(), |place| {
        word_list(place, "port names", is_port_name, report)
    });
    let protocols = optional_value(protocols.as_ref(), |place| {
        word_list(place, "protocols", |_| true, report)
    });
    let mode = or_default(mode_at.as_ref(), Mode::Nat, |place| {
        place.keyword("a mode", &Mode::ALL, report)
    });
    if let (Some(at), Some((_, ports))) = (&mode_at, &listen)
        && mode != Mode::Nat
        && ports.len() > 1
    {
        at.error(
            report,
            "direct return does not change ports: listen on the one port that the endpoints have, or write `mode: nat`",
        );
    }
    let affinity = or_default(affinity.as_ref(), Affinity::Flow, |place| {
        place.keyword("an affinity", &Affinity::ALL, report)
    });
    let health = health::of_exposed(health_at.as_ref(), report);
    if let (Some(at), Probe::Http(probe)) = (&health_at, &health.probe)
        && probe.port.is_none()
    {
        at.error(
            report,
            "an exposed endpoint has no port for HTTP: give the check a `port`",
        );
    }
    let idle = or_default(idle.as_ref(), TCP_IDLE_TIMEOUT, |place| place.duration(report));
    let shield = shield::decode(shield.as_ref(), context.default_shield, report);
    let (addresses, ports) = listen?;
    let rule = ExposeRule {
        pattern: pattern?,
        port_names: port_names?.unwrap_or_default(),
        protocols: protocols?.unwrap_or_default().into_iter().collect::<BTreeSet<_>>(),
        addresses,
        ports,
        mode,
        affinity,
        idle,
        health,
        shield,
    };
    Some((spot?, rule))
}

/// Decodes the pattern of a rule. A rule after one that takes everything would never count.
fn pattern(
    place: &NodeRef<'_>,
    is_narrow: bool,
    context: &mut ExposeContext<'_>,
    report: &mut Report,
) -> Option<AppPattern> {
    let text = place.text(report)?;
    if let Some(line) = context.catch_all_line {
        place.error(
            report,
            format!("the first match wins, and line {line} matches all applications: put this before it"),
        );
        return None;
    }
    match AppPattern::parse(text) {
        Ok(pattern) => {
            context.catch_all_line = (text == "*" && !is_narrow).then_some(place.position().line);
            Some(pattern)
        }
        Err(error) => {
            place.error(
                report,
                format!("{} is not a pattern of applications: {error}", quote(text)),
            );
            None
        }
    }
}

/// Decodes addresses that have one port range in common.
fn addresses(
    place: &NodeRef<'_>,
    around: &mut ExposeContext<'_>,
    report: &mut Report,
) -> Option<(Vec<IpAddr>, RangeInclusive<u16>)> {
    let items: Vec<NodeRef<'_>> = place.items("addresses", MAX_WORDS, report)?.collect();
    if items.is_empty() {
        place.error(
            report,
            "services need at least one address, such as 10.1.0.9:3306 or 10.1.0.9:20000-20099",
        );
    }
    let mut all: Vec<ServiceBind> = Vec::new();
    for item in &items {
        let Some(text) = item.text(report) else { continue };
        let bind = services::parse_bind(text).and_then(|bind| match all.first() {
            Some(first) if first.ports != bind.ports => Err(format!(
                "{bind} has other ports than {first}: an application gets one port, the same at all addresses"
            )),
            _ => claim_listen(bind, item.position(), around),
        });
        match bind {
            Ok(bind) => all.push(bind),
            Err(problem) => item.error(report, problem),
        }
    }
    let ports = all.first()?.ports.clone();
    if ports.len() > around.services_left {
        let left = around.services_left;
        let most = MAX_SERVICES - 1;
        place.error(
            report,
            format!(
                "each of these {} ports may become a service, and {left} of at most {most} services are left: give fewer",
                ports.len()
            ),
        );
        return None;
    }
    around.services_left -= ports.len();
    Some((all.into_iter().map(|bind| bind.address).collect(), ports))
}

/// Notes that a rule listens on a bind; the error names another rule that does already.
fn claim_listen(bind: ServiceBind, spot: Position, context: &mut ExposeContext<'_>) -> Result<ServiceBind, String> {
    let overlaps = |(other, _): &&(ServiceBind, Position)| {
        other.address == bind.address
            && other.ports.start() <= bind.ports.end()
            && bind.ports.start() <= other.ports.end()
    };
    if let Some((other, at)) = context.targets.iter().find(overlaps) {
        return Err(format!(
            "{bind} is already used by the rule on line {} ({other})",
            at.line
        ));
    }
    context.targets.push((bind.clone(), spot));
    Ok(bind)
}

fn is_port_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'*');
    text.len() <= 63 && text.bytes().all(allowed)
}

fn word_list(place: &NodeRef<'_>, what: &str, is_right: fn(&str) -> bool, report: &mut Report) -> Option<Vec<String>> {
    let mut words = Some(Vec::new());
    let items: Vec<_> = place.items(what, MAX_WORDS, report)?.collect();
    if items.is_empty() {
        place.error(
            report,
            format!("a rule without {what} selects no endpoint: leave the key out to select all"),
        );
        return None;
    }
    for item in items {
        let word = line(&item, report);
        if let Some(word) = word.as_ref().filter(|word| !is_right(word)) {
            let shown = quote(word);
            item.error(
                report,
                format!("{shown} is not a port name: write letters, digits, `.`, `_`, `-`, and * for any text"),
            );
        }
        match (word, &mut words) {
            (Some(word), Some(words)) => words.push(word),
            _ => words = None,
        }
    }
    words
}
