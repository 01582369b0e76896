//! A real Kubernetes for the end-to-end tests. No Debian release has its servers, but Debian 12 has their source:
//! Kubernetes 1.20, which is built once, with Debian's Go, and kept. What a node runs beside it are packages of Debian 12,
//! unpacked and not installed.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    exec::{Run, find_program},
    mirror::Apt,
    vm::store::{self, quietly},
};

/// The program that the tests of module `kube::apiserver` start.
pub(crate) const API_SERVER: &str = "SIGNALBOX_KUBE_APISERVER";
/// The folder of programs that the tests of module `cluster` start.
pub(crate) const PROGRAMS: &str = "SIGNALBOX_KUBE_BIN";
/// The last release of Debian that has the source of the whole server.
const SUITE: &str = "bookworm";
/// Kubernetes 1.20 brings a version that reads the maps of Go before 1.18.
const REFLECT2: &str = "golang-github-modern-go-reflect2-dev";
const MODULE: &str = "k8s.io/kubernetes";
/// Version of the source, which nodes report.
const VERSION: &str = "v1.20.2";

const KUBE_API_SERVER: &str = "kube-apiserver";
/// Programs that are built from Kubernetes' source.
const BUILT: [&str; 5] = [
    KUBE_API_SERVER,
    "kubelet",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
];
/// Packages with the programs of a node: the container runtime, and plugins for the pods' network.
const NODE_PACKAGES: [&str; 5] = [
    "containerd",
    "runc",
    "containernetworking-plugins",
    "kubernetes-client",
    "busybox-static",
];

/// `kube`: builds what is missing, and prints where it is.
pub(crate) fn run() -> Result<()> {
    println!("{API_SERVER}={}", api_server()?.display());
    println!("{PROGRAMS}={}", programs()?.display());
    Ok(())
}

/// The API server: the program that the variable names, the one that was built before, or a new one.
pub(crate) fn api_server() -> Result<PathBuf> {
    if let Some(given) = env::var_os(API_SERVER).map(PathBuf::from) {
        if !given.is_file() {
            bail!("{API_SERVER} names {}, which is not a file", given.display());
        }
        return Ok(given);
    }
    Ok(built(&[KUBE_API_SERVER])?.join(KUBE_API_SERVER))
}

/// The programs of a cluster, in one folder: that which the variable names, or one that is made. A quarter of an hour of
/// work on two cores.
pub(crate) fn programs() -> Result<PathBuf> {
    if let Some(given) = env::var_os(PROGRAMS).map(PathBuf::from) {
        if let Some(missing) = BUILT.iter().find(|name| !given.join(name).is_file()) {
            bail!("{PROGRAMS} names {}, which has no {missing}", given.display());
        }
        return Ok(given);
    }
    let dir = built(&BUILT)?;
    if !dir.join("node/complete").is_file() {
        unpack_node_packages(&dir.join("node")).context("the packages of a node cannot be unpacked")?;
    }
    Ok(dir)
}

/// Builds the programs that are missing in the store. Returns its folder.
fn built(names: &[&str]) -> Result<PathBuf> {
    let dir = store::dir("kubernetes-1.20.2")?;
    let missing: Vec<&str> = names.iter().copied().filter(|name| !dir.join(name).is_file()).collect();
    if !missing.is_empty() {
        let work = dir.join("build");
        build(&work, &missing, &dir).with_context(|| format!("{} cannot be built", missing.join(", ")))?;
        fs::remove_dir_all(work)?;
    }
    Ok(dir)
}

fn unpack_node_packages(dir: &Path) -> Result<()> {
    let apt = Apt::of(&[SUITE], &[])?;
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    apt.unpack(NODE_PACKAGES, dir)?;
    fs::write(dir.join("complete"), "")?;
    Ok(())
}

fn build(work: &Path, programs: &[&str], to: &Path) -> Result<()> {
    if find_program("go").is_none() {
        bail!("there is no Go compiler; on Debian: apt-get install golang-go");
    }
    let _ = fs::remove_dir_all(work);
    fs::create_dir_all(work)?;
    // As Go sees it from within.
    let work = &work.canonicalize()?;
    // Where Go looks for packages by their names, without modules.
    let source = work.join("src").join(MODULE);
    fs::create_dir_all(source.parent().unwrap_or(work))?;
    unpack(work, &source)?;
    if programs.contains(&KUBE_API_SERVER) {
        describe_types(work, &source)?;
    }
    for program in programs {
        let built = work.join(program);
        go_build(work, &source, &built, &format!("./cmd/{program}"))?;
        fs::rename(&built, to.join(program)).with_context(|| format!("{} cannot be moved", built.display()))?;
    }
    Ok(())
}

