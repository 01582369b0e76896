//! The tables of the panes.

use serde_json::{Value, json};
use signalbox_core::migration::{Migration, MigrationState};

use super::data::{TopData, Topic};
use super::grid::{Grid, GridCell, GridRow, Look};
use super::history::{Figure, HostSeries};
use super::keys::Pane;
use super::text::{bytes, field, list, number, percent, short};
use crate::cli::{migrate, services, show};

/// Makes the table of a pane; `None` for the overview.
pub(super) fn grid(pane: Pane, data: &TopData) -> Option<Grid> {
    Some(match pane {
        Pane::Overview => return None,
        Pane::Hosts => hosts(data),
        Pane::Routes => routes(data),
        Pane::Flows => flows(data),
        Pane::Services => service_rows(data),
        Pane::Shield => shield(data),
        Pane::Ha => ha(data),
        Pane::Events => events(data),
    })
}

fn count(value: f64) -> GridCell {
    GridCell::number(value, short(value))
}

/// State of a host, from its last sample and from the API.
pub(super) fn host_state(host: &HostSeries, view: Option<&Value>) -> (Look, String) {
    let is = |key: &str| view.is_some_and(|view| view[key] == true);
    let has = |key: &str| view.is_some_and(|view| view[key].is_string());
    let health = match host.last(Figure::Health) as u8 {
        1 => (Look::Good, "healthy"),
        2 => (Look::Bad, "unhealthy"),
        _ => (Look::Idle, "unknown"),
    };
    if is("draining") {
        return (Look::Warn, "draining".to_owned());
    }
    let (mut look, mut state) = match health {
        _ if view.is_some_and(|view| view["health"] == "unresolved") => (Look::Bad, "unresolved".to_owned()),
        (_, health) if has("out_of_rotation") => (Look::Warn, format!("{health}, out of rotation")),
        _ if is("ejected") => (Look::Bad, "ejected".to_owned()),
        (look, health) => (look, health.to_owned()),
    };
    if is("backup") {
        state.push_str(", backup");
    }
    if has("not_resolved") && !state.starts_with("unresolved") {
        state.push_str(", name not resolved");
        if look != Look::Bad {
            look = Look::Warn;
        }
    }
    (look, state)
}

fn hosts(data: &TopData) -> Grid {
    let row = |host: &HostSeries| {
        let view = data.host_view(&host.key());
        let (look, state) = host_state(host, view);
        let rate = |figure| data.history.rate_now(host, figure);
        let traffic = rate(Figure::BytesIn) + rate(Figure::BytesOut);
        let weight = view.and_then(|view| view["weight"].as_f64());
        let check = view.and_then(|view| view["last_check"]["detail"].as_str());
        GridRow {
            id: host.key(),
            cells: vec![
                GridCell::text(format!("{}/{}", host.cluster, host.name)),
                GridCell::state(look, &state),
                count(host.last(Figure::Active)),
                count(rate(Figure::Total)),
                count(rate(Figure::Refused)),
                GridCell::number(traffic, bytes(traffic)),
                count(host.last(Figure::Total)),
                weight.map_or_else(|| GridCell::text("-"), count),
                GridCell::text(check.unwrap_or("-")),
            ],
        }
    };
    let left_out = data.history.left_out_hosts;
    let note = (left_out > 0.0).then(|| format!("{left_out} more hosts are not sampled"));
    Grid {
        headings: vec![
            "HOST",
            "STATE",
            "ACTIVE",
            "NEW/S",
            "REFUSED/S",
            "BYTES/S",
            "TOTAL",
            "WEIGHT",
            "LAST CHECK",
        ],
        rows: data
            .history
            .hosts
            .iter()
            .map(row)
            .chain(data.unresolved().map(|host| row(&host)))
            .collect(),
        empty: "There is no host.",
        notes: note.into_iter().collect(),
    }
}

