//! Ports that this machine needs itself: source ports for flows, and the kernel's own range.

use std::fs::read_to_string;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use signalbox_core::model::Model;

const PORT_RANGE: &str = "ip_local_port_range";
const RESERVED: &str = "ip_local_reserved_ports";

/// Time for which a shortage is reported after the last flow that could not begin.
const SHORTAGE_TTL: Duration = Duration::from_secs(60);

/// Shortage of source ports for flows of mode `nat`.
#[derive(Default)]
pub(super) struct PortShortage {
    /// Number of flows that got no port, as counted by the programs.
    count: Option<u64>,
    grew_at: Option<Instant>,
}

impl PortShortage {
    /// Takes the programs' count.
    pub(super) fn update(&mut self, count: u64, now: Instant) {
        if self.count.replace(count).is_some_and(|before| before < count) {
            self.grew_at = Some(now);
        }
    }

    pub(super) fn problem(&self, now: Instant) -> Option<String> {
        let is_recent = self.grew_at.is_some_and(|then| now.duration_since(then) < SHORTAGE_TTL);
        is_recent.then(|| {
            "new flows find no source port towards a host, and are refused: more of layer4.nat.sources, or a wider \
             layer4.nat.ports"
                .to_owned()
        })
    }
}

/// Returns which ports of services the kernel may use for this machine's own connections and datagrams. Their answers
/// would go to hosts. Also returns the setting that prevents this.
pub(super) fn problem(model: &Model) -> Option<String> {
    let services = model.services.iter().flat_map(|service| &service.listen);
    let events = model.routing_events.iter();
    let exposed = events.flat_map(|events| &events.expose).map(|rule| &rule.ports);
    let all: Vec<_> = services.map(|bind| &bind.ports).chain(exposed).collect();
    if all.is_empty() {
        return None;
    }
    let setting = |name: &str| read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    let shared = shared_ports(&all, &setting(PORT_RANGE), &setting(RESERVED));
    (!shared.is_empty()).then(|| {
        format!(
            "services have ports of the kernel's own range: answers to datagrams that this machine sends from there would \
             go to hosts; `sysctl -w net.ipv4.{RESERVED}={}` keeps them free",
            reserved_with(&setting(RESERVED), &shared)
        )
    })
}

/// Ports of services in the kernel's range that are not reserved. Texts are as in `/proc/sys/net/ipv4`.
fn shared_ports(all: &[&RangeInclusive<u16>], range: &str, reserved: &str) -> Vec<RangeInclusive<u16>> {
    let mut ends = range.split_whitespace().filter_map(|end| end.parse::<u16>().ok());
    let (Some(low), Some(high)) = (ends.next(), ends.next()) else {
        return Vec::new();
    };
    let reserved: Vec<_> = reserved.trim().split(',').filter_map(parse_range).collect();
    let is_reserved = |ports: &RangeInclusive<u16>| {
        let mut ports = ports.clone();
        ports.all(|port| reserved.iter().any(|range| range.contains(&port)))
    };
    let mut shared: Vec<_> = all
        .iter()
        .map(|ports| *ports.start().max(&low)..=*ports.end().min(&high))
        .filter(|ports| !ports.is_empty() && !is_reserved(ports))
        .collect();
    shared.sort_by_key(|ports| (*ports.start(), *ports.end()));
    shared.dedup();
    shared
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Value of the setting with these ports added to the reserved ones.
fn reserved_with(reserved: &str, ports: &[RangeInclusive<u16>]) -> String {
    let write = |ports: &RangeInclusive<u16>| match (ports.start(), ports.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    let before = Some(reserved.trim().to_owned()).filter(|text| !text.is_empty());
    let all: Vec<String> = before.into_iter().chain(ports.iter().map(write)).collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_for_a_minute_after_its_last_flow() {
        let (start, mut shortage) = (Instant::now(), PortShortage::default());
        shortage.update(7, start);
        assert_eq!(shortage.problem(start), None, "an earlier process' flows");
        shortage.update(8, start);
        assert!(shortage.problem(start + SHORTAGE_TTL / 2).is_some());
        shortage.update(8, start + SHORTAGE_TTL);
        assert_eq!(shortage.problem(start + SHORTAGE_TTL), None);
    }

    #[test]
    fn ports_of_the_kernels_range_are_told_unless_they_are_reserved() {
        let shared = |reserved: &str| {
            let all = [&(53..=53), &(50_000..=50_400), &(32_000..=32_800), &(53..=53)];
            shared_ports(&all, "32768\t60999\n", reserved)
        };
        assert_eq!(shared("\n"), [32_768..=32_800, 50_000..=50_400]);
        assert_eq!(shared("32768-32800,50000-50400\n"), []);
        assert_eq!(shared("32768-40000,50000-50399\n"), [50_000..=50_400]);
        assert_eq!(shared_ports(&[&(1..=65_535)], "", ""), []);
        assert_eq!(reserved_with("9000\n", &shared("32768-40000")), "9000,50000-50400");
        assert_eq!(reserved_with("\n", &[53..=53]), "53");
    }
}
