//! `signalbox migrate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use hyper::Method;
use serde_json::json;
use signalbox_api::migrations::{MigrationAnswer, MigrationBody, MigrationsAnswer};
use signalbox_core::availability::migration::{Migration, MigrationState, StepRecord, report};

use super::show::{self, Column, TableArgs, TableRow};
use super::{OutputFormat, client};
use signalbox_sys::unix_ms;

const PATH: &str = "/api/v1/migrations";

/// Interval at which the progress of a migration is requested.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Time for which requests are repeated to a signalbox that does not answer because it restarts.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

/// Exit code of a migration that was rolled back or aborted.
const NOT_MOVED: u8 = 4;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").multiple(true).args(["names", "namespace", "selector", "file", "all"])))]
#[command(group(clap::ArgGroup::new("order").args(["list", "show", "pause", "resume", "abort"]).conflicts_with_all(["which", "from", "to"])))]
pub(super) struct MigrateArgs {
    /// Names of the routes to move
    names: Vec<String>,
    /// Cluster that serves the names now
    #[arg(long, value_name = "CLUSTER", requires = "to", requires = "which")]
    from: Option<String>,
    /// Cluster that will serve them
    #[arg(long, value_name = "CLUSTER", requires = "from")]
    to: Option<String>,
    /// All names that objects of this namespace (or application) claim, in addition to names
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// All names with a claim whose labels now match this Kubernetes label selector, in addition to names
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Vec<String>,
    /// File with further names, separated by white space or lines; # begins a comment
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// All names that have traffic on the old cluster and that the new cluster also serves
    #[arg(long, conflicts_with_all = ["names", "namespace", "selector", "file"])]
    all: bool,
    /// Clients that get the new cluster first, in a step before all others: addresses or prefixes
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',')]
    testers: Vec<String>,
    /// Shares of the new cluster in percent, one after the other
    #[arg(
        long,
        value_name = "PERCENT,...",
        value_delimiter = ',',
        default_value = "5,25,50,100"
    )]
    steps: Vec<u32>,
    /// Time that each step is held: 90s, 15m, 2h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    hold: Duration,
    /// Percentage by which failed connects, broken connections or 5xx may exceed those of the old cluster
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    max_errors: f64,
    /// Multiple of the old cluster's median and 95th percentile that a time may reach; 0: no limit
    #[arg(long, value_name = "FACTOR", default_value_t = 3.0)]
    max_latency: f64,
    /// Connections or requests that the new cluster must have had before a rate is judged or a step ends
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    min_samples: u64,
    /// Do not ask for the names through hosts of both clusters
    #[arg(long, requires = "from")]
    no_probe: bool,
    /// Path that is asked for
    #[arg(
        long,
        requires = "from",
        conflicts_with = "no_probe",
        value_name = "PATH",
        default_value = "/"
    )]
    probe_path: String,
    /// Time from one round of probes to the next
    #[arg(long, requires = "from", conflicts_with = "no_probe", value_name = "TIME", default_value = "30s", value_parser = duration)]
    probe_every: Duration,
    /// Time for an answer to a probe
    #[arg(long, requires = "from", conflicts_with = "no_probe", value_name = "TIME", default_value = "3s", value_parser = duration)]
    probe_timeout: Duration,
    /// Migrate on this balancer only, not on the others of the configuration's `balancers`
    #[arg(long, requires = "from")]
    only_here: bool,
    /// Show which names would move and in which steps, and change nothing
    #[arg(long, requires = "from")]
    dry_run: bool,
    /// Return at once with the migration's number; do not wait until it has ended
    #[arg(long, requires = "from")]
    no_wait: bool,
    /// Format of the report at the end
    #[arg(long, value_enum, default_value_t = ReportFormat::Markdown)]
    report: ReportFormat,
    /// List the migrations of the running signalbox
    #[arg(long)]
    list: bool,
    /// Show the report of a migration
    #[arg(long, value_name = "NUMBER")]
    show: Option<u64>,
    /// Pause a migration at the step that it has reached; its guards stay active
    #[arg(long, value_name = "NUMBER")]
    pause: Option<u64>,
    /// Resume a paused migration: hold its step again from the beginning, then continue
    #[arg(long, value_name = "NUMBER")]
    resume: Option<u64>,
    /// Abort a migration: restore the weights from before
    #[arg(long, value_name = "NUMBER")]
    abort: Option<u64>,
    #[command(flatten)]
    table: TableArgs,
}

/// Form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Markdown,
    Json,
}

/// Parses a time with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("a time has a unit: 90s, 15m, 2h".into()),
    };
    let number = number
        .parse::<u64>()
        .map_err(|error| format!("{error}, as in 90s, 15m, 2h"))?;
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(|| "that is too long".into())
}

