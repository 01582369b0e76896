//! Health checks of a cluster's hosts.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use signalbox_core::model::HealthPageTemplate;
use signalbox_core::model::{
    ApplicationSettings, CheckProxyHeader, ExposeRule, HealthCheck, HealthPage, HttpProbe, Probe, TlsProbe,
};
use signalbox_core::wire::hostname::Hostname;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::{duration_text, or_default};
use super::udp_health;

const DEFAULT: HealthCheck = HealthCheck::DEFAULT;

/// Decodes the check of a cluster; the default replaces mistakes. `sends`: whether connections to the hosts begin with
/// a PROXY header.
pub(super) fn check(place: Option<&NodeRef<'_>>, sends: bool, report: &mut Report) -> HealthCheck {
    decode(place, DEFAULT, sends, None, report)
}

/// Decodes the check of applications' endpoints, and the settings for their pages.
pub(super) fn of_applications(
    place: Option<&NodeRef<'_>>,
    sends: bool,
    report: &mut Report,
) -> (HealthCheck, HealthPageTemplate) {
    let mut asking = HealthPageTemplate::default();
    let check = decode(place, ApplicationSettings::HEALTH, sends, Some(&mut asking), report);
    (check, asking)
}

/// Decodes the check of endpoints that are exposed as services.
pub(super) fn of_exposed(place: Option<&NodeRef<'_>>, report: &mut Report) -> HealthCheck {
    decode(place, ExposeRule::HEALTH, false, None, report)
}

fn decode(
    place: Option<&NodeRef<'_>>,
    default: HealthCheck,
    sends: bool,
    mut asking: Option<&mut HealthPageTemplate>,
    report: &mut Report,
) -> HealthCheck {
    let by_cluster = if sends {
        CheckProxyHeader::HostPorts
    } else {
        CheckProxyHeader::Never
    };
    let unsaid = HealthCheck {
        proxy_header: by_cluster,
        ..default.clone()
    };
    let Some(place) = place else { return unsaid };
    let Some(mut map) = MapDecoder::open(place, report) else {
        return unsaid;
    };
    let http = map.take("http");
    let https = map.take("https");
    let tcp = map.take("tcp");
    let udp = map.take("udp");
    let interval = map.take("interval");
    let fast_interval = map.take("fast_interval");
    let timeout = map.take("timeout");
    let rise = map.take("rise");
    let fall = map.take("fall");
    let header = map.take("proxy_protocol");
    map.finish(report);

    if [&http, &https, &tcp, &udp].into_iter().flatten().count() > 1 {
        place.error(
            report,
            "a health check is at most one of `http`, `https`, `tcp` and `udp`; there is more than one: leave one",
        );
    }
    let words = [("v2", CheckProxyHeader::Always), ("none", CheckProxyHeader::Never)];
    let header = or_default(header.as_ref(), by_cluster, |place| {
        place.keyword("a version of the PROXY protocol", &words, report)
    });
    let http = http.map(|place| http_probe(&place, false, asking.as_deref_mut(), report));
    let https = https.map(|place| http_probe(&place, true, asking, report));
    let tcp = tcp.map(|place| tcp_probe(&place, report));
    let udp = udp.and_then(|place| udp_health::probe(&place, report)).map(Probe::Udp);
    let times = times(interval, fast_interval, timeout, report);
    let mut count =
        |place: Option<NodeRef<'_>>, default| or_default(place.as_ref(), default, |p| p.number(1, 100, report));
    HealthCheck {
        probe: http.or(https).or(tcp).or(udp).unwrap_or(default.probe),
        interval: times.interval,
        fast_interval: times.fast_interval,
        timeout: times.timeout,
        rise: count(rise, DEFAULT.rise),
        fall: count(fall, DEFAULT.fall),
        proxy_header: header,
        h2c: false,
    }
}

/// Interval and timeout of checks.
struct Times {
    interval: Duration,
    fast_interval: Option<Duration>,
    timeout: Duration,
}

fn times(
    interval: Option<NodeRef<'_>>,
    fast_interval: Option<NodeRef<'_>>,
    timeout: Option<NodeRef<'_>>,
    report: &mut Report,
) -> Times {
    let interval = or_default(interval.as_ref(), DEFAULT.interval, |place| place.duration(report));
    let fast = fast_interval.and_then(|place| Some((place.duration(report)?, place)));
    if let Some((fast, place)) = &fast
        && *fast > interval
    {
        let (fast, interval) = (duration_text(*fast), duration_text(interval));
        place.error(
            report,
            format!("the fast interval ({fast}) must not exceed the interval ({interval}): change either"),
        );
    }
    let said = timeout.and_then(|place| Some((place.duration(report)?, place)));
    if let Some((timeout, place)) = &said {
        warn_about_timeout(*timeout, interval, place, report);
    }
    Times {
        interval,
        fast_interval: fast.map(|(fast, _)| fast),
        // A timeout beyond half of the interval would keep a hanging host in rotation for longer than the interval.
        timeout: said.map_or_else(|| DEFAULT.timeout.min(interval / 2), |(timeout, _)| timeout),
    }
}

