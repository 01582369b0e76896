//! Reports: a summary of each series, as JSON, as Markdown and in pictures.

mod bars;
mod columns;
mod dots;
#[cfg(test)]
mod fixture;
mod markdown;
mod plots;
mod readme;
mod row;
mod svg;
mod tables;
mod worse;

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::campaign::Findings;
use crate::campaign::programs::Programs;
use crate::facts::Facts;
use row::Row;

/// The whole report, as in `latest.json`.
#[derive(Serialize)]
pub(crate) struct Report {
    facts: Facts,
    seconds_taken: f64,
    rows: Vec<Row>,
    programs: Vec<Programs>,
}

impl Report {
    /// Summarises findings.
    pub(crate) fn new(facts: Facts, seconds_taken: f64, findings: Findings) -> Self {
        let all = &findings.series;
        Self {
            facts,
            seconds_taken,
            rows: all.iter().map(|series| Row::new(series, all)).collect(),
            programs: findings.programs,
        }
    }

    /// Writes `latest.json`, `latest.md` with its pictures, and the parts for the README and the page on benchmarks:
    /// `readme.md`, `tables.md` and `worse.md`. Returns the text of `latest.md`.
    pub(crate) fn write(&self, dir: &Path) -> Result<String> {
        let pictures = plots::all(&self.rows);
        let text = markdown::text(self, &pictures);
        std::fs::create_dir_all(dir)?;
        for picture in plots::NAMES {
            // A picture of an earlier run would look like one of this run.
            let _ = std::fs::remove_file(dir.join(picture));
        }
        for picture in &pictures {
            std::fs::write(dir.join(picture.file), &picture.svg)?;
        }
        std::fs::write(dir.join("latest.json"), serde_json::to_string_pretty(self)? + "\n")?;
        std::fs::write(dir.join("latest.md"), &text)?;
        std::fs::write(dir.join("readme.md"), readme::text(self))?;
        std::fs::write(dir.join("tables.md"), tables::text(self))?;
        std::fs::write(dir.join("worse.md"), worse::text(self))?;
        Ok(text)
    }

    /// Number of measurements, and of those that others disturbed.
    fn disturbed(&self) -> (usize, usize) {
        let add = |(measured, disturbed), row: &Row| (measured + row.samples.len(), disturbed + row.disturbed);
        self.rows.iter().fold((0, 0), add)
    }

    /// Number of rows with errors.
    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().filter(|row| row.errors.total() > 0).count()
    }
}
