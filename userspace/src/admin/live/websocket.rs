//! `GET /ws`: figures in the format that the prototype of the thesis pushes to its page (`{"mutation":"stats", ...}`),
//! so that this page works here. Each push has all stored points again.
//!
//! A browser lets any page open a WebSocket to any address, so the `Origin` must be one of this API's own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use signalbox_core::model::Model;
use signalbox_core::routing::health::Health;
use tokio::sync::broadcast::error::RecvError;

use super::super::connection_limit::ConnectionPermit;
use super::super::problem::problem;
use crate::control::Control;
use crate::state::HostState;
use crate::state::series::{HostFigures, MAX_SAMPLES, Sample};

/// Maximum interval of pushes in seconds.
const MAX_INTERVAL_SECS: usize = 60;
/// Maximum number of host points in one push, some 100 bytes each. With more hosts, each has fewer points.
const MAX_POINTS: usize = 24_000;
/// Maximum size of a viewer's message. All messages are ignored.
const MAX_MESSAGE_BYTES: usize = 4096;

#[derive(Deserialize)]
pub(in super::super) struct PushQuery {
    /// Seconds between two pushes; the prototype uses 2.
    interval: Option<usize>,
    /// Number of points in each push; the prototype uses 40.
    ticks: Option<usize>,
}

/// A push, with the prototype's names.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatsPush<'a> {
    mutation: &'static str,
    hosts: BTreeMap<String, PushedHost<'a>>,
    /// Labels of the points.
    ticks: Vec<String>,
    overall_connections: Vec<u32>,
    unhealthy_hosts: Vec<u32>,
    healthy_hosts: Vec<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PushedHost<'a> {
    cluster_key: &'a str,
    #[serde(rename = "hostIP")]
    host_ip: String,
    http_port: u16,
    https_port: u16,
    stats: Vec<PushedPoint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PushedPoint {
    healthy: bool,
    total_connections: u64,
    active_connections: u32,
    /// Connections refused since the previous point.
    refused_connections: u64,
}

pub(in super::super) async fn connect(
    State(control): State<Arc<Control>>,
    permit: Option<Extension<Arc<ConnectionPermit>>>,
    headers: HeaderMap,
    Query(query): Query<PushQuery>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if !is_own_origin(&headers, &control.shared.snapshot.load().model.admin.names) {
        control.shared.admin.refused.inc("foreign_origin");
        return problem(
            StatusCode::FORBIDDEN,
            "The page is not one of this API",
            "open the page by the name or address of this API, or add the name of the page's site to admin.names",
        );
    }
    let interval = query.interval.unwrap_or(1).clamp(1, MAX_INTERVAL_SECS);
    let ticks = query.ticks.unwrap_or(MAX_SAMPLES).clamp(1, MAX_SAMPLES);
    upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .on_upgrade(move |socket| async move {
            // The connection counts while it is open.
            let _permit = permit;
            push_to(socket, &control, interval, ticks).await;
        })
}

/// Whether the request comes from a page of this API, or from no page.
fn is_own_origin(headers: &HeaderMap, names: &[String]) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let Some(origin) = origin.as_ref().and_then(Uri::authority) else {
        return false;
    };
    let asked = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    asked.is_some_and(|asked| origin.as_str().eq_ignore_ascii_case(asked))
        || names.iter().any(|name| name.eq_ignore_ascii_case(origin.host()))
}

/// Pushes until the viewer disconnects.
async fn push_to(mut socket: WebSocket, control: &Control, interval: usize, ticks: usize) {
    let series = &control.shared.series;
    let (_, mut coming) = series.subscribe();
    let mut kept: VecDeque<Arc<Sample>> = every_nth(&series.last(MAX_SAMPLES), interval).into();
    let mut until_push = 0;
    loop {
        if until_push == 0 {
            let text = {
                let model = Arc::clone(&control.shared.snapshot.load().model);
                serde_json::to_string(&stats(kept.make_contiguous(), &model, ticks))
            };
            let Ok(text) = text else { return };
            if socket.send(Message::Text(text.into())).await.is_err() {
                return;
            }
            until_push = interval;
        }
        tokio::select! {
            said = socket.recv() => match said {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                // The library answers pings; all other messages are ignored.
                Some(Ok(_)) => {}
            },
            sample = coming.recv() => match sample {
                Ok(sample) => {
                    until_push -= 1;
                    if until_push == 0 {
                        kept.push_back(sample);
                        while kept.len() > MAX_SAMPLES {
                            kept.pop_front();
                        }
                    }
                }
                // A slow viewer misses points.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
        }
    }
}

/// Every `interval`th sample, including the last one.
fn every_nth(samples: &[Arc<Sample>], interval: usize) -> Vec<Arc<Sample>> {
    let mut chosen: Vec<_> = samples.iter().rev().step_by(interval).cloned().collect();
    chosen.reverse();
    chosen
}

/// Makes a push of the last `ticks` samples. Points before the first sample are zero.
fn stats<'a>(samples: &'a [Arc<Sample>], model: &Model, ticks: usize) -> StatsPush<'a> {
    let hosts: &[Arc<HostState>] = samples.last().map(|last| &last.hosts[..]).unwrap_or_default();
    let ticks = ticks.min(MAX_POINTS / hosts.len().max(1)).max(1);
    let first = samples.len().saturating_sub(ticks);
    let shown = &samples[first..];
    let missing = ticks - shown.len();
    let padded = |of: fn(&Sample) -> u32| -> Vec<u32> {
        let values = shown.iter().map(|sample| of(sample));
        std::iter::repeat_n(0, missing).chain(values).collect()
    };
    let labels = shown.iter().map(|sample| clock(sample.at_ms));
    let mut named: BTreeMap<String, PushedHost<'a>> = BTreeMap::new();
    for host in hosts {
        let mut points = vec![PushedPoint::default(); missing];
        points.extend((first..samples.len()).map(|at| point(samples, at, host)));
        let pushed = PushedHost {
            cluster_key: &host.cluster,
            host_ip: host.address.to_string(),
            http_port: port(model, host, |host| host.http),
            https_port: port(model, host, |host| host.https),
            stats: points,
        };
        // The prototype knows hosts by name only; here two clusters may have a host of the same name.
        let name = if named.contains_key(&host.name) {
            format!("{}/{}", host.cluster, host.name)
        } else {
            host.name.clone()
        };
        named.insert(name, pushed);
    }
    StatsPush {
        mutation: "stats",
        hosts: named,
        ticks: std::iter::repeat_n(String::new(), missing).chain(labels).collect(),
        overall_connections: padded(|sample| sample.overall.active),
        unhealthy_hosts: padded(|sample| sample.overall.unhealthy_hosts),
        healthy_hosts: padded(|sample| sample.overall.usable_hosts),
    }
}

