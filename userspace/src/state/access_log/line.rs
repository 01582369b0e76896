//! A record as a line of JSON. docs/access-log.md describes the fields, which are a contract.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use signalbox_core::wire::hostname::Hostname;

use super::{ConnectionEnd, ConnectionRecord};

/// Version of the line's fields. It is raised when a field changes its meaning or is removed, not when one is added.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    /// Time in RFC 3339, UTC, with milliseconds.
    time: String,
    client: SocketAddr,
    local: SocketAddr,
    listener: Option<&'a str>,
    protocol: Option<&'static str>,
    name: Option<&'a str>,
    route: Option<&'a str>,
    cluster: Option<&'a str>,
    host: Option<&'a str>,
    backend: Option<SocketAddr>,
    tier: Option<&'static str>,
    bytes_in: u64,
    bytes_out: u64,
    duration_ms: f64,
    connect_ms: Option<f64>,
    end: &'static str,
    reason: Option<&'static str>,
    closed_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

/// Converts a time to milliseconds with a resolution of one microsecond.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

fn time(at_ms: u64) -> String {
    let at = i64::try_from(at_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(String::new, |at| at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string())
}

/// Appends the line of a record.
pub(super) fn append(buffer: &mut Vec<u8>, record: &ConnectionRecord) {
    let (end, reason) = match record.end {
        ConnectionEnd::Flow(end) => (end.label(), None),
        ConnectionEnd::Refused(why) => ("refused", Some(why)),
    };
    let (host, request) = (record.host.as_ref(), record.request.as_ref());
    let line = Line {
        version: VERSION,
        time: time(record.at_ms),
        client: record.client,
        local: record.local,
        listener: record.listener.as_ref().map(|listener| listener.name.as_str()),
        protocol: match request {
            Some(request) if request.is_tls => Some("https"),
            _ => record.protocol,
        },
        name: record.name.as_ref().map(Hostname::as_str),
        route: record.route.as_deref(),
        cluster: host.map(|(_, cluster)| cluster.name.as_str()),
        host: host.map(|(host, _)| host.name.as_str()),
        backend: record.backend,
        tier: record.tier.map(signalbox_core::model::Tier::as_str),
        bytes_in: record.bytes_in,
        bytes_out: record.bytes_out,
        duration_ms: milliseconds(record.duration),
        connect_ms: record.connect.map(milliseconds),
        end,
        reason,
        closed_by: record.closed_by,
        connection_id: record.connection_id.map(|id| id.to_string()),
        method: request.map(|request| request.method.as_str()),
        target: request.map(|request| request.target.as_str()),
        status: request.and_then(|request| request.status.get()),
        request_id: request.and_then(|request| request.id.as_deref()),
    };
    // Cannot fail: the line has only numbers and text, and is written to memory.
    if serde_json::to_writer(&mut *buffer, &line).is_ok() {
        buffer.push(b'\n');
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::Value;

    use super::*;

    pub(crate) fn record() -> ConnectionRecord {
        ConnectionRecord {
            at_ms: 1_795_351_604_007,
            client: "198.51.100.7:50000".parse().unwrap(),
            local: "[2001:db8::1]:443".parse().unwrap(),
            listener: None,
            protocol: Some("tls"),
            name: Hostname::parse(b"App.Test").ok(),
            route: Some("*.test".into()),
            host: None,
            backend: None,
            tier: None,
            bytes_in: 1,
            bytes_out: u64::MAX,
            duration: Duration::from_micros(1234),
            connect: None,
            connection_id: None,
            end: ConnectionEnd::Refused("no_host"),
            closed_by: None,
            request: None,
        }
    }

    #[test]
    fn a_record_is_one_line_of_json() {
        let mut buffer = Vec::new();
        append(&mut buffer, &record());
        append(&mut buffer, &record());
        let text = String::from_utf8(buffer).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        let line = &lines[0];
        assert_eq!(line["time"], "2026-11-22T12:46:44.007Z");
        assert_eq!(
            (&line["client"], &line["local"]),
            (&"198.51.100.7:50000".into(), &"[2001:db8::1]:443".into())
        );
        assert_eq!(
            (&line["name"], &line["end"], &line["reason"]),
            (&"app.test".into(), &"refused".into(), &"no_host".into())
        );
        assert_eq!(
            (&line["duration_ms"], &line["connect_ms"]),
            (&1.234.into(), &Value::Null)
        );
        assert_eq!(line["bytes_out"], u64::MAX);
    }
}
