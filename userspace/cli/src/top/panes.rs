//! The tables of the panes.

use serde_json::Value;
use signalbox_api::flows::FlowsAnswer;
use signalbox_api::ha::PeerView;
use signalbox_api::hosts::{HostHealth, HostStanding, HostStatus};
use signalbox_api::live::sampled_health;
use signalbox_api::routing::{RouteCluster, RouteView};
use signalbox_core::availability::ha::notice::GroupState;
use signalbox_core::availability::migration::{Migration, MigrationState};

use super::data::TopData;
use super::grid::{Grid, GridCell, GridRow, Look};
use super::history::{Figure, HostSeries};
use super::keys::Pane;
use super::text::{bytes, percent, short};
use crate::show::TableRow;
use crate::{migrate, services};

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
pub(super) fn host_state(host: &HostSeries, view: Option<&HostStatus>) -> (Look, String) {
    let unknown = HostStatus::default();
    let view = view.unwrap_or(&unknown);
    let health = match view.health {
        HostHealth::Unresolved => HostHealth::Unresolved,
        _ => sampled_health(host.last(Figure::Health)),
    };
    let look = match view.standing(health) {
        HostStanding::Unhealthy | HostStanding::Unresolved | HostStanding::Ejected | HostStanding::OwnListener => {
            Look::Bad
        }
        HostStanding::OutOfRotation | HostStanding::Draining => Look::Warn,
        _ if view.not_resolved.is_some() => Look::Warn,
        HostStanding::Healthy => Look::Good,
        HostStanding::Unknown => Look::Idle,
    };
    (look, view.state_text(health))
}

