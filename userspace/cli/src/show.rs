//! Prints answers as tables, JSON or YAML.

mod cell;
mod columns;
mod fit;
mod terminal;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use jiff::Zoned;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use signalbox_api::hosts::HostStatus;
use signalbox_api::routing::RouteView;
use signalbox_api::status::{FastPath, StatusAnswer};

pub(super) use self::cell::bytes;
use self::cell::{ShownCell, reloaded, value_text};
pub(super) use self::columns::Column;
pub(super) use self::columns::TableRow;
use self::fit::{ColumnNeed, fit, shortened};
use super::{OutputFormat, ShowArgs, client};

/// Arguments of commands that show a table.
#[derive(clap::Args)]
pub(super) struct TableArgs {
    #[command(flatten)]
    pub(super) show: ShowArgs,
    /// Print only the rows: no titles, and no notes below.
    #[arg(long)]
    no_headers: bool,
    /// Repeat the table at this interval in seconds [default: 2], until Ctrl-C.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or("write seconds from 0.1 to 3600, such as 5")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Form of a table: its width, and whether it has titles and notes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableForm {
    width: Option<usize>,
    has_headers: bool,
}

impl TableForm {
    /// Fits the terminal on standard output. Without a terminal, tables are not shortened.
    #[must_use]
    pub(super) fn of_output() -> Self {
        Self {
            width: terminal::size().map(|size| size.columns),
            has_headers: true,
        }
    }

    /// Sets whether there are titles and notes.
    pub(super) const fn with_headers(self, has_headers: bool) -> Self {
        Self { has_headers, ..self }
    }

    /// Adds lines below a table.
    pub(super) fn with_notes(self, table: String, notes: impl IntoIterator<Item = String>) -> String {
        let mut text = table;
        if self.has_headers {
            for note in notes {
                text += &format!("\n{note}");
            }
        }
        text
    }
}

/// Requests a path and prints the answer, in the form of `text` or as a document.
pub(super) fn print<T: DeserializeOwned>(
    path: &str,
    args: &TableArgs,
    text: impl Fn(&T, TableForm) -> String,
) -> anyhow::Result<ExitCode> {
    print_table(args, || client::get(&args.show.socket, path), text)
}