fn point(samples: &[Arc<Sample>], at: usize, host: &Arc<HostState>) -> PushedPoint {
    let Some(now) = figures_at(samples, at, host) else {
        return PushedPoint::default();
    };
    let before = at.checked_sub(1).and_then(|before| figures_at(samples, before, host));
    PushedPoint {
        healthy: now.health == Health::Healthy,
        total_connections: now.total,
        active_connections: now.active,
        refused_connections: before.map_or(0, |before| now.refused.saturating_sub(before.refused)),
    }
}

fn figures_at<'a>(samples: &'a [Arc<Sample>], at: usize, host: &Arc<HostState>) -> Option<&'a HostFigures> {
    let sample = samples.get(at)?;
    let place = sample.hosts.iter().position(|known| Arc::ptr_eq(known, host))?;
    sample.figures.get(place)
}

/// Port of a host in the configuration; 0 if it has none.
fn port(model: &Model, host: &HostState, of: fn(&signalbox_core::model::Host) -> Option<u16>) -> u16 {
    let cluster = model.clusters.iter().find(|cluster| cluster.name == host.cluster);
    let known = cluster.and_then(|cluster| cluster.hosts.iter().find(|known| known.name == host.name));
    known.and_then(of).unwrap_or(0)
}

/// Time of day in UTC.
fn clock(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::state::series::{Series, tests::with_hosts};

    #[test]
    fn a_push_is_what_the_prototypes_page_reads() {
        let shared = with_hosts();
        let series = Series::default();
        series.sample(&shared);
        let hosts = shared.snapshot.load().hosts[0].clone();
        hosts[1].total.inc();
        hosts[1].active.enter();
        hosts[1].refused.add(3);
        hosts[0].set_health(Health::Healthy);
        series.sample(&shared);
        let samples = series.last(MAX_SAMPLES);
        let model = Arc::clone(&shared.snapshot.load().model);
        let push = serde_json::to_value(stats(&samples, &model, 4)).unwrap();
        assert_eq!(push["mutation"], "stats");
        assert_eq!(push["ticks"].as_array().unwrap().len(), 4);
        assert_eq!(push["ticks"][1], "");
        for list in ["overallConnections", "unhealthyHosts", "healthyHosts"] {
            assert_eq!(push[list].as_array().unwrap().len(), 4, "{list}");
        }
        let host = &push["hosts"]["east-2"];
        assert_eq!(
            (
                &host["clusterKey"],
                &host["hostIP"],
                &host["httpPort"],
                &host["httpsPort"]
            ),
            (&json!("east"), &json!("127.0.0.2"), &json!(0), &json!(0))
        );
        let nothing =
            json!({ "healthy": false, "totalConnections": 0, "activeConnections": 0, "refusedConnections": 0 });
        let last = json!({ "healthy": false, "totalConnections": 1, "activeConnections": 1, "refusedConnections": 3 });
        assert_eq!(host["stats"], json!([nothing, nothing, nothing, last]));
        assert_eq!(push["hosts"]["east-1"]["stats"][3]["healthy"], true);
    }

    #[test]
    fn intervals_keep_the_last_sample() {
        let shared = with_hosts();
        let series = Series::default();
        for _ in 0..7 {
            series.sample(&shared);
        }
        let all = series.last(MAX_SAMPLES);
        let chosen = every_nth(&all, 3);
        assert_eq!(chosen.len(), 3);
        assert!(Arc::ptr_eq(&chosen[0], &all[0]) && Arc::ptr_eq(&chosen[2], &all[6]));
        assert_eq!(clock(86_400_000 + 3_661_000), "01:01:01");
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let asks = |origin: Option<&str>, host: &str| {
            let mut headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            is_own_origin(&headers, &["page.example.com".to_owned()])
        };
        assert!(asks(None, "127.0.0.1:8089"), "no page");
        assert!(asks(Some("http://127.0.0.1:8089"), "127.0.0.1:8089"));
        assert!(asks(Some("https://page.example.com:8443"), "127.0.0.1:8089"));
        for foreign in [
            "http://evil.example",
            "http://127.0.0.1:8080",
            "null",
            "file://",
            "http://page.example.com.evil",
        ] {
            assert!(!asks(Some(foreign), "127.0.0.1:8089"), "{foreign}");
        }
    }
}
