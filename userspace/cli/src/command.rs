//! The commands and what each does.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use signalbox_api::hosts::HostsAnswer;
use signalbox_api::routing::{ClustersAnswer, ListenersAnswer, RoutesAnswer};
use signalbox_api::sources::{ApplicationsAnswer, SourcesAnswer};
use signalbox_sources::client::percent_encoded;

use super::show::{TableArgs, rows};
#[cfg(feature = "tui")]
use super::top;
use super::{
    ShowArgs, certificates, client, config, detach, dns, doctor, events, explain, export, flows, ha, ha_config,
    migrate, rotate, services, shield, show, weight,
};

/// A command, with its arguments.
#[derive(Subcommand)]
pub(super) enum Command {
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
    Migrate(Box<migrate::MigrateArgs>),
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
    /// Remove the pinned programs and maps of tier cut and of services from this network namespace. Their flows end.
    Detach {
        /// Also remove pins of network namespaces that are gone.
        #[arg(long)]
        all: bool,
    },
}

impl Command {
    /// Runs the command. `log` is the filter of its log.
    pub(super) fn run(self, log: &str) -> anyhow::Result<ExitCode> {
        match self {
            Self::Status(table) => show::print("/api/v1/status", &table, show::status),
            Self::Listeners(table) => show::print("/api/v1/listeners", &table, |of: &ListenersAnswer, form| {
                rows(&of.listeners, form)
            }),
            Self::Routes { table, selector } => {
                let of = |selector: String| format!("?selector={}", percent_encoded(&selector));
                let path = format!("/api/v1/routes{}", selector.map_or_else(String::new, of));
                show::print(&path, &table, |of: &RoutesAnswer, form| rows(&of.routes, form))
            }
            Self::Clusters(table) => show::print("/api/v1/clusters", &table, |of: &ClustersAnswer, form| {
                rows(&of.clusters, form)
            }),
            Self::Hosts(table) => show::print("/api/v1/hosts", &table, |of: &HostsAnswer, form| rows(&of.hosts, form)),
            Self::Flows(flows) => flows::print(&flows),
            Self::Applications { limit, table } => {
                let path = format!("/api/v1/applications?limit={limit}");
                show::print(&path, &table, |of: &ApplicationsAnswer, form| {
                    show::some_rows(&of.applications, of.total, form)
                })
            }
            Self::Explain {
                host,
                client,
                listener,
                path,
                show,
            } => {
                let details = [("client", client), ("listener", listener), ("path", path)];
                explain::explain(&host, &details, &show.socket, show.output)
            }
            Self::Diff { file, show } => explain::diff(&file, &show.socket, show.output),
            Self::Config(config::ConfigCommand::Show(show)) => config::show(&show),
            Self::Certificates { what, table } => certificates::run(what, &table),
            Self::Services(table) => services::print(&table),
            Self::Shield { what, table } => shield::run(what, &table),
            Self::Drops { follow, limit, show } => shield::drops(follow, limit, &show.socket, show.output),
            Self::Sources(table) => show::print("/api/v1/sources", &table, |of: &SourcesAnswer, form| {
                rows(&of.sources, form)
            }),
            #[cfg(feature = "tui")]
            Self::Top(args) => top::run(&args),
            Self::Events(what) => events::run(&what),
            Self::Dns(args) => dns::run(&args),
            Self::Export(export) => export::run(&export),
            Self::Rotate(what) => rotate::run(what),
            Self::Weight(weight) => weight::run(&weight),
            Self::Migrate(migrate) => migrate::run(*migrate),
            Self::Ha(what) => ha::run(what, log),
            Self::HaConfig(args) => ha_config::run(*args),
            Self::Doctor { show, verbose } => {
                let running = show.socket.exists().then(|| doctor::Running {
                    status: client::read(&show.socket, "/api/v1/status"),
                    ha: client::read(&show.socket, "/api/v1/ha"),
                    services: client::read(&show.socket, "/api/v1/services"),
                });
                doctor::run(show.output, verbose, running)
            }
            Self::Detach { all } => detach::run(all),
            Self::Unwrap { interface } => {
                let native = signalbox_kernel::l4::decap::attach(&interface)?;
                let place = if native {
                    "in the driver"
                } else {
                    "in the stack (generic XDP)"
                };
                println!("tunnels are decapsulated on {interface}, {place}, until `signalbox detach`");
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