pub(super) fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let socket = &args.table.show.socket;
    let report = |migration: &Migration| match args.report {
        ReportFormat::Markdown => report::markdown(migration, unix_ms()),
        ReportFormat::Json => format!("{:#}", json!(migration)),
    };
    if args.list {
        return list(&args.table);
    }
    if let Some(id) = args.show {
        return print(&args, &migration(socket, id)?, report);
    }
    let orders = [("pause", args.pause), ("resume", args.resume), ("abort", args.abort)];
    if let Some((order, id)) = orders.into_iter().find_map(|(order, id)| Some((order, id?))) {
        let path = format!("/api/v1/migrations/{id}/{order}");
        let migration = client::send::<MigrationAnswer>(socket, &Method::POST, &path, None::<&()>)?.migration;
        return print(&args, &migration, |migration| {
            format!("migration {id}: {}", describe(migration))
        });
    }
    let body = body(&args)?;
    let begun = client::send::<MigrationAnswer>(socket, &Method::POST, PATH, Some(&body))?.migration;
    if args.dry_run {
        return print(&args, &begun, plan_text);
    }
    if args.no_wait {
        return print(&args, &begun, |begun| format!("migration {}", begun.id));
    }
    eprintln!(
        "migration {}: {} from {} to {}; it continues without this command (--pause, --abort {0})",
        begun.id,
        names_text(&begun),
        begun.plan.from,
        begun.plan.to
    );
    let ended = wait(socket, begun.id)?;
    print(&args, &ended, report)?;
    Ok(match ended.state {
        MigrationState::Completed => ExitCode::SUCCESS,
        _ => ExitCode::from(NOT_MOVED),
    })
}

