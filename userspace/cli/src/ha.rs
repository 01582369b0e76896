//! `signalbox ha`: the supervisor of virtual addresses, and operators' requests to it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hyper::Method;
use signalbox_api::ha::{
    Condition, GroupView, HaAnswer, HandOverAnswer, PeerView, ReclaimAnswer, ReclaimBody, SyncView,
};
use signalbox_core::availability::ha::notice::GroupState;
use signalbox_core::model::HighAvailability;
use signalbox_ha::{Directory, Settings};

use super::client;
use super::client::SocketArgs;
use super::show::{self, TableArgs, TableForm};
use signalbox_sources::client::percent_encoded;

/// Time for a group to leave this node, or to come back.
const MOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Same as [`MOVE_TIMEOUT`], with `signalbox ha run`: the kernel may take seconds to remove addresses, for example
/// while it removes network namespaces of containers.
const SUPERVISED_MOVE_TIMEOUT: Duration = Duration::from_secs(30);
const MOVE_INTERVAL: Duration = Duration::from_millis(50);
/// Time for other nodes to get this node's flows before it gives a group up.
const TELL_TIMEOUT: Duration = Duration::from_secs(5);
/// A node that is at most this far behind has the important flows. It gets the rest while addresses move.
const MAX_BEHIND_MS: u64 = 50;
const PATH: &str = "/api/v1/ha";

#[derive(clap::Subcommand)]
pub(super) enum HaCommand {
    /// Give virtual addresses to this node while it is eligible, until told to stop (SIGTERM: give them up; SIGHUP:
    /// reload).
    Run {
        /// The configuration file; reloaded when it changes.
        #[arg(short = 'f', long, env = "SIGNALBOX_CONFIG", value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        directory: DirectoryArgs,
        /// The admin socket of signalbox, instead of the one in the configuration.
        #[arg(long, env = "SIGNALBOX_SOCKET", value_name = "PATH")]
        socket: Option<PathBuf>,
    },
    /// Check whether this node is eligible for virtual addresses: signalbox is ready, and the check by port or script
    /// succeeds.
    ///
    /// Exits with 0 if it is, 1 if it is not. For `vrrp_script` in a hand-written keepalived.conf.
    Check {
        /// The configuration file.
        #[arg(short = 'f', long, env = "SIGNALBOX_CONFIG", value_name = "FILE")]
        config: PathBuf,
    },
    /// Show the groups of virtual addresses, and which of them this node has.
    Status(TableArgs),
    /// Show the other nodes with which flows are replicated.
    Sync(TableArgs),
    /// Give a group, or all groups, up to another node until they are reclaimed.
    ///
    /// Waits until the other nodes have this node's flows, and fails if they do not get them.
    Release {
        #[command(flatten)]
        group: GroupArgs,
        /// Release even if flows are lost.
        #[arg(long)]
        force: bool,
    },
    /// Let this node have a group, or all groups, again.
    Reclaim(GroupArgs),
}

#[derive(clap::Args)]
pub(super) struct DirectoryArgs {
    /// The runtime directory of `signalbox ha run`.
    #[arg(long, env = "SIGNALBOX_HA_DIR", default_value = signalbox_ha::DEFAULT_DIRECTORY, value_name = "DIR")]
    runtime_dir: PathBuf,
}

#[derive(clap::Args)]
pub(super) struct GroupArgs {
    /// The group [default: all groups].
    group: Option<String>,
    #[command(flatten)]
    directory: DirectoryArgs,
    #[command(flatten)]
    socket: SocketArgs,
}

pub(super) fn run(command: HaCommand, log: &str) -> anyhow::Result<ExitCode> {
    match command {
        HaCommand::Run {
            config,
            directory,
            socket,
        } => {
            super::logging::init(log).map_err(anyhow::Error::msg)?;
            let options = signalbox_ha::Options {
                config,
                directory: directory.runtime_dir,
                socket,
            };
            // keepalived ends with the thread that starts it, so that must be this one.
            one_thread()?.block_on(signalbox_ha::run(options))?;
            Ok(ExitCode::SUCCESS)
        }
        HaCommand::Check { config } => check(&config),
        HaCommand::Status(table) => status(&table),
        HaCommand::Sync(table) => sync(&table),
        HaCommand::Release { group, force } => {
            if !force {
                wait_until_told(&group)?;
            }
            set_released(&group, true)
        }
        HaCommand::Reclaim(args) => set_released(&args, false),
    }
}

