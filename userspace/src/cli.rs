//! The command line. Data goes to standard output, everything else to standard error.

mod agent;
mod certificates;
mod check;
mod client;
mod config;
pub mod demo;
mod dns;
pub mod doctor;
mod events;
mod explain;
mod export;
mod flows;
mod ha;
mod ha_config;
pub mod logging;
mod man;
mod migrate;
mod rotate;
mod serve;
mod services;
mod shield;
mod show;
#[cfg(feature = "tui")]
mod top;
mod weight;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use signalbox_api::hosts::HostsAnswer;
use signalbox_api::routing::{ClustersAnswer, ListenersAnswer, RoutesAnswer};
use signalbox_api::sources::{ApplicationsAnswer, SourcesAnswer};

use crate::app;
use crate::app::SteeringChoice;
use crate::source::client::percent_encoded;

/// A kernel-assisted TCP/TLS/HTTP balancer in front of OpenShift and Kubernetes clusters.
#[derive(Parser)]
#[command(name = "signalbox", version, long_version = long_version(), propagate_version = true)]
struct Cli {
    /// Log level or filter: error, warn, info, debug, trace, or a filter such as signalbox=debug.
    #[arg(
        long,
        global = true,
        env = "SIGNALBOX_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
    #[command(subcommand)]
    command: Command,
}

/// Version, revision, profile and version of the maps, which distinguish builds without a tag.
fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("SIGNALBOX_REVISION"));
        let (profile, abi) = (env!("SIGNALBOX_PROFILE"), signalbox_common::ABI_VERSION);
        format!("{version} (revision {revision}, profile {profile}, ABI {abi})")
    });
    &TEXT
}