fn hosts(data: &TopData) -> Grid {
    let row = |host: &HostSeries| {
        let view = data.host_view(&host.key());
        let (look, state) = host_state(host, view);
        let rate = |figure| data.history.rate_now(host, figure);
        let traffic = rate(Figure::BytesIn) + rate(Figure::BytesOut);
        let weight = view.and_then(|view| view.weight);
        let check = view.and_then(|view| view.last_check.as_ref());
        GridRow {
            id: host.key(),
            cells: vec![
                GridCell::text(host.name()),
                GridCell::state(look, &state),
                count(host.last(Figure::Active) as f64),
                count(rate(Figure::Total)),
                count(rate(Figure::Refused)),
                GridCell::number(traffic, bytes(traffic)),
                count(host.last(Figure::Total) as f64),
                weight.map_or_else(|| GridCell::text("-"), |weight| count(weight.into())),
                GridCell::text(check.map_or("-", |check| &check.detail)),
            ],
        }
    };
    let left_out = data.history.left_out_hosts;
    let note = (left_out > 0).then(|| format!("{left_out} more hosts are not sampled"));
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

/// Returns the clusters of a route.
pub(super) fn shares(data: &TopData, route: &RouteView) -> Vec<ClusterShare> {
    let clusters = &route.clusters;
    let connections = |cluster: &RouteCluster| data.shares.connections(&route.host, &cluster.name);
    let all_weights = clusters.iter().map(|cluster| f64::from(cluster.weight)).sum();
    let all_connections = clusters.iter().map(connections).sum();
    let share = |cluster: &RouteCluster| ClusterShare {
        cluster: cluster.name.clone(),
        weight: cluster.weight.into(),
        all_weights,
        connections: connections(cluster),
        all_connections,
        has_host: cluster.usable_hosts > 0,
    };
    clusters.iter().map(share).collect()
}

fn routes(data: &TopData) -> Grid {
    let row = |route: &RouteView| {
        let shares = shares(data, route);
        let shown = shares.iter().map(|share| {
            let weight = percent(share.weight, share.all_weights);
            let actual = percent(share.connections, share.all_connections);
            format!("{} {weight} ({actual})", share.cluster)
        });
        GridRow {
            id: route.host.clone(),
            cells: vec![
                GridCell::text(&route.host),
                count(route.active_connections as f64),
                count(route.total_connections as f64),
                GridCell::text(shown.collect::<Vec<_>>().join("  ")),
            ],
        }
    };
    Grid {
        headings: vec!["ROUTE", "ACTIVE", "TOTAL", "WEIGHTS (SHARES OF THE LAST MINUTE)"],
        rows: data.answers.routes.routes.iter().map(row).collect(),
        empty: "There is no route.",
        notes: migrations(&data.answers.migrations.migrations),
    }
}

/// Lines about the running migrations, or about the last one if none is running.
fn migrations(all: &[Migration]) -> Vec<String> {
    let mut all: Vec<_> = all.iter().collect();
    all.sort_unstable_by_key(|migration| (migration.state.is_ended(), std::cmp::Reverse(migration.id)));
    let running = all.iter().filter(|migration| !migration.state.is_ended()).count();
    all.truncate(running.max(1));
    let line = |migration: &&Migration| {
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

/// Makes a table of the columns that the command of the same name shows. `id` identifies a row among those with the same
/// first cell.
fn as_shown<R: TableRow>(rows: &[R], empty: &'static str, id: impl Fn(usize, &R) -> u64) -> Grid {
    let row = |(at, row): (usize, &R)| {
        let cells = R::COLUMNS.iter().map(|(_, cell)| cell(row));
        let cells: Vec<_> = cells
            .map(|cell| GridCell {
                number: cell.number,
                text: cell.text,
                look: None,
            })
            .collect();
        let name = cells.first().map_or("", |cell| cell.text.as_str());
        GridRow {
            id: format!("{name} {}", id(at, row)),
            cells,
        }
    };
    Grid {
        headings: R::COLUMNS.iter().map(|(title, _)| *title).collect(),
        rows: rows.iter().enumerate().map(row).collect(),
        empty,
        notes: Vec::new(),
    }
}

fn by_place<R>(at: usize, _: &R) -> u64 {
    at as u64
}

fn flows(data: &TopData) -> Grid {
    let FlowsAnswer { flows, total } = &data.answers.flows;
    let mut grid = as_shown(flows, "There is no flow now.", |_, flow| flow.id);
    if *total > flows.len() {
        let shown = flows.len();
        grid.notes.push(format!(
            "the first {shown} of {total} flows; `signalbox flows` shows more"
        ));
    }
    grid
}

fn service_rows(data: &TopData) -> Grid {
    let answer = &data.answers.services;
    let mut lines = services::lines(answer);
    let (mut service, mut protocol) = (String::new(), None);
    for line in &mut lines {
        if line.is_host {
            // The lines of hosts stay next to their service's when sorted by name.
            line.name = format!("{service} › {}", line.name);
            line.protocol.clone_from(&protocol);
            line.is_host = false;
        } else {
            service.clone_from(&line.name);
            protocol.clone_from(&line.protocol);
        }
    }
    let mut grid = as_shown(&lines, "There is no layer-4 service.", by_place);
    grid.notes = services::footnotes(answer);
    grid
}

fn shield(data: &TopData) -> Grid {
    let answer = &data.answers.shield;
    let mut grid = as_shown(
        &answer.guards,
        "Nothing is shielded: add `shield: {}` to a listener or service.",
        by_place,
    );
    let troubles = answer.troubles.iter();
    grid.notes.extend(troubles.map(|trouble| format!("! {trouble}")));
    let drops = data.answers.drops.drops.iter().rev();
    grid.notes.extend(drops.map(|drop| {
        format!(
            "dropped by {}: {} {} -> {}, {}",
            drop.guard, drop.protocol, drop.source, drop.destination, drop.reason
        )
    }));
    grid
}

fn ha(data: &TopData) -> Grid {
    let answer = &data.answers.ha;
    let mut grid = as_shown(
        &answer.groups,
        "This balancer shares no addresses with others.",
        by_place,
    );
    for (row, group) in grid.rows.iter_mut().zip(&answer.groups) {
        let look = match group.state {
            Some(GroupState::Master) => Look::Good,
            Some(GroupState::Backup) => Look::Idle,
            Some(GroupState::Fault) => Look::Bad,
            None => Look::Warn,
        };
        if let Some(cell) = row.cells.get_mut(1) {
            *cell = GridCell::state(look, &cell.text);
        }
    }
    if let Some(node) = &answer.node {
        grid.notes
            .push(format!("{} on {}, mode {}", node.name, node.node, node.mode));
        if node.lacks_supervisor() {
            grid.notes
                .push("! no `signalbox ha run` is connected: this node has no addresses".into());
        }
        let peers = node.sync.iter().flat_map(|sync| &sync.peers);
        grid.notes.extend(peers.map(peer_line));
    }
    grid
}

/// Says to what extent another node has this node's flows.
fn peer_line(peer: &PeerView) -> String {
    let sent = if peer.sending {
        format!("{} ms behind", peer.behind_ms)
    } else {
        format!("gets no flows: {}", peer.send_error_text())
    };
    let (mark, state) = match (peer.sending, peer.complete) {
        (true, true) => ("", "all of its flows are here"),
        (true, false) => ("", "not all of its flows are here"),
        (false, _) => ("! ", "none of its flows arrive"),
    };
    format!("{mark}{}: {sent}; {state}, {} shadows", peer.node, peer.shadows)
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
    use serde_json::json;
    use signalbox_api::migrations::MigrationsAnswer;
    use signalbox_core::availability::migration::guard::GuardLimits;

    use super::*;
    use crate::top::data::{Topic, Update};

    #[test]
    fn migrations_that_go_on_are_shown_or_else_the_last_one() {
        let plan = json!({ "from": "v1", "to": "v2", "steps": [5, 100], "hold_ms": 60_000, "testers": [],
            "limits": GuardLimits::default() });
        let one = |id: u64, state: &str| {
            json!({ "id": id, "plan": plan, "names": { "a.test": null }, "by": "anna", "state": state, "reason": "",
                "step": 0, "started": 1, "ended": null, "steps": [] })
        };
        let lines = |all: &[Value]| {
            let answer: MigrationsAnswer = serde_json::from_value(json!({ "migrations": all })).unwrap();
            migrations(&answer.migrations)
        };
        let ended = [one(1, "completed"), one(2, "rolled_back")];
        assert_eq!(
            lines(&ended),
            ["! migration 2: 1 name from v1 to v2: rolled back, nothing moved"]
        );
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
        let past = json!({ "at": [1000], "overall": [{}], "hosts": views[..2] });
        data.history.load(serde_json::from_value(past).unwrap());
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