/// Completes a section with data of this machine.
pub(super) fn settings(ha: HighAvailability) -> anyhow::Result<Settings> {
    Settings::new(ha, PathBuf::new())
}

fn one_thread() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn check(config: &Path) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let mut reasons = Vec::new();
    if settings.ha.watch.ready {
        match client::read::<HaAnswer>(&settings.socket, PATH) {
            Ok(answer) => reasons.extend(not_ready(&answer.node.unwrap_or_default().condition)),
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    if let Err(why) = one_thread()?.block_on(signalbox_ha::check::once(&settings)) {
        reasons.push(why);
    }
    if reasons.is_empty() {
        println!("healthy");
        return Ok(ExitCode::SUCCESS);
    }
    reasons.iter().for_each(|reason| eprintln!("{reason}"));
    Ok(ExitCode::FAILURE)
}

/// Says why signalbox is not ready.
fn not_ready(condition: &Condition) -> Option<String> {
    let reasons = condition.reasons.join("; ");
    (!condition.ready).then(|| format!("signalbox is not ready: {reasons}"))
}

fn status(args: &TableArgs) -> anyhow::Result<ExitCode> {
    show::print(PATH, args, status_text)
}

fn status_text(answer: &HaAnswer, form: TableForm) -> String {
    let Some(node) = &answer.node else {
        return "the configuration has no section `ha`: no addresses are shared".to_owned();
    };
    let mut notes = vec![format!("{} on {}, mode {}", node.name, node.node, node.mode)];
    if node.lacks_supervisor() {
        notes.push("! no `signalbox ha run` is connected: this node has no addresses".to_owned());
    }
    notes.extend(not_ready(&node.condition).map(|why| format!("! {why}")));
    if !node.condition.may_preempt {
        notes.push(
            "! this node does not know the flows of its peers yet: it does not take over groups from them".to_owned(),
        );
    }
    form.with_notes(show::rows(&answer.groups, form), notes)
}

fn sync(args: &TableArgs) -> anyhow::Result<ExitCode> {
    let ask = || {
        let answer: HaAnswer = client::read(&args.show.socket, PATH)?;
        Ok(serde_json::to_value(answer.node.and_then(|node| node.sync))?)
    };
    show::print_table(args, ask, |sync: &Option<SyncView>, form| match sync {
        None => "the configuration has no `ha.sync`: flows are not replicated".to_owned(),
        Some(sync) => show::rows(&sync.peers, form),
    })
}

/// Waits until every node that gets this node's flows has them, and there is at least one such node. Does not wait if
/// this node has none of the groups, does not replicate, or does not answer.
fn wait_until_told(args: &GroupArgs) -> anyhow::Result<()> {
    let deadline = Instant::now() + TELL_TIMEOUT;
    loop {
        let Ok(answer) = client::read::<HaAnswer>(&args.socket.socket, PATH) else {
            return Ok(());
        };
        let is_meant = |group: &GroupView| args.group.as_deref().is_none_or(|name| group.name == name);
        let is_ours = answer
            .groups
            .iter()
            .any(|group| is_owned_here(group) && is_meant(group));
        let peers = answer.node.and_then(|node| node.sync).unwrap_or_default().peers;
        let behind: Vec<_> = peers.iter().filter_map(why_behind).collect();
        if !is_ours || peers.is_empty() || is_told(&peers) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "nothing is released, because flows would be lost: {} (--force releases anyway)",
                behind.join("; ")
            );
        }
        std::thread::sleep(MOVE_INTERVAL);
    }
}

fn is_owned_here(group: &GroupView) -> bool {
    group.state == Some(GroupState::Master)
}

/// Whether at least one node gets flows, and no such node is behind.
fn is_told(peers: &[PeerView]) -> bool {
    let mut getting = peers.iter().filter(|peer| peer.sending).peekable();
    getting.peek().is_some() && getting.all(|peer| why_behind(peer).is_none())
}

/// Reason why a node does not have this node's flows.
fn why_behind(peer: &PeerView) -> Option<String> {
    let (name, behind_ms) = (&peer.node, peer.behind_ms);
    if !peer.sending {
        return Some(format!("{name} does not get them: {}", peer.send_error_text()));
    }
    if !peer.told_all {
        return Some(format!("{name} does not have all of them yet"));
    }
    (behind_ms > MAX_BEHIND_MS).then(|| format!("{name} is {behind_ms} ms behind"))
}

