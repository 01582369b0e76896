//! `cargo xtask lab`: a client, a balancer and two clusters of HAProxy router hosts, each in a separate network
//! namespace, to be tried by hand until Ctrl-C.
//!
//! `signalbox demo` needs no root and has all on loopback, where tier `cut` has no programs. Here there are links
//! between them, so that flows are cut through.
//!
//! Owns: the processes, the order of their start, and the messages about them. Never: the operator's experiments; a
//! killed balancer or router host stays dead until the operator restarts it, because the lab is to show what works
//! without it.

mod app;
mod balancer;
mod client;
mod guide;
mod network;
mod ready;
mod router;
mod site;
mod watch;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::{interrupt, packages, product};
use balancer::Balancer;
use network::Network;
use router::Router;
use site::Site;

/// Start a client, signalbox and two clusters of HAProxy router hosts in network namespaces, print commands to try,
/// and remove everything on Ctrl-C.
#[derive(clap::Args)]
pub(crate) struct PlaygroundArgs {
    /// The signalbox to run, instead of one built from this checkout
    #[arg(long, value_name = "PATH")]
    signalbox: Option<PathBuf>,
    /// Letters and digits that follow `sblab` in all names, for a lab beside another one
    #[arg(long, value_name = "NAME", default_value = "")]
    name: String,
    /// Do not install missing packages
    #[arg(long)]
    no_install: bool,
}

/// Runs the lab until it is stopped.
pub(crate) fn run(args: &PlaygroundArgs) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "network namespaces need root");
    packages::ensure_installed(&packages::LAB, !args.no_install)?;
    let signalbox = product::signalbox(args.signalbox.as_deref(), product::TRIED)?;
    interrupt::install()?;
    // Declared in this order: the first is dropped last.
    let site = Site::take(&args.name, &signalbox)?;
    let network = Network::new(&site)?;
    let mut routers = Router::all(&site, &network)?;
    let mut balancer = Balancer::new(&site, &network)?;
    ready::wait(&site, &network, &mut balancer, &mut routers)?;
    say(&guide::text(&site));
    watch::until_interrupted(&mut balancer, &mut routers);
    say("\nRemoving it all.");
    Ok(())
}

/// Prints to standard output. If the reader has gone, such as a closed terminal, the lab must still clean up before it
/// ends.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