/// A cluster of a route: its share by weight, and its share of the last minute's connections.
pub(super) struct ClusterShare {
    pub(super) cluster: String,
    pub(super) weight: f64,
    pub(super) all_weights: f64,
    pub(super) connections: f64,
    pub(super) all_connections: f64,
    pub(super) has_host: bool,
}

/// Returns the clusters of a route, which is in the form of `/api/v1/routes`.
pub(super) fn shares(data: &TopData, route: &Value) -> Vec<ClusterShare> {
    let clusters = list(route, "clusters");
    let connections = |cluster: &Value| data.shares.connections(field(route, "host"), field(cluster, "name"));
    let all_weights = clusters.iter().map(|cluster| number(cluster, "weight")).sum();
    let all_connections = clusters.iter().map(connections).sum();
    clusters
        .iter()
        .map(|cluster| ClusterShare {
            cluster: field(cluster, "name").to_owned(),
            weight: number(cluster, "weight"),
            all_weights,
            connections: connections(cluster),
            all_connections,
            has_host: number(cluster, "usable_hosts") > 0.0,
        })
        .collect()
}

fn routes(data: &TopData) -> Grid {
    let row = |route: &Value| {
        let shares = shares(data, route);
        let shown = shares.iter().map(|share| {
            let weight = percent(share.weight, share.all_weights);
            let actual = percent(share.connections, share.all_connections);
            format!("{} {weight} ({actual})", share.cluster)
        });
        let total = number(route, "total_connections");
        GridRow {
            id: field(route, "host").to_owned(),
            cells: vec![
                GridCell::text(field(route, "host")),
                count(number(route, "active_connections")),
                count(total),
                GridCell::text(shown.collect::<Vec<_>>().join("  ")),
            ],
        }
    };
    let answer = data.answer(Topic::Routes);
    Grid {
        headings: vec!["ROUTE", "ACTIVE", "TOTAL", "WEIGHTS (SHARES OF THE LAST MINUTE)"],
        rows: list(answer, "routes").iter().map(row).collect(),
        empty: "There is no route.",
        notes: migrations(data.answer(Topic::Migrations)),
    }
}

/// Lines about the running migrations, or about the last one if none is running.
fn migrations(answer: &Value) -> Vec<String> {
    let all = list(answer, "migrations").iter().cloned();
    let mut all: Vec<Migration> = all.filter_map(|one| serde_json::from_value(one).ok()).collect();
    all.sort_unstable_by_key(|migration| (migration.state.is_ended(), std::cmp::Reverse(migration.id)));
    let running = all.iter().filter(|migration| !migration.state.is_ended()).count();
    all.truncate(running.max(1));
    let line = |migration: &Migration| {
        let has_failed = matches!(
            migration.state,
            MigrationState::RollingBack | MigrationState::RolledBack
        );
        let mark = if has_failed { "! " } else { "" };
        format!(
            "{mark}migration {}: {}",
            migrate::title(migration),
            migrate::describe(migration)
        )
    };
    all.iter().map(line).collect()
}

/// Makes a table of the fields that the command of the same name shows.
fn as_shown(what: &str, rows: &[Value], empty: &'static str) -> Grid {
    let row = |(at, row): (usize, &Value)| {
        let cells: Vec<_> = show::fields(what, row)
            .map(|field| GridCell {
                number: field.value.as_f64(),
                text: field.text,
                look: None,
            })
            .collect();
        let id = row["id"].as_u64().or_else(|| row["id"].is_null().then_some(at as u64));
        let name = cells.first().map_or("", |cell| cell.text.as_str());
        GridRow {
            id: format!("{name} {}", id.unwrap_or_default()),
            cells,
        }
    };
    Grid {
        headings: show::fields(what, &Value::Null).map(|field| field.title).collect(),
        rows: rows.iter().enumerate().map(row).collect(),
        empty,
        notes: Vec::new(),
    }
}