/// Makes this node release groups, or take them again, and waits until that has happened.
fn set_released(args: &GroupArgs, is_released: bool) -> anyhow::Result<ExitCode> {
    let directory = Directory::new(&args.directory.runtime_dir)?;
    let known = directory.groups().with_context(|| {
        let path = directory.path().display();
        format!("no `signalbox ha run` has {path} (is it running? --runtime-dir names another directory)")
    })?;
    let groups = match &args.group {
        Some(group) if known.contains(group) => vec![group.clone()],
        Some(group) => bail!("there is no group `{group}` (known: {})", known.join(", ")),
        None => known,
    };
    if !is_released && directory.is_ready() {
        reclaim(&args.socket.socket, &groups);
    }
    for group in &groups {
        if is_released {
            hand_over(&args.socket.socket, group);
        }
        directory.set_released(group, is_released)?;
    }
    let began = Instant::now();
    let may_wait = || {
        let limit = if is_supervised(&args.socket.socket) {
            SUPERVISED_MOVE_TIMEOUT
        } else {
            MOVE_TIMEOUT
        };
        began.elapsed() < limit
    };
    for group in &groups {
        while is_released && is_owned(&args.socket.socket, group) && may_wait() {
            std::thread::sleep(MOVE_INTERVAL);
        }
        if is_released && is_owned(&args.socket.socket, group) {
            bail!("{group}: this node still has it: is `signalbox ha run` running?");
        }
        println!("{group}: {}", if is_released { "released" } else { "reclaimed" });
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the connections of a group that cannot move along drain here, if this node has the group.
fn hand_over(socket: &Path, group: &str) {
    if !is_owned(socket, group) {
        return;
    }
    let path = format!("/api/v1/ha/groups/{}/hand-over", percent_encoded(group));
    match client::send::<HandOverAnswer>(socket, &Method::POST, &path, None::<&()>) {
        Ok(answer) => println!(
            "{group}: connections that are not cut drain here for {} s",
            answer.seconds
        ),
        Err(why) => eprintln!("{group}: connections that are not cut end now: {why:#}"),
    }
}

/// Makes the nodes with the groups hand them over before this node takes them. If that fails, for example because flows
/// are not replicated, the groups move anyway.
fn reclaim(socket: &Path, groups: &[String]) {
    let body = ReclaimBody {
        groups: groups.to_vec(),
    };
    let _ = client::send::<ReclaimAnswer>(socket, &Method::POST, "/api/v1/ha/reclaim", Some(&body));
}

/// Whether a `signalbox ha run` is connected and follows orders.
fn is_supervised(socket: &Path) -> bool {
    let answer = client::read::<HaAnswer>(socket, PATH);
    answer.is_ok_and(|answer| answer.node.is_some_and(|node| node.supervised))
}

/// Whether this node has a group, as reported by signalbox. If it does not answer, the node has none.
fn is_owned(socket: &Path, group: &str) -> bool {
    let answer = client::read::<HaAnswer>(socket, PATH).unwrap_or_default();
    let mut groups = answer.groups.iter();
    groups.any(|one| one.name == group && is_owned_here(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(is_sending: bool, told_all: bool, behind_ms: u64) -> PeerView {
        PeerView {
            node: "b".into(),
            sending: is_sending,
            told_all,
            behind_ms,
            ..PeerView::default()
        }
    }

    #[test]
    fn a_node_that_gets_flows_must_have_them() {
        assert!(is_told(&[peer(true, true, 50)]));
        assert!(!is_told(&[peer(true, true, 51)]) && !is_told(&[peer(true, false, 0)]));
        assert!(!is_told(&[peer(true, true, 0), peer(true, false, 0)]));
    }

    #[test]
    fn a_node_that_is_down_is_no_obstacle_beside_another() {
        assert!(is_told(&[peer(false, false, 0), peer(true, true, 0)]));
        assert!(!is_told(&[peer(false, false, 0)]) && !is_told(&[]));
        assert_eq!(
            why_behind(&peer(false, false, 0)).as_deref(),
            Some("b does not get them: it is not connected")
        );
    }
}