fn warn_about_timeout(timeout: Duration, interval: Duration, place: &NodeRef<'_>, report: &mut Report) {
    let (said, whole) = (duration_text(timeout), duration_text(interval));
    if timeout > interval {
        place.error(
            report,
            format!("the timeout ({said}) must not exceed the interval ({whole}): change either"),
        );
    } else if timeout > interval / 2 {
        let late = duration_text(interval / 2 + timeout);
        place.warn(
            report,
            format!(
                "the timeout ({said}) is more than half of the interval ({whole}): a host that hangs may be noticed \
                 only after {late}; shorten the timeout to notice it within the interval"
            ),
        );
    }
}

fn tcp_probe(place: &NodeRef<'_>, report: &mut Report) -> Probe {
    let Some(mut map) = MapDecoder::open(place, report) else {
        return DEFAULT.probe;
    };
    let port = map.take("port");
    map.finish(report);
    Probe::Tcp {
        port: port.and_then(|place| place.port(report)),
    }
}

/// Decodes an HTTP check. `asking`: set for a check of applications, and filled with the page that endpoints are asked
/// for.
fn http_probe(place: &NodeRef<'_>, tls: bool, asking: Option<&mut HealthPageTemplate>, report: &mut Report) -> Probe {
    let Some(mut map) = MapDecoder::open(place, report) else {
        return DEFAULT.probe;
    };
    let port = map.take("port");
    let path = map.take("path");
    let host = map.take("host");
    let (sni, ca) = if tls {
        (map.take("sni"), map.take("ca"))
    } else {
        (None, None)
    };
    let known = map.finish(report);
    // A port with a mistake counts as given: hosts without their own port are no mistake then.
    let (wanted, port) = (port.is_some() || !known, port.and_then(|place| place.port(report)));
    let path = path.and_then(|place| url_path(&place, report));
    let of_applications = asking.is_some();
    let mut host = host.and_then(|place| host_header(&place, of_applications, report));
    let sni = sni.and_then(|place| server_name(&place, report));
    let ca = ca.and_then(|place| place.text(report)).map(PathBuf::from);
    if wanted && port.is_none() {
        return DEFAULT.probe;
    }
    if let Some(asking) = asking {
        *asking = HealthPageTemplate {
            path: path.clone(),
            host_header: host.take(),
            include_non_http: port.is_some(),
        };
    }
    Probe::Http(HttpProbe {
        port,
        path: path.unwrap_or_else(|| "/".to_owned()),
        host_header: host,
        tls: tls.then_some(TlsProbe { sni, ca }),
    })
}

fn url_path(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if HealthPage::is_valid_path(text) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.error(
        report,
        format!("{shown} is not a path to request: begin it with `/`, and write a space as %20"),
    );
    None
}

/// Decodes a Host header: a name or address, perhaps with a port. Nothing in it may end a line of the request.
fn host_header(place: &NodeRef<'_>, of_applications: bool, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let filled = |text: &str| {
        HealthPageTemplate::PLACEHOLDERS
            .iter()
            .fold(text.to_owned(), |text, one| text.replace(one, "a"))
    };
    let shape = if of_applications { filled(text) } else { text.to_owned() };
    let name = match shape.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && !name.ends_with(':') => name,
        _ => &shape,
    };
    let address = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .map(str::parse::<IpAddr>);
    if matches!(address, Some(Ok(IpAddr::V6(_)))) || Hostname::parse(name.as_bytes()).is_ok() {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    let places = if of_applications {
        format!("; {} are placeholders", HealthPageTemplate::PLACEHOLDERS.join(", "))
    } else {
        String::new()
    };
    place.error(
        report,
        format!("{shown} is not a Host header: a name such as app.example.com, perhaps with a port{places}"),
    );
    None
}

fn server_name(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let problem = match Hostname::parse(text.as_bytes()) {
        Ok(_) if text.parse::<IpAddr>().is_ok() => "in TLS a server name cannot be an address".to_owned(),
        Ok(name) => return Some(name.as_str().to_owned()),
        Err(error) => error.to_string(),
    };
    place.error(report, format!("{} is not a server name: {problem}", quote(text)));
    None
}