/// Prints an answer as JSON or YAML, or in the form of `text`, which `--watch` repeats.
pub(super) fn print_table<T: DeserializeOwned>(
    args: &TableArgs,
    ask: impl Fn() -> anyhow::Result<Value>,
    text: impl Fn(&T, TableForm) -> String,
) -> anyhow::Result<ExitCode> {
    let form = || TableForm::of_output().with_headers(!args.no_headers);
    let table = || Ok(text(&client::decode(ask()?)?, form()));
    match (args.show.output, args.watch) {
        (OutputFormat::Table, Some(interval)) => terminal::repeat(interval, table),
        (_, Some(_)) => bail!(
            "--watch repeats tables only: leave --output out, or run the command again for each \
                               document"
        ),
        (OutputFormat::Table, None) => {
            print_text(&table()?)?;
            Ok(ExitCode::SUCCESS)
        }
        (output, None) => {
            emit(&ask()?, output)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes JSON or YAML.
pub fn emit(value: &Value, output: OutputFormat) -> anyhow::Result<()> {
    match output {
        OutputFormat::Yaml => print_text(&serde_saphyr::to_string(value)?),
        OutputFormat::Json | OutputFormat::Table => print_text(&serde_json::to_string_pretty(value)?),
    }
}

/// Prints text. A reader that closes the pipe early (`| head`) is no error.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Formats rows as a table.
#[must_use]
pub(super) fn rows<R: TableRow>(rows: &[R], form: TableForm) -> String {
    some_rows(rows, rows.len(), form)
}

/// Formats routes and hosts as two tables, for `signalbox demo`.
#[must_use]
pub fn routes_and_hosts(routes: &[RouteView], hosts: &[HostStatus]) -> String {
    let form = TableForm::of_output();
    format!(
        "{}\n\n{}\n",
        rows(routes, form).trim_end(),
        rows(hosts, form).trim_end()
    )
}

/// Formats some of `total` rows as a table.
pub(super) fn some_rows<R: TableRow>(rows: &[R], total: usize, form: TableForm) -> String {
    let titles: Vec<_> = R::COLUMNS.iter().map(|(title, _)| *title).collect();
    let cells = |row: &R| R::COLUMNS.iter().map(|(_, cell)| cell(row)).collect();
    let cells: Vec<Vec<ShownCell>> = rows.iter().map(cells).collect();
    let needs = needs(&titles, &cells, form);
    let widths = fit(&needs, form.width.unwrap_or(usize::MAX));
    let mut shown = Table::new();
    shown.load_style(presets::NOTHING);
    let kept = |row: &mut dyn Iterator<Item = &str>| {
        let cells = row.zip(&widths);
        cells
            .filter_map(|(text, width)| Some(shortened(text, (*width)?)))
            .collect::<Vec<_>>()
    };
    if form.has_headers {
        shown.set_header(kept(&mut titles.iter().copied()));
    }
    for row in &cells {
        shown.add_row(kept(&mut row.iter().map(|cell| cell.text.as_str())));
    }
    let in_sight = needs.iter().zip(&widths).filter(|(_, width)| width.is_some());
    for (index, (need, _)) in in_sight.enumerate() {
        if let Some(column) = shown.column_mut(index).filter(|_| !need.is_text) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let left_out = titles.iter().zip(&widths).filter(|(_, width)| width.is_none());
    let left_out: Vec<_> = left_out.map(|(title, _)| *title).collect();
    let mut notes = Vec::new();
    if !left_out.is_empty() {
        notes.push(format!(
            "no room for {}; `| cat` shows all columns",
            left_out.join(", ")
        ));
    }
    if total > rows.len() {
        notes.push(format!("{} of {total}; --limit shows more", rows.len()));
    }
    form.with_notes(without_trailing_blanks(&shown), notes)
}

/// Returns the width that each column needs.
fn needs(titles: &[&'static str], rows: &[Vec<ShownCell>], form: TableForm) -> Vec<ColumnNeed> {
    let need = |(at, title): (usize, &&'static str)| {
        let cells = || rows.iter().filter_map(|row| row.get(at));
        let widest = cells().map(|cell| cell.text.chars().count()).max().unwrap_or(0);
        ColumnNeed {
            width: widest.max(if form.has_headers { title.len() } else { 0 }),
            is_text: cells().all(|cell| cell.number.is_none()),
            is_empty: cells().all(|cell| cell.text == "-" || cell.text.is_empty()),
            title,
        }
    };
    titles.iter().enumerate().map(need).collect()
}

/// Formats the status: one line per field, with long values continued below.
pub(super) fn status(answer: &Value, form: TableForm) -> String {
    let mut shown = Table::new();
    shown.load_style(presets::NOTHING);
    if let Some(width) = form.width.and_then(|width| u16::try_from(width).ok()) {
        shown
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    let typed = StatusAnswer::deserialize(answer).unwrap_or_default();
    let reload = typed.last_reload.map(|reload| reloaded(&reload, &Zoned::now()));
    for (name, value) in answer.as_object().into_iter().flatten() {
        match &reload {
            _ if name == "apiVersion" => continue,
            Some(reload) if name == "last_reload" => shown.add_row([name, reload]),
            _ if name == "fast_path" => shown.add_row([name, &fast_path(&typed.fast_path)]),
            _ => shown.add_row([name, &value_text(value)]),
        };
    }
    without_trailing_blanks(&shown)
}

/// Formats the share of connections and names that the kernel routes, as a sentence.
pub(super) fn fast_path(of: &FastPath) -> String {
    let connections = if of.connections == 0 {
        "no connection in the last minute".to_owned()
    } else {
        let share = 100.0 * of.connections_in_kernel as f64 / of.connections as f64;
        format!("the kernel routed {share:.1} % of the last minute's connections")
    };
    let left = of.left_to_workers.iter().map(|left| {
        let s = if left.count == 1 { "" } else { "s" };
        format!("{} {}{s} ({}: {})", left.count, left.kind, left.label, left.reason)
    });
    let left: Vec<_> = left.collect();
    let by_workers = if left.is_empty() {
        String::new()
    } else {
        format!("; workers route {}", left.join(", "))
    };
    let (names_in_kernel, names) = (of.names_in_kernel, of.names);
    format!("{connections}; the kernel routes {names_in_kernel} of {names} names{by_workers}")
}

fn without_trailing_blanks(table: &Table) -> String {
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use signalbox_api::hosts::HostStatus;
    use signalbox_api::sources::SourceView;

    use super::cell::age_of;
    use super::*;

    fn parsed<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    const WHOLE: TableForm = TableForm {
        width: None,
        has_headers: true,
    };

    #[test]
    fn a_long_error_does_not_make_the_table_wide() {
        let error = "the API server of /etc/signalbox/east.kubeconfig cannot be reached: ".repeat(6);
        let source = json!({ "name": "kube:east", "kind": "kubernetes", "connected": false, "last_error": error });
        let text = rows(&[parsed::<SourceView>(source)], WHOLE);
        let widest = text.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
        assert!(
            widest < 180 && text.contains("east.kubeconfig") && text.contains("..."),
            "{text}"
        );
    }

    #[test]
    fn a_reload_is_shown_by_the_operator_s_clock_with_its_age() {
        let reload = json!({ "ok": true, "source": "SIGHUP", "at": 1_795_351_604, "error": null });
        let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(2));
        let now = jiff::Timestamp::from_second(1_795_351_604 + 3723)
            .unwrap()
            .to_zoned(zone);
        assert_eq!(
            reloaded(&parsed(reload.clone()), &now),
            "ok, by SIGHUP, 2026-11-22 14:46:44 +02:00 (1h 2m ago)"
        );
        let refused = json!({ "ok": false, "source": "API", "at": 1_795_355_320, "error": "no such cluster" });
        assert_eq!(
            reloaded(&parsed(refused), &now),
            "refused, by API, 2026-11-22 15:48:40 +02:00 (7s ago): no such cluster"
        );
        assert!(status(&json!({ "last_reload": reload }), WHOLE).contains(" ago)"));
        assert_eq!(
            (age_of(0), age_of(59), age_of(90_000)),
            ("0s".into(), "59s".into(), "1d 1h".into())
        );
    }

    #[test]
    fn hosts_are_shown_with_their_true_state() {
        let host = json!(
            { "cluster": "east", "name": "e1", "address": "10.2.0.2", "health": "healthy", "ejected": true, "draining": false,
              "weight": 1, "active_connections": 2, "total_connections": 3, "refused_connections": 0,
              "bytes_in": 1536, "bytes_out": 5, "tls_fault": "its certificate has expired", "last_check": { "ok": true, "detail": "HTTP 200", "seconds": 0.1 } });
        let text = rows(&[parsed::<HostStatus>(host)], WHOLE);
        for expected in [
            "  ejected",
            "1.5 KiB",
            "5 B",
            "HTTP 200; TLS: its certificate has expired",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
    }

    fn hosts() -> [HostStatus; 2] {
        let host = |name: &str, health: &str| {
            json!({ "cluster": "east", "name": name, "address": "10.77.1.11", "health": health, "ejected": false,
                "draining": false, "subset": null, "weight": 1, "active_connections": 2, "total_connections": 3,
                "refused_connections": 0, "bytes_in": 1536, "bytes_out": 5, "last_check": { "detail": "connected" },
                "checked_by": "TCP connect on port 443; HTTP on port 1936: connect to it: Connection refused" })
        };
        [host("east-1", "healthy"), host("east-2", "unhealthy")].map(parsed)
    }

    #[test]
    fn a_table_fits_the_terminal_and_names_what_it_left_out() {
        let form = TableForm {
            width: Some(80),
            ..WHOLE
        };
        let text = rows(&hosts(), form);
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{widest}:\n{text}");
        assert!(
            text.contains("no room for SUBSET, ") && text.contains("unhealthy"),
            "{text}"
        );
    }

    #[test]
    fn a_table_that_is_piped_is_whole_without_blanks_at_line_ends() {
        let text = rows(&hosts(), WHOLE);
        assert!(
            text.contains("Connection refused") && !text.contains("no room"),
            "{text}"
        );
        assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
    }

    #[test]
    fn a_healthy_host_s_check_does_not_read_like_a_fault() {
        let text = rows(&hosts(), WHOLE);
        let line = text.lines().find(|line| line.contains("east-1")).unwrap();
        assert!(line.ends_with("TCP connect on port 443"), "{line}");
    }

    #[test]
    fn rows_come_alone_without_headers() {
        let form = TableForm {
            width: Some(60),
            has_headers: false,
        };
        let text = rows(&hosts(), form);
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn a_long_status_goes_on_below_its_name() {
        let answer =
            json!({ "apiVersion": "v1", "not_ready": ["the cluster east has no host that takes connections"] });
        let text = status(
            &answer,
            TableForm {
                width: Some(40),
                ..WHOLE
            },
        );
        assert!(
            text.lines().count() > 1 && text.lines().all(|line| line.len() <= 40),
            "{text}"
        );
    }
}
