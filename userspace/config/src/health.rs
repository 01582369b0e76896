//! How a cluster's hosts are checked.

use std::net::IpAddr;
use std::path::PathBuf;

use signalbox_core::model::{ApplicationSettings, CheckHeader, HealthCheck, HttpProbe, Page, Probe, TlsProbe};
use signalbox_core::name::HostName;
use signalbox_core::spi::Asking;

use super::map::Map;
use super::node::Place;
use super::report::{Report, quote};
use super::scalar::{optional, show};

const DEFAULT: HealthCheck = HealthCheck::DEFAULT;

/// The check of a cluster; with the default standing in for mistakes. `sends`: connections to its hosts begin with a
/// PROXY header.
pub(super) fn check(place: Option<&Place<'_>>, sends: bool, report: &mut Report) -> HealthCheck {
    of(place, DEFAULT, sends, None, report)
}

/// The check of applications' endpoints, and what their pages are.
pub(super) fn of_applications(place: Option<&Place<'_>>, sends: bool, report: &mut Report) -> (HealthCheck, Asking) {
    let mut asking = Asking::default();
    let check = of(place, ApplicationSettings::HEALTH, sends, Some(&mut asking), report);
    (check, asking)
}

fn of(
    place: Option<&Place<'_>>,
    default: HealthCheck,
    sends: bool,
    mut asking: Option<&mut Asking>,
    report: &mut Report,
) -> HealthCheck {
    let by_cluster = if sends {
        CheckHeader::HostPorts
    } else {
        CheckHeader::Never
    };
    let unsaid = HealthCheck {
        header: by_cluster,
        ..default.clone()
    };
    let Some(place) = place else { return unsaid };
    let Some(mut map) = Map::open(place, report) else {
        return unsaid;
    };
    let http = map.take("http");
    let https = map.take("https");
    let tcp = map.take("tcp");
    let interval_at = map.take("interval");
    let timeout_at = map.take("timeout");
    let rise = map.take("rise");
    let fall = map.take("fall");
    let header = map.take("proxy_protocol");
    map.finish(report);

    if [&http, &https, &tcp].into_iter().flatten().count() > 1 {
        place.fault(
            report,
            "a health check is at most one of `http`, `https` and `tcp`; there is more than one: leave one",
        );
    }
    let words = [("v2", CheckHeader::Always), ("none", CheckHeader::Never)];
    let header = optional(header.as_ref(), by_cluster, |place| {
        place.word("a version of the PROXY protocol", &words, report)
    });
    let http = http.map(|place| http_probe(&place, false, asking.as_deref_mut(), report));
    let https = https.map(|place| http_probe(&place, true, asking, report));
    let tcp = tcp.map(|place| tcp_probe(&place, report));
    let mut time = |place: &Option<Place<'_>>, default| optional(place.as_ref(), default, |p| p.duration(report));
    let interval = time(&interval_at, DEFAULT.interval);
    // A check that hangs must have failed before the next one is due.
    let timeout = time(&timeout_at, DEFAULT.timeout.min(interval));
    if timeout > interval
        && let Some(at) = timeout_at
    {
        let (timeout, interval) = (show(timeout), show(interval));
        at.fault(
            report,
            format!("the timeout ({timeout}) must not exceed the interval ({interval}): change either"),
        );
    }
    let mut count = |place: Option<Place<'_>>, default| optional(place.as_ref(), default, |p| p.number(1, 100, report));
    HealthCheck {
        probe: http.or(https).or(tcp).unwrap_or(default.probe),
        interval,
        timeout,
        rise: count(rise, DEFAULT.rise),
        fall: count(fall, DEFAULT.fall),
        header,
    }
}

fn tcp_probe(place: &Place<'_>, report: &mut Report) -> Probe {
    let Some(mut map) = Map::open(place, report) else {
        return DEFAULT.probe;
    };
    let port = map.take("port");
    map.finish(report);
    Probe::Tcp {
        port: port.and_then(|place| place.port(report)),
    }
}

/// `asking`: it is of applications, and says what endpoints are asked for.
fn http_probe(place: &Place<'_>, tls: bool, asking: Option<&mut Asking>, report: &mut Report) -> Probe {
    let Some(mut map) = Map::open(place, report) else {
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
    // A port with a mistake is a port: hosts without one of their own are no mistake then.
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
        *asking = Asking {
            path: path.clone(),
            host: host.take(),
            all: port.is_some(),
        };
    }
    Probe::Http(HttpProbe {
        port,
        path: path.unwrap_or_else(|| "/".to_owned()),
        host,
        tls: tls.then_some(TlsProbe { sni, ca }),
    })
}

fn url_path(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if Page::is_path(text) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.fault(
        report,
        format!("{shown} is not a path to ask for: it starts with `/` and has no spaces (%20)"),
    );
    None
}

/// A name or address, perhaps with a port: what goes into the request as it stands, so nothing that could end a line.
fn host_header(place: &Place<'_>, of_applications: bool, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let filled = |text: &str| {
        Asking::PLACEHOLDERS
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
    if matches!(address, Some(Ok(IpAddr::V6(_)))) || HostName::parse(name.as_bytes()).is_ok() {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    let places = if of_applications {
        format!("; {} stand for themselves", Asking::PLACEHOLDERS.join(", "))
    } else {
        String::new()
    };
    place.fault(
        report,
        format!("{shown} is not a Host header: a name such as app.example.com, perhaps with a port{places}"),
    );
    None
}

fn server_name(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let problem = match HostName::parse(text.as_bytes()) {
        Ok(_) if text.parse::<IpAddr>().is_ok() => "TLS sends no addresses as server names".to_owned(),
        Ok(name) => return Some(name.as_str().to_owned()),
        Err(error) => error.to_string(),
    };
    place.fault(report, format!("{} is not a server name: {problem}", quote(text)));
    None
}
