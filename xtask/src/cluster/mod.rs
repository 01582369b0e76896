//! `cluster`: a Kubernetes of several nodes on this machine, to try the packaged manifests on. Each node has network,
//! mounts and processes of its own, and is no virtual machine.
//!
//! `cluster up` owns the cluster: everything ends with that process. Other commands find the cluster by its name.

mod images;
mod network;
mod nodes;
mod pki;
mod plane;
mod process;
mod routers;

use std::{
    ffi::OsString,
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Subcommand;

use crate::{exec::is_root, kube, lint::kube_tools, root::root, vm::store::quietly};

#[derive(clap::Args)]
pub(crate) struct ClusterArgs {
    /// Name of the cluster, where several stand side by side
    #[arg(long, global = true, default_value = "lab", value_parser = name)]
    name: String,
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a cluster, and keep it until Ctrl-C
    Up {
        /// Nodes, the last of which runs the routers; the others are infra nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9))]
        nodes: u8,
        /// Program in the image instead of one that is built
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
    },
    /// Call kubectl as the cluster's administrator
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Apply an overlay of packaging/k8s, or any directory that kustomize can build
    Apply { overlay: String },
    /// Remove what `apply` has made
    Delete { overlay: String },
    /// Kill a node: all its processes, and its link
    Kill { node: String },
    /// Start a node that was killed
    Start { node: String },
    /// Remove what a cluster has left that was killed
    Down,
}

/// How long programs of some 100 MB may take to start on a machine whose processors others use, too.
const START_TIMEOUT: Duration = Duration::from_secs(240);

/// Where a cluster's files are, and its programs.
struct Cluster {
    name: String,
    dir: PathBuf,
    /// Programs of Kubernetes, and below `node` those of a node.
    programs: PathBuf,
}

pub(crate) fn run(args: ClusterArgs) -> Result<()> {
    ensure!(
        is_root(),
        "a cluster has namespaces and mounts of its own: run this as root"
    );
    let cluster = Cluster {
        dir: Path::new("/var/tmp/signalbox-cluster").join(&args.name),
        name: args.name,
        programs: kube::programs()?,
    };
    match args.task {
        Task::Up { nodes, program } => cluster.up(nodes, program),
        Task::Kubectl { args } => cluster.kubectl().args(args).replace(),
        Task::Apply { overlay } => cluster.send(&overlay, "apply"),
        Task::Delete { overlay } => cluster.send(&overlay, "delete"),
        Task::Kill { node } => nodes::kill(&cluster, &node),
        Task::Start { node } => nodes::restart(&cluster, &node),
        Task::Down => cluster.down(),
    }
}

/// A name of network namespaces, and of a directory.
fn name(text: &str) -> Result<String, String> {
    let is_plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if is_plain && (1..=20).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err("a name has 1 to 20 letters a-z and digits".to_owned())
    }
}

impl Cluster {
    fn up(&self, nodes: u8, program: Option<PathBuf>) -> Result<()> {
        self.down()?;
        fs::create_dir_all(&self.dir)?;
        // Keys are in it, and numbers of processes that root kills.
        fs::set_permissions(&self.dir, Permissions::from_mode(0o700))?;
        let start = Instant::now();
        images::make(&self.dir.join("images"), program)?;
        pki::write(&self.dir.join("pki"), nodes)?;
        network::make(self, nodes)?;
        self.say(&start, "images and network are there");
        plane::start(self)?;
        self.say(&start, "the API server is ready");
        nodes::start(self, nodes)?;
        nodes::label(self, nodes)?;
        self.say(&start, "the nodes are ready");
        routers::apply(self)?;
        self.say(&start, "the routers are ready");
        println!("KUBECONFIG={}", self.kubeconfig().display());
        std::io::stdout().flush()?;
        process::until_told_to_end()?;
        self.down()
    }

    fn say(&self, start: &Instant, what: &str) {
        eprintln!("{:5.1} s: {}: {what}", start.elapsed().as_secs_f64(), self.name);
    }

    /// Ends the processes, and removes namespaces, cgroups and files.
    fn down(&self) -> Result<()> {
        if let Ok(found) = fs::symlink_metadata(&self.dir) {
            ensure!(
                found.is_dir() && found.uid() == 0,
                "{} is not root's directory: remove it",
                self.dir.display()
            );
        }
        process::end_all(&self.dir.join("pids"))?;
        network::remove(self)?;
        nodes::remove_cgroups(self)?;
        if self.dir.exists() {
            fs::remove_dir_all(&self.dir).with_context(|| format!("{} cannot be removed", self.dir.display()))?;
        }
        Ok(())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.join("pki/admin.kubeconfig")
    }

    /// The program of a package of Debian that a node has.
    fn node_program(&self, path: &str) -> PathBuf {
        self.programs.join("node").join(path)
    }

    /// Name of a network namespace: that of the control plane (`cp`), of a node (`n1`), or of clients (`client`).
    fn namespace(&self, of: &str) -> String {
        format!("sbk-{}-{of}", self.name)
    }

    /// A command in a network namespace of the cluster.
    fn command_in(&self, namespace: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        // Not `ip netns exec`, which mounts a /sys of its own, without the cgroups.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(namespace)));
        command.arg(program);
        command
    }

    fn kubectl(&self) -> Kubectl {
        let mut command = self.command_in("cp", self.node_program("usr/bin/kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig());
        Kubectl(command)
    }

    /// Builds an overlay by kustomize, and gives its objects to kubectl, whose own kustomize is older than components.
    fn send(&self, overlay: &str, verb: &str) -> Result<()> {
        let packaged = root()?.join("packaging/k8s/overlays").join(overlay);
        let directory = if packaged.is_dir() { packaged } else { overlay.into() };
        let objects = quietly(Command::new(kube_tools::kustomize()?).arg("build").arg(&directory))?;
        self.kubectl().args([verb, "-f", "-"]).input(&objects)
    }
}

/// A call of kubectl.
struct Kubectl(Command);

impl Kubectl {
    fn args<A: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.0.args(args);
        self
    }

    fn replace(mut self) -> Result<()> {
        use std::os::unix::process::CommandExt as _;
        Err(self.0.exec()).context("kubectl cannot be started")
    }

    fn input(mut self, text: &str) -> Result<()> {
        let mut child = self
            .0
            .stdin(Stdio::piped())
            .spawn()
            .context("kubectl cannot be started")?;
        child.stdin.take().context("a pipe")?.write_all(text.as_bytes())?;
        let status = child.wait()?;
        ensure!(status.success(), "kubectl failed: {status}");
        Ok(())
    }

    fn output(mut self) -> Result<String> {
        quietly(&mut self.0)
    }
}

/// Asks until the answer is right, or the time is up.
fn eventually(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + START_TIMEOUT;
    while !is_so()? {
        if Instant::now() > until {
            bail!("after {} s: {what}", START_TIMEOUT.as_secs());
        }
        thread::sleep(Duration::from_millis(300));
    }
    Ok(())
}
