//! A real kube-apiserver for the end-to-end tests. No Debian release has its program, but Debian 12 has its source:
//! Kubernetes 1.20, which is built once, with Debian's Go, and kept.

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

/// The program that the tests of module `apiserver` start.
pub(crate) const VARIABLE: &str = "SIGNALBOX_KUBE_APISERVER";
/// The last release of Debian that has the source of the whole server.
const SUITE: &str = "bookworm";
/// Kubernetes 1.20 brings a version that reads the maps of Go before 1.18.
const REFLECT2: &str = "golang-github-modern-go-reflect2-dev";
const MODULE: &str = "k8s.io/kubernetes";

/// `kube-apiserver`: builds it if it is missing, and prints its path.
pub(crate) fn run() -> Result<()> {
    println!("{VARIABLE}={}", find()?.display());
    Ok(())
}

/// The program that the variable names, the one that was built before, or a new one: ten minutes of work on two cores.
pub(crate) fn find() -> Result<PathBuf> {
    if let Some(given) = env::var_os(VARIABLE).map(PathBuf::from) {
        if !given.is_file() {
            bail!("{VARIABLE} names {}, which is not a file", given.display());
        }
        return Ok(given);
    }
    let dir = store::dir("kube-apiserver")?;
    let program = dir.join("kube-apiserver");
    if !program.is_file() {
        let work = dir.join("build");
        build(&work, &program).context("kube-apiserver cannot be built")?;
        fs::remove_dir_all(work)?;
    }
    Ok(program)
}

fn build(work: &Path, program: &Path) -> Result<()> {
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

    let generator = work.join("openapi-gen");
    go_build(
        work,
        &source,
        &generator,
        "./vendor/k8s.io/kube-openapi/cmd/openapi-gen",
    )?;
    let described = described_packages(&source)?;
    let mut openapi = Command::new(&generator);
    openapi
        .args(["--logtostderr", "-O", "zz_generated.openapi", "-r", "/dev/null"])
        .args(["-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"])
        .args(["-p", &format!("{MODULE}/pkg/generated/openapi"), "-i", &described])
        .current_dir(&source)
        .envs(go_path(work));
    quietly(&mut openapi)?;

    let built = work.join("kube-apiserver");
    go_build(work, &source, &built, "./cmd/kube-apiserver")?;
    fs::rename(&built, program).with_context(|| format!("{} cannot be moved", built.display()))
}

/// Fetches the sources and puts them together.
fn unpack(work: &Path, source: &Path) -> Result<()> {
    eprintln!("fetching the source of kube-apiserver");
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
    let words = ["go", "build", "-ldflags=-s -w", "-o"];
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
