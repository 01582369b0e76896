//! Finds out which revision is built, and by which profile, for `signalbox --version` and `signalbox_build_info`.

fn main() {
    let profile = profile().unwrap_or_else(|| "unknown".into());
    let revision = git(&["--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=SIGNALBOX_REVISION={revision}");
    println!("cargo::rustc-env=SIGNALBOX_PROFILE={profile}");
    println!("cargo::rerun-if-changed=build.rs");
    // The log of HEAD has each commit. A program for development is not built again for each of them.
    let follows = if profile == "debug" { "HEAD" } else { "logs/HEAD" };
    if let Some(path) = git(&["--git-path", follows]) {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// Output of `git rev-parse`; `None` outside of a repository.
fn git(question: &[&str]) -> Option<String> {
    let said = std::process::Command::new("git")
        .arg("rev-parse")
        .args(question)
        .output()
        .ok()?;
    let text = String::from_utf8(said.stdout).ok().filter(|_| said.status.success())?;
    Some(text.trim().to_owned())
}

/// Name of the profile's folder: cargo's own variable calls `dist` a release too.
fn profile() -> Option<String> {
    // target/PROFILE/build/signalbox-HASH/out
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR")?);
    let folder = out.ancestors().nth(3)?.file_name()?.to_str()?;
    Some(folder.to_owned())
}