fn flows(data: &TopData) -> Grid {
    let answer = data.answer(Topic::Flows);
    let rows = list(answer, "flows");
    let mut grid = as_shown("flows", rows, "There is no flow now.");
    let total = number(answer, "total");
    if total > rows.len() as f64 {
        grid.notes.push(format!(
            "the first {} of {total} flows; `signalbox flows` shows more",
            rows.len()
        ));
    }
    grid
}

fn service_rows(data: &TopData) -> Grid {
    let answer = data.answer(Topic::Services);
    let mut lines = services::lines(answer);
    let (mut service, mut protocol) = (String::new(), Value::Null);
    for line in &mut lines {
        match field(line, "name").strip_prefix("  ") {
            // The lines of hosts stay next to their service's when sorted by name.
            Some(host) => {
                line["name"] = json!(format!("{service} › {host}"));
                line["protocol"] = protocol.clone();
            }
            None => {
                field(line, "name").clone_into(&mut service);
                protocol = line["protocol"].clone();
            }
        }
    }
    let mut grid = as_shown("services", &lines, "There is no layer-4 service.");
    if !answer.is_null() {
        grid.notes = services::footnotes(answer);
    }
    grid
}

fn shield(data: &TopData) -> Grid {
    let answer = data.answer(Topic::Shield);
    let mut grid = as_shown(
        "guards",
        list(answer, "guards"),
        "Nothing is shielded: add `shield: {}` to a listener or service.",
    );
    let troubles = list(answer, "troubles").iter().filter_map(Value::as_str);
    grid.notes.extend(troubles.map(|trouble| format!("! {trouble}")));
    let drops = list(data.answer(Topic::Drops), "drops").iter().rev();
    grid.notes.extend(drops.map(|drop| {
        let of = |key| field(drop, key);
        format!(
            "dropped by {}: {} {} -> {}, {}",
            of("guard"),
            of("protocol"),
            of("source"),
            of("destination"),
            of("reason")
        )
    }));
    grid
}

fn ha(data: &TopData) -> Grid {
    let answer = data.answer(Topic::Ha);
    let mut grid = as_shown(
        "ha_groups",
        list(answer, "groups"),
        "This balancer shares no addresses with others.",
    );
    for (row, group) in grid.rows.iter_mut().zip(list(answer, "groups")) {
        let look = match field(group, "state") {
            "master" => Look::Good,
            "backup" => Look::Idle,
            "fault" => Look::Bad,
            _ => Look::Warn,
        };
        if let Some(cell) = row.cells.get_mut(1) {
            *cell = GridCell::state(look, &cell.text);
        }
    }
    if answer["configured"] == true {
        grid.notes.push(format!(
            "{} on {}, mode {}",
            field(answer, "name"),
            field(answer, "node"),
            field(answer, "mode")
        ));
        if answer["supervised"] == false && field(answer, "mode") != "external" {
            grid.notes
                .push("! no `signalbox ha run` is connected: this node has no addresses".into());
        }
        grid.notes.extend(list(&answer["sync"], "peers").iter().map(peer_line));
    }
    grid
}

/// Says to what extent another node has this node's flows.
fn peer_line(peer: &Value) -> String {
    let node = field(peer, "node");
    let sent = if peer["sending"] == true {
        format!("{} ms behind", number(peer, "behind_ms"))
    } else {
        format!(
            "gets no flows: {}",
            peer["send_error"].as_str().unwrap_or("it is not connected")
        )
    };
    let (mark, state) = match (peer["sending"] == true, peer["complete"] == true) {
        (true, true) => ("", "all of its flows are here"),
        (true, false) => ("", "not all of its flows are here"),
        (false, _) => ("! ", "none of its flows arrive"),
    };
    format!("{mark}{node}: {sent}; {state}, {} shadows", number(peer, "shadows"))
}

