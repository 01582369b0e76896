//! `signalbox dns`: DNS records of the routed names.

mod routed;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use serde_json::{Value, json};
use signalbox_core::discovered::dns::{self, DnsTable, MAX_TTL, NameServer, OwnerNames, ZoneHead};
use signalbox_core::wire::hostname::{Hostname, HostnamePattern};

use self::routed::RoutedNames;
use super::OutputFormat;
use super::client::SocketArgs;
use super::config::config_exit_code;
use super::show::{Column, TableForm, TableRow, emit, print_text, rows};

/// Maximum number of names that a message lists.
const MAX_NAMED: usize = 10;

#[derive(clap::Args)]
pub(super) struct DnsArgs {
    /// A configuration file to take names and listeners from, instead of the running signalbox.
    #[arg(short = 'f', long, alias = "file", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Format of the records.
    #[arg(short, long, default_value = "table")]
    output: DnsFormat,
    /// Time for which resolvers may keep a record, in seconds.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_TTL)))]
    ttl: u32,
    /// The zone that all names must be in; in zone files, names are written relative to it.
    #[arg(long, value_name = "NAME", value_parser = zone)]
    zone: Option<Hostname>,
    /// Leave out names that are not in the zone.
    #[arg(long, requires = "zone")]
    skip_outside: bool,
    /// A name server of the zone, with its addresses if it is in the zone; needed for a complete zone file. The first
    /// one is the primary.
    #[arg(long, requires = "zone", value_name = "NAME[=IP,...]", value_parser = name_server)]
    name_server: Vec<NameServer>,
    /// Serial number of the complete zone file [default: seconds since 1970].
    #[arg(long, requires = "name_server", value_name = "NUMBER")]
    serial: Option<u32>,
    /// An address at which clients reach the listeners, instead of virtual addresses and those of the listeners.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// Only the addresses of this listener.
    #[arg(long, value_name = "NAME")]
    listener: Vec<String>,
    /// Print only the rows of the table, without titles.
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    at: SocketArgs,
}

/// A form of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DnsFormat {
    /// A table for a person.
    Table,
    /// A zone file, or records for one.
    Bind,
    /// Lines for dnsmasq's configuration.
    Dnsmasq,
    /// JSON.
    Json,
    /// YAML, with the fields of JSON.
    Yaml,
}

fn zone(text: &str) -> Result<Hostname, String> {
    Hostname::parse(text.as_bytes()).map_err(|error| error.to_string())
}

fn name_server(text: &str) -> Result<NameServer, String> {
    let (name, addresses) = text
        .split_once('=')
        .map_or((text, None), |(name, all)| (name, Some(all)));
    let address = |text: &str| {
        let parsed = text.parse::<IpAddr>();
        parsed.map_err(|_| format!("{text:?} is not an address; write ns1.example.com=192.0.2.53"))
    };
    let addresses = addresses.map_or_else(|| Ok(Vec::new()), |all| all.split(',').map(address).collect());
    Ok(NameServer {
        name: zone(name)?,
        addresses: addresses?,
    })
}

