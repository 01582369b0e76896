//! Pictures of the report, and the rows in each.

use super::bars::{self, Bar, Panel};
use super::dots::{self, DotRow};
use super::row::Row;
use crate::scenario::ScenarioKind;
use crate::stats::Spread;

/// A picture: a file for the folder of results.
pub(super) struct Picture {
    pub(super) file: &'static str,
    pub(super) title: &'static str,
    pub(super) svg: String,
}

/// Names of all pictures that there may be.
pub(super) const NAMES: [&str; 5] = ["unique.svg", "reused.svg", "latency.svg", "tls.svg", "throughput.svg"];

/// Draws the pictures for which there are results.
pub(super) fn all(rows: &[Row]) -> Vec<Picture> {
    let [unique, reused, latency, tls, throughput] = NAMES;
    let rate = |row: &Row| row.summary.rate;
    let gbit = |row: &Row| row.summary.gbit;
    let is = |wanted: fn(ScenarioKind) -> bool| rows.iter().filter(move |row| wanted(row.scenario.kind));
    let pictures = [
        rates(
            unique,
            "Requests per second, each on a connection of its own (× HAProxy)",
            is(|kind| matches!(kind, ScenarioKind::Unique(_))).collect(),
            rate,
        ),
        rates(
            reused,
            "Requests per second on connections that stay (× HAProxy)",
            is(|kind| matches!(kind, ScenarioKind::Reused(_))).collect(),
            rate,
        ),
        latencies(latency, is(|kind| matches!(kind, ScenarioKind::Latency(_))).collect()),
        rates(
            tls,
            "TLS handshakes per second, passed through (× HAProxy)",
            is(|kind| matches!(kind, ScenarioKind::Tls(_))).collect(),
            rate,
        ),
        rates(
            throughput,
            "Gbit/s (× HAProxy)",
            is(|kind| matches!(kind, ScenarioKind::Large(_) | ScenarioKind::Bulk(_))).collect(),
            gbit,
        ),
    ];
    pictures.into_iter().flatten().collect()
}

fn rates(
    file: &'static str,
    title: &'static str,
    rows: Vec<&Row>,
    value: fn(&Row) -> Option<Spread>,
) -> Option<Picture> {
    let mut names = Vec::new();
    for row in &rows {
        if !names.contains(&name(row)) {
            names.push(name(row));
        }
    }
    // Contenders with fewer threads are not in every scenario: the order is that of the panel with most.
    let scenarios: Vec<_> = rows.chunk_by(|a, b| a.scenario == b.scenario).collect();
    let longest = scenarios.iter().max_by_key(|rows| rows.len())?;
    names.sort_by_key(|wanted| longest.iter().position(|row| name(row) == *wanted));
    let bar = |row: &&Row| Bar {
        value: value(row).filter(|_| row.errors.total() == 0),
        ratio: row.summary.ratio.map(|ratio| ratio.median),
    };
    let panel = |rows: &&[&Row]| Panel {
        title: rows[0].scenario.title.to_owned(),
        bars: names
            .iter()
            .map(|wanted| {
                let found = rows.iter().find(|row| name(row) == *wanted);
                found.filter(|row| row.absence.is_none()).map(bar)
            })
            .collect(),
    };
    let panels: Vec<_> = scenarios.iter().map(panel).collect();
    Some(Picture {
        file,
        title,
        svg: bars::draw(title, &names, &panels),
    })
}

fn latencies(file: &'static str, rows: Vec<&Row>) -> Option<Picture> {
    rows.first()?;
    let title = "Latency at half the rate of the slowest: ● p50, ○ p99, | p99.9";
    let millis = |row: &Row| {
        let at = |spread: Option<Spread>| Some(spread?.median * 1e-3);
        let summary = &row.summary;
        Some([at(summary.p50)?, at(summary.p99)?, at(summary.p999)?])
    };
    let line = |row: &&Row| DotRow {
        name: name(row),
        millis: millis(row).filter(|_| row.errors.total() == 0),
    };
    Some(Picture {
        file,
        title,
        svg: dots::draw(
            title,
            &rows
                .iter()
                .filter(|row| row.absence.is_none())
                .map(line)
                .collect::<Vec<_>>(),
        ),
    })
}

fn name(row: &Row) -> String {
    match row.threads {
        0 => row.contender.clone(),
        threads => format!("{} ×{threads}", row.contender),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fixture, svg};
    use super::*;

    #[test]
    fn there_is_one_of_each_and_all_are_well_formed() {
        let pictures = all(&fixture::rows());
        assert_eq!(pictures.iter().map(|p| p.file).collect::<Vec<_>>(), NAMES);
        for picture in &pictures {
            svg::assert_well_formed(&picture.svg);
            assert!(picture.svg.contains("signalbox-auto ×2"), "{}", picture.file);
        }
        assert!(all(&[]).is_empty());
    }

    #[test]
    fn a_contender_keeps_its_line() {
        let rows = fixture::rows();
        let few = rows.iter().filter(|r| r.scenario.name != "unique-1" || r.threads != 1);
        let few: Vec<_> = few
            .filter(|r| matches!(r.scenario.kind, ScenarioKind::Unique(_)))
            .collect();
        let picture = rates("x", "x", few, |row| row.summary.rate).unwrap();
        let at = |name: &str| picture.svg.find(name).unwrap();
        assert!(at("haproxy ×1") < at("haproxy ×2") && at("haproxy ×2") < at("signalbox-auto ×1"));
    }
}