/// Fields of an event by name, the explanation last. Text that is not JSON stays unchanged.
fn event_text(data: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(data) else {
        return data.to_owned();
    };
    let of = |(name, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{} {value}", name.replace('_', " "))
    };
    let is_last = |field: &(&String, &Value)| ["detail", "reason", "error"].contains(&field.0.as_str());
    let first = fields.iter().filter(|field| !is_last(field));
    let text: Vec<_> = first.chain(fields.iter().filter(is_last)).map(of).collect();
    text.join(", ")
}

fn events(data: &TopData) -> Grid {
    let rows = data.events.iter().map(|event| GridRow {
        id: format!("{} {} {}", event.at, event.kind, event.data),
        cells: vec![
            GridCell::text(&event.at),
            GridCell::text(&event.kind),
            GridCell::text(event_text(&event.data)),
        ],
    });
    Grid {
        headings: vec!["TIME", "KIND", "WHAT"],
        rows: rows.collect(),
        empty: "Nothing has changed since the start of this view.",
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use signalbox_core::migration::guard::GuardLimits;

    use super::*;
    use crate::cli::top::data::Update;

    #[test]
    fn migrations_that_go_on_are_shown_or_else_the_last_one() {
        let plan = json!({ "from": "v1", "to": "v2", "steps": [5, 100], "hold_ms": 60_000, "testers": [],
            "limits": GuardLimits::default() });
        let one = |id: u64, state: &str| {
            json!({ "id": id, "plan": plan, "names": { "a.test": null }, "by": "anna", "state": state, "reason": "",
                "step": 0, "started": 1, "ended": null, "steps": [] })
        };
        let lines = |all: &[Value]| migrations(&json!({ "migrations": all }));
        let ended = [one(1, "completed"), one(2, "rolled_back")];
        assert_eq!(lines(&ended), ["! migration 2: 1 name from v1 to v2: rolled back, 5 %"]);
        let all = [
            one(1, "completed"),
            one(2, "rolled_back"),
            one(3, "paused"),
            one(4, "running"),
        ];
        assert_eq!(lines(&all).len(), 2, "{:?}", lines(&all));
        assert!(lines(&all)[0].starts_with("migration 4:"), "{:?}", lines(&all));
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn backups_and_names_that_are_not_resolved_are_shown() {
        let host = |name: &str, more: &Value| {
            let mut view = json!({ "cluster": "east", "name": name, "address": name, "health": "unknown" });
            for (key, value) in more.as_object().unwrap() {
                view[key] = value.clone();
            }
            view
        };
        let views = [
            host("a", &json!({ "backup": true })),
            host(
                "b",
                &json!({ "not_resolved": "no answer", "out_of_rotation": "host:east/b" }),
            ),
            host(
                "c",
                &json!({ "not_resolved": "no answer", "health": "unresolved", "backup": true }),
            ),
        ];
        let mut data = TopData::default();
        data.history
            .load(&json!({ "at": [1000], "overall": [{}], "hosts": views[..2] }));
        let answer = json!({ "hosts": views });
        data.take(Update::Answer(Topic::Hosts, answer), std::time::Instant::now());
        let rows = hosts(&data).rows;
        let shown: Vec<_> = rows.iter().map(|row| row.cells[1].text.as_str()).collect();
        assert_eq!(rows.len(), 3);
        for (text, wanted) in shown.iter().zip([
            "unknown, backup",
            "unknown, out of rotation, name not resolved",
            "unresolved, backup",
        ]) {
            assert!(text.ends_with(wanted), "{text}");
        }
    }

    #[test]
    fn an_event_is_read_as_text() {
        let health = r#"{"cluster":"east","detail":"HTTP 503","healthy":false,"host":"east-1"}"#;
        assert_eq!(
            event_text(health),
            "cluster east, healthy false, host east-1, detail HTTP 503"
        );
        assert_eq!(
            event_text(r#"{"taken_out":["a"],"reason":null}"#),
            r#"taken out ["a"], reason null"#
        );
        assert_eq!(event_text("12"), "12");
    }
}