#[derive(Subcommand)]
enum Command {
    /// Run the balancer (SIGTERM: drain and stop; a second SIGTERM: stop at once; SIGHUP: reload; SIGUSR2: start a
    /// successor).
    Run(RunArgs),
    /// Watch a cluster from inside it, and report its hosts and routes to balancers that cannot reach its API server.
    Agent(agent::AgentArgs),
    /// Check a configuration file without using it.
    ///
    /// Exits with 0 if the file is valid, 1 if it has only warnings and --strict is given, 2 if it has errors, 3 if it
    /// cannot be read.
    Check(check::CheckArgs),
    /// Show what a running signalbox is doing.
    Status(TableArgs),
    /// Show the listeners of a running signalbox.
    Listeners(TableArgs),
    /// Show the routes of a running signalbox.
    Routes {
        #[command(flatten)]
        table: TableArgs,
        /// Only routes with a claim whose labels match this Kubernetes label selector, such as app=shop,tier!=batch
        #[arg(short = 'l', long)]
        selector: Option<String>,
    },
    /// Show the clusters of a running signalbox.
    Clusters(TableArgs),
    /// Show the hosts of a running signalbox.
    Hosts(TableArgs),
    /// Show the certificates of a running signalbox and when they expire, or set and remove certificates.
    Certificates {
        #[command(subcommand)]
        what: Option<certificates::CertificateCommand>,
        #[command(flatten)]
        table: TableArgs,
    },
    /// Show the layer-4 services of a running signalbox, and where their programs are attached.
    Services(TableArgs),
    /// Show the listeners and services that the shield of a running signalbox protects, and its decisions; or change
    /// which clients it denies.
    Shield {
        #[command(subcommand)]
        what: Option<shield::ShieldCommand>,
        #[command(flatten)]
        table: TableArgs,
    },
    /// Show samples of the packets that the shield drops.
    Drops {
        /// Print new samples as they arrive.
        #[arg(long)]
        follow: bool,
        /// Print at most this many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        show: ShowArgs,
    },
    Flows(flows::FlowsArgs),
    /// Show the applications that routing events have reported to a running signalbox, and where they are exposed.
    Applications {
        /// Print at most this many.
        #[arg(long, default_value_t = 1000)]
        limit: usize,
        #[command(flatten)]
        table: TableArgs,
    },
    /// Explain where a name's connections go: which route, which weights, which host is next, on which tier.
    Explain {
        /// The name that a client asks for, such as app.example.com; or the address and port of a layer-4 service.
        host: String,
        /// Explain for this client: its address, or address and port.
        #[arg(long, value_name = "IP[:PORT]")]
        client: Option<String>,
        /// Explain for this listener only.
        #[arg(long)]
        listener: Option<String>,
        /// Explain a request with this path.
        #[arg(long)]
        path: Option<String>,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Show the changes that a configuration file would make in a running signalbox.
    ///
    /// Exits with 0 if nothing would change, 1 if something would change or the file has errors.
    Diff {
        file: PathBuf,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Show the configuration of a running signalbox.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Show the sources of routes, and their status.
    Sources(TableArgs),
    #[cfg(feature = "tui")]
    Top(top::TopArgs),
    /// Show, replay or skip OpenShift's routing events.
    #[command(subcommand)]
    Events(events::EventsCommand),
    /// Write DNS records for the routed names, with the addresses where listeners accept their connections.
    Dns(dns::DnsArgs),
    /// Write the current routing table in the format of another balancer.
    Export(export::ExportArgs),
    /// Take hosts, clusters, applications or gears out of rotation, or back in.
    ///
    /// A subject that is out gets no new flow until it is taken in again, even after a restart. Its established flows
    /// continue until a time-out closes them.
    #[command(subcommand)]
    Rotate(rotate::RotateCommand),
    /// Set what share of a name's connections each cluster gets, until the weights are removed.
    ///
    /// Weights that are set here override the configuration file and the clusters' own weights. They survive edits of
    /// the file, restarts and upgrades, and apply to all balancers that share a table.
    Weight(weight::WeightArgs),
    /// Move names from one cluster to another in steps. Guards watch real traffic at each step; if one fails, roll
    /// back.
    ///
    /// The running signalbox carries the migration out: it continues if this command is interrupted, and after a
    /// restart.
    Migrate(migrate::MigrateArgs),
    /// Share virtual addresses with other nodes.
    #[command(subcommand)]
    Ha(ha::HaCommand),
    HaConfig(Box<ha_config::HaConfigArgs>),
    /// Check what signalbox can use on this machine, and what to change.
    ///
    /// Exits with 0 if all is well, 1 if something works less well than it could, 2 if something needed is missing.
    Doctor {
        #[command(flatten)]
        show: ShowArgs,
        /// Also print the verdict of the kernel's verifier on each program
        #[arg(long)]
        verbose: bool,
    },
    /// Remove tunnel headers from the packets of an interface, on a host of a service in mode dsr-ipip.
    ///
    /// Needed on hosts without a tunnel device. The program stays until `signalbox detach`. The host also needs the
    /// service's addresses on its loopback device.
    Unwrap {
        /// The interface, such as eth0.
        interface: String,
    },
    /// Run a demo: a balancer and four small servers, on loopback.
    Demo(demo::DemoArgs),
    /// Remove the pinned programs and maps of tier cut and of services from this network namespace. Their flows end.
    Detach {
        /// Also remove pins of network namespaces that are gone.
        #[arg(long)]
        all: bool,
    },
    /// Write a completion script for a shell.
    Completions {
        shell: clap_complete::Shell,
    },
    /// Write the manual pages that packages contain.
    #[command(hide = true)]
    Man(man::ManArgs),
}

#[derive(clap::Args)]
struct RunArgs {
    /// The configuration file; reloaded when it changes.
    #[arg(short = 'f', long, env = "SIGNALBOX_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Take the listening sockets over from the signalbox that runs with the same admin socket.
    #[arg(long)]
    takeover: bool,
    /// Method of listening.
    #[arg(long, default_value = "auto")]
    steering: SteeringChoice,
    /// Threads that carry connections [default: one for each CPU].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
}

/// Arguments of commands that show something.
#[derive(clap::Args)]
struct ShowArgs {
    #[arg(short, long, global = true, default_value = "table")]
    output: OutputFormat,
    /// The admin socket of the running signalbox.
    #[arg(
        long,
        global = true,
        env = "SIGNALBOX_SOCKET",
        default_value = "/run/signalbox/admin.sock",
        value_name = "PATH"
    )]
    socket: PathBuf,
}

pub use serve::default_workers;
use show::{TableArgs, rows};
pub use show::{TableForm, emit};

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Table,
    Json,
    Yaml,
}

/// Runs the command given by the arguments.
pub fn main() -> ExitCode {
    if let Some(code) = app::launch_successor() {
        return code;
    }
    let cli = Cli::parse();
    if !cli.command.serves() {
        end_quietly_on_closed_output();
    }
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    /// Whether the command runs until it is told to stop: closed output must not end it.
    const fn serves(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Agent(_) | Self::Ha { .. } | Self::Demo(_))
    }
}

/// Ends the process when its output is closed, such as after `| head`: without a message, and with the status of other
/// commands in that case. SIGPIPE itself would also end it while the balancer refuses a request.
fn end_quietly_on_closed_output() {
    const STATUS: i32 = 128 + libc::SIGPIPE;
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        // println! and the writers of completions report this only by a panic.
        if said.starts_with("failed ") && said.contains("Broken pipe") {
            std::process::exit(STATUS);
        }
        others(panic);
    }));
}