pub(super) fn run(args: &DnsArgs) -> anyhow::Result<ExitCode> {
    let routed = match &args.config {
        Some(file) => match signalbox_config::load(file) {
            Ok(parsed) => routed::in_file(&parsed.model),
            Err(error) => {
                eprintln!("{error}");
                return Ok(config_exit_code(&error));
            }
        },
        None => routed::in_force(&args.at.socket)?,
    };
    let records = records(args, routed)?;
    match args.output {
        DnsFormat::Bind => print_text(&zone_file(args, &records)?)?,
        DnsFormat::Dnsmasq => print_text(&records.dnsmasq_text())?,
        DnsFormat::Json => emit(&as_json(&records), OutputFormat::Json)?,
        DnsFormat::Yaml => emit(&as_json(&records), OutputFormat::Yaml)?,
        DnsFormat::Table => {
            let form = TableForm::of_output().with_headers(!args.no_headers);
            let ttl = records.ttl;
            let all = records.records().map(|of| RecordLine {
                name: of.name.to_string(),
                kind: of.kind,
                address: of.address,
                ttl,
            });
            print_text(&rows(&all.collect::<Vec<_>>(), form))?;
            records.notes.iter().for_each(|note| eprintln!("note: {note}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Records of the routed names, as the arguments ask.
fn records(args: &DnsArgs, mut routed: RoutedNames) -> anyhow::Result<DnsTable> {
    routed.keep_listeners(&args.listener)?;
    let reached = dns::reached_at(&routed.binds, &routed.vips, &args.address);
    if reached.addresses.is_empty() {
        let why = if reached.notes.is_empty() {
            "no listener routes by name; give the addresses by --address".to_owned()
        } else {
            reached.notes.join("\n  ")
        };
        bail!("no address is known for the records:\n  {why}");
    }
    let OwnerNames {
        names,
        covered,
        outside,
        unfit,
    } = dns::owner_names(&routed.names, args.zone.as_ref());
    let mut notes = routed.notes;
    notes.extend(reached.notes);
    if let (Some(zone), false) = (&args.zone, outside.is_empty()) {
        let said = format!("not in the zone {zone}: {}", listed(&outside));
        if !args.skip_outside {
            bail!("{said}\n  give another --zone, or leave them out by --skip-outside");
        }
        notes.push(said);
    }
    if !unfit.is_empty() {
        notes.push(format!(
            "left out, because the name is not valid for a host in DNS: {}",
            listed(&unfit)
        ));
    }
    if !covered.is_empty() {
        notes.push(format!(
            "wildcards answer for the names below them: {}",
            listed(&covered)
        ));
    }
    if names.is_empty() {
        bail!("no name is routed that could have a record\n  {}", notes.join("\n  "));
    }
    Ok(DnsTable {
        names,
        addresses: reached.addresses,
        ttl: args.ttl,
        zone: args.zone.clone(),
        notes,
    })
}

fn listed(names: &[HostnamePattern]) -> String {
    let named: Vec<String> = names.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    named.join(", ") + &more
}

fn zone_file(args: &DnsArgs, records: &DnsTable) -> anyhow::Result<String> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let serial = args.serial.or_else(|| u32::try_from(now.as_secs()).ok());
    let head = (!args.name_server.is_empty()).then(|| ZoneHead {
        servers: args.name_server.clone(),
        serial: serial.unwrap_or(1),
    });
    records
        .bind_text(head.as_ref())
        .map_err(|error| anyhow!("--name-server: {error}"))
}

/// Line of a table of records.
struct RecordLine {
    name: String,
    kind: &'static str,
    address: IpAddr,
    ttl: u32,
}

impl TableRow for RecordLine {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NAME", |of| (&of.name).into()),
        ("TYPE", |of| of.kind.into()),
        ("ADDRESS", |of| of.address.to_string().into()),
        ("TTL", |of| of.ttl.into()),
    ];
}

fn as_json(records: &DnsTable) -> Value {
    let all = records.records().map(
        |record| json!({ "name": record.name, "type": record.kind, "address": record.address, "ttl": records.ttl }),
    );
    let zone = records.zone.as_ref().map(Hostname::as_str);
    json!({ "zone": zone, "records": all.collect::<Vec<_>>(), "notes": records.notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_server_may_have_addresses() {
        let server = name_server("NS1.example.com=192.0.2.53,2001:db8::53").unwrap();
        assert_eq!(server.name.as_str(), "ns1.example.com");
        assert_eq!(server.addresses.len(), 2);
        assert_eq!(name_server("ns1.example.com").unwrap().addresses, [] as [IpAddr; 0]);
        assert!(
            name_server("ns1.example.com=")
                .unwrap_err()
                .contains("is not an address")
        );
        assert!(name_server("n s").is_err());
    }

    #[test]
    fn a_long_list_is_told_in_part() {
        let name = |number: usize| HostnamePattern::parse(&format!("a{number}.test")).unwrap();
        let names: Vec<_> = (0..12).map(name).collect();
        assert!(listed(&names).ends_with("a9.test and 2 more"));
        assert_eq!(listed(&names[..2]), "a0.test, a1.test");
    }
}