/// Prints a migration: as a document, or in the form of `text`.
fn print(args: &MigrateArgs, migration: &Migration, text: impl Fn(&Migration) -> String) -> anyhow::Result<ExitCode> {
    match args.table.show.output {
        OutputFormat::Table => show::print_text(&text(migration))?,
        output => {
            let migration = migration.clone();
            show::emit(&serde_json::to_value(MigrationAnswer { migration })?, output)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn body(args: &MigrateArgs) -> anyhow::Result<MigrationBody> {
    let (Some(from), Some(to)) = (&args.from, &args.to) else {
        bail!("from where to where? For example: signalbox migrate app.example.com --from v1 --to v2");
    };
    let mut names = args.names.clone();
    if let Some(path) = &args.file {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let before = names.len();
        names.extend(lines.flat_map(str::split_whitespace).map(str::to_owned));
        if names.len() == before {
            bail!("{}: the file contains no names", path.display());
        }
    }
    Ok(MigrationBody {
        from: from.clone(),
        to: to.clone(),
        names,
        namespaces: args.namespace.clone(),
        selectors: args.selector.clone(),
        all: args.all,
        testers: args.testers.clone(),
        steps: args.steps.clone(),
        hold: args.hold.as_secs_f64(),
        max_errors: args.max_errors,
        max_latency: args.max_latency,
        min_samples: args.min_samples,
        probe: !args.no_probe,
        probe_path: args.probe_path.clone(),
        probe_every: args.probe_every.as_secs_f64(),
        probe_timeout: args.probe_timeout.as_secs_f64(),
        only_here: args.only_here,
        dry_run: args.dry_run,
    })
}

fn migration(socket: &Path, id: u64) -> anyhow::Result<Migration> {
    Ok(client::read::<MigrationAnswer>(socket, &format!("{PATH}/{id}"))?.migration)
}

/// Shows the progress of a migration until it has ended. A restarted signalbox continues it, so this waits for it.
fn wait(socket: &Path, id: u64) -> anyhow::Result<Migration> {
    let (mut said, mut silent_since) = (String::new(), None);
    loop {
        match migration(socket, id) {
            Ok(migration) => {
                silent_since = None;
                let text = describe(&migration);
                if text != said {
                    eprintln!("{text}");
                    said = text;
                }
                if migration.state.is_ended() {
                    return Ok(migration);
                }
            }
            Err(error) => {
                let since = *silent_since.get_or_insert_with(std::time::Instant::now);
                if since.elapsed() >= RESTART_TIMEOUT {
                    return Err(error.context(format!("migration {id} continues at the next start of signalbox")));
                }
            }
        }
        std::thread::sleep(PROGRESS_INTERVAL);
    }
}

/// Returns the migration's title.
#[cfg(feature = "tui")]
pub(super) fn title(migration: &Migration) -> String {
    let (plan, names) = (&migration.plan, names_text(migration));
    format!("{}: {names} from {} to {}", migration.id, plan.from, plan.to)
}

fn names_text(migration: &Migration) -> String {
    match migration.names.len() {
        1 => "1 name".to_owned(),
        names => format!("{names} names"),
    }
}

/// Describes the progress of a migration, and the reason.
pub(super) fn describe(migration: &Migration) -> String {
    let mut text = format!("{}, {}", state(migration), share(migration));
    if let Some(step) = open_step(migration) {
        text += &format!(": {}", faults(step));
    }
    for note in notes(migration) {
        text += &format!(" ({note})");
    }
    text
}

fn state(migration: &Migration) -> String {
    migration.state.as_str().replace('_', " ")
}

/// Share of the new cluster.
fn share(migration: &Migration) -> String {
    if migration.is_unmoved() {
        return "nothing moved".to_owned();
    }
    match migration.percent() {
        0 => "testers only".to_owned(),
        percent => format!("{percent} %"),
    }
}

fn open_step(migration: &Migration) -> Option<&StepRecord> {
    migration.steps.last().filter(|step| step.ended.is_none())
}

/// Reasons for the state of a migration.
fn notes(migration: &Migration) -> Vec<String> {
    let mut notes = Vec::new();
    if !migration.reason.is_empty() {
        notes.push(migration.reason.clone());
    }
    if !migration.waits_for.is_empty() && !migration.state.is_ended() {
        notes.push(format!("waits for {}", migration.waits_for.join(", ")));
    }
    notes
}

fn faults(step: &StepRecord) -> String {
    let new = &step.new;
    format!(
        "{} connects, {} failed, {} connections broken, {} requests, {} of them 5xx",
        new.connects, new.connect_failures, new.flows_broken, new.answers, new.server_errors
    )
}

fn plan_text(migration: &Migration) -> String {
    let plan = &migration.plan;
    let step_name = |step: &u32| match step {
        0 => "testers".to_owned(),
        step => format!("{step} %"),
    };
    let steps: Vec<_> = plan.steps.iter().map(step_name).collect();
    let mut text = format!(
        "from {} to {} in steps of {}, each held {} s:",
        plan.from,
        plan.to,
        steps.join(", "),
        plan.hold_ms / 1000
    );
    for name in migration.names.keys() {
        text += &format!("\n  {name}");
        if let Some(answer) = migration.probes.listed.get(name) {
            text += &format!(" ({answer})");
        }
    }
    for (name, why) in &migration.left_out {
        text += &format!("\n  left out: {name} ({why})");
    }
    text
}

fn list(args: &TableArgs) -> anyhow::Result<ExitCode> {
    show::print(PATH, args, |answer: &MigrationsAnswer, form| {
        if answer.migrations.is_empty() {
            return "there has been no migration".to_owned();
        }
        show::rows(&answer.migrations, form)
    })
}

impl TableRow for Migration {
    const COLUMNS: &'static [Column<Self>] = &[
        ("MIGRATION", |of| of.id.into()),
        ("NAMES", |of| of.names.len().into()),
        ("FROM", |of| (&of.plan.from).into()),
        ("TO", |of| (&of.plan.to).into()),
        ("STATE", |of| state(of).into()),
        ("SHARE", |of| share(of).into()),
        ("NOTE", |of| {
            let faults = open_step(of).map(faults);
            notes(of)
                .into_iter()
                .chain(faults)
                .collect::<Vec<_>>()
                .join("; ")
                .into()
        }),
    ];
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        migrate: MigrateArgs,
    }

    fn of(line: &str) -> anyhow::Result<Value> {
        let line = Line::try_parse_from(std::iter::once("migrate").chain(line.split(' ')))?;
        Ok(serde_json::to_value(body(&line.migrate)?)?)
    }

    #[test]
    fn words_become_a_request() {
        let body = of("a.test b.test --from v1 --to v2 --steps 10,100 --hold 2m").unwrap();
        let named = json!(["a.test", "b.test"]);
        assert_eq!(
            (&body["names"], &body["steps"], &body["hold"]),
            (&named, &json!([10, 100]), &json!(120.0))
        );
        let body = of("--all --from v1 --to v2 --dry-run").unwrap();
        assert_eq!(
            (&body["all"], &body["dry_run"], &body["hold"]),
            (&json!(true), &json!(true), &json!(60.0))
        );
        let body = of("a.test --from v1 --to v2 --testers 10.9.0.0/16,192.0.2.7").unwrap();
        assert_eq!(body["testers"], json!(["10.9.0.0/16", "192.0.2.7"]));
        let body = of("-l app=shop,tier!=batch --from v1 --to v2").unwrap();
        assert_eq!(body["selectors"], json!(["app=shop,tier!=batch"]));
    }

    #[test]
    fn words_that_make_no_sense_are_refused() {
        for (line, why) in [
            ("a.test --from v1", "--to"),
            ("--from v1 --to v2", "required"),
            ("a.test", "from where to where?"),
            ("a.test --all --from v1 --to v2", "--all"),
            ("a.test --from v1 --to v2 --hold 60", "a time has a unit"),
            ("a.test --from v1 --to v2 --steps x", "--steps"),
            ("a.test --pause 7", "--pause"),
        ] {
            let error = format!("{:#}", of(line).unwrap_err());
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