/// Removes pinned programs and maps, and lists them. With `all`, pins of removed network namespaces go first, even if a
/// process uses the pins of this namespace.
fn detach(all: bool) -> anyhow::Result<ExitCode> {
    let stale_pins = all.then(crate::kernel::pins::stale_pins::collect).transpose()?;
    if let Some(stale_pins) = &stale_pins {
        print_cleaned(stale_pins);
    }
    let own = crate::kernel::detach::detach_all()?;
    print_cleaned(&own);
    if own.removed.is_empty() && own.left.is_empty() {
        println!("nothing is pinned for this network namespace");
    }
    Ok(ExitCode::SUCCESS)
}

fn print_cleaned(cleaned: &crate::kernel::pins::RemovedPins) {
    for path in &cleaned.removed {
        println!("removed {}", path.display());
    }
    for (path, why) in &cleaned.left {
        println!("left {}: {why}", path.display());
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Run(run) => {
            logging::init(&cli.log).map_err(anyhow::Error::msg)?;
            serve::serve(run)
        }
        Command::Agent(args) => {
            logging::init(&cli.log).map_err(anyhow::Error::msg)?;
            agent::run(args)
        }
        Command::Check(args) => check::check(&args),
        Command::Status(table) => show::print("/api/v1/status", &table, show::status),
        Command::Listeners(table) => show::print("/api/v1/listeners", &table, |of: &ListenersAnswer, form| {
            rows(&of.listeners, form)
        }),
        Command::Routes { table, selector } => {
            let of = |selector: String| format!("?selector={}", percent_encoded(&selector));
            let path = format!("/api/v1/routes{}", selector.map_or_else(String::new, of));
            show::print(&path, &table, |of: &RoutesAnswer, form| rows(&of.routes, form))
        }
        Command::Clusters(table) => show::print("/api/v1/clusters", &table, |of: &ClustersAnswer, form| {
            rows(&of.clusters, form)
        }),
        Command::Hosts(table) => show::print("/api/v1/hosts", &table, |of: &HostsAnswer, form| rows(&of.hosts, form)),
        Command::Flows(flows) => flows::print(&flows),
        Command::Applications { limit, table } => {
            let path = format!("/api/v1/applications?limit={limit}");
            show::print(&path, &table, |of: &ApplicationsAnswer, form| {
                show::some_rows(&of.applications, of.total, form)
            })
        }
        Command::Explain {
            host,
            client,
            listener,
            path,
            show,
        } => {
            let details = [("client", client), ("listener", listener), ("path", path)];
            explain::explain(&host, &details, &show.socket, show.output)
        }
        Command::Diff { file, show } => explain::diff(&file, &show.socket, show.output),
        Command::Config(config::ConfigCommand::Show(show)) => config::show(&show),
        Command::Certificates { what, table } => certificates::run(what, &table),
        Command::Services(table) => services::print(&table),
        Command::Shield { what, table } => shield::run(what, &table),
        Command::Drops { follow, limit, show } => shield::drops(follow, limit, &show.socket, show.output),
        Command::Sources(table) => show::print("/api/v1/sources", &table, |of: &SourcesAnswer, form| {
            rows(&of.sources, form)
        }),
        #[cfg(feature = "tui")]
        Command::Top(args) => top::run(&args),
        Command::Events(what) => events::run(&what),
        Command::Dns(args) => dns::run(&args),
        Command::Export(export) => export::run(&export),
        Command::Rotate(what) => rotate::run(what),
        Command::Weight(weight) => weight::run(&weight),
        Command::Migrate(migrate) => migrate::run(migrate),
        Command::Ha(what) => ha::run(what, &cli.log),
        Command::HaConfig(args) => ha_config::run(*args),
        Command::Doctor { show, verbose } => {
            let running = show.socket.exists().then(|| doctor::Running {
                status: client::read(&show.socket, "/api/v1/status"),
                ha: client::read(&show.socket, "/api/v1/ha"),
                services: client::read(&show.socket, "/api/v1/services"),
            });
            doctor::run(show.output, verbose, running)
        }
        Command::Detach { all } => detach(all),
        Command::Unwrap { interface } => {
            let native = crate::kernel::l4::decap::attach(&interface)?;
            let place = if native {
                "in the driver"
            } else {
                "in the stack (generic XDP)"
            };
            println!("tunnels are decapsulated on {interface}, {place}, until `signalbox detach`");
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo(args) => {
            logging::init(if args.verbose { &cli.log } else { demo::LOG }).map_err(anyhow::Error::msg)?;
            serve::runtime()?.block_on(demo::run(args))?;
            std::process::exit(0)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "signalbox", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(args) => man::run(&args, Cli::command()),
    }
}