/// Generates the description of the API's types, which Debian's source lacks.
fn describe_types(work: &Path, source: &Path) -> Result<()> {
    let generator = work.join("openapi-gen");
    go_build(work, source, &generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")?;
    let described = described_packages(source)?;
    let mut openapi = Command::new(&generator);
    openapi
        .args(["--logtostderr", "-O", "zz_generated.openapi", "-r", "/dev/null"])
        .args(["-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"])
        .args(["-p", &format!("{MODULE}/pkg/generated/openapi"), "-i", &described])
        .current_dir(source)
        .envs(go_path(work));
    quietly(&mut openapi).map(drop)
}

/// Fetches the sources and puts them together.
fn unpack(work: &Path, source: &Path) -> Result<()> {
    eprintln!("fetching the source of Kubernetes");
    let apt = Apt::with_sources(SUITE)?;
    let get = |words: &[&str]| quietly(apt.command("apt-get").arg("-qq").args(words).current_dir(work));
    get(&["source", "--download-only", "kubernetes"])?;
    get(&["download", REFLECT2])?;
    // apt has checked both against the archive's signature.
    let description = with_ending(work, "dsc")?;
    quietly(
        Command::new("dpkg-source")
            .args(["--no-check", "-x"])
            .arg(description)
            .arg(source),
    )?;
    let newer = work.join("reflect2");
    quietly(
        Command::new("dpkg-deb")
            .arg("-x")
            .arg(with_ending(work, "deb")?)
            .arg(&newer),
    )?;
    let place = source.join("vendor/github.com/modern-go/reflect2");
    fs::remove_dir_all(&place).with_context(|| format!("{} is not there", place.display()))?;
    fs::rename(newer.join("usr/share/gocode/src/github.com/modern-go/reflect2"), place)?;
    Ok(())
}

fn with_ending(dir: &Path, ending: &str) -> Result<PathBuf> {
    let files = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let found = files
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == ending));
    found.with_context(|| format!("apt has left no file *.{ending} in {}", dir.display()))
}

fn go_build(work: &Path, source: &Path, to: &Path, package: &str) -> Result<()> {
    // Without the clouds' libraries: half of the time.
    let flags = format!("-ldflags=-s -w -X {MODULE}/vendor/k8s.io/component-base/version.gitVersion={VERSION}");
    let words = ["go", "build", "-tags", "providerless dockerless", &flags, "-o"];
    let go = Run::new("nice")?.args(words).args([to.as_os_str(), package.as_ref()]);
    let go = go_path(work)
        .into_iter()
        .fold(go, |go, (name, value)| go.env(name, value));
    go.dir(source).run()
}

/// Go finds packages only by their place, and keeps its build cache for the duration of the build.
fn go_path(work: &Path) -> [(&'static str, OsString); 5] {
    [
        ("GOPATH", work.into()),
        ("GOCACHE", work.join("cache").into()),
        ("GO111MODULE", "off".into()),
        ("GOFLAGS", "".into()),
        ("CGO_ENABLED", "0".into()),
    ]
}

/// The packages whose types are described to clients, by their marks, as Kubernetes' Makefile finds them.
fn described_packages(source: &Path) -> Result<String> {
    let files = quietly(
        Command::new("grep")
            .args(["-rl", "--include=*.go", "^// +k8s:openapi-gen=", "pkg", "staging/src"])
            .current_dir(source),
    )?;
    let packages = files
        .lines()
        .filter(|file| !file.contains("/code-generator/") && !file.contains("/sample-apiserver/"));
    let mut names: Vec<String> = packages
        .filter_map(|file| Path::new(file).parent()?.to_str())
        .map(|package| format!("{MODULE}/{}", package.replace("staging/src/", "vendor/")))
        .collect();
    names.sort();
    names.dedup();
    Ok(names.join(","))
}
