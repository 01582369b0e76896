//! Finds out which revision is built, and by which profile, for `signalbox --version` and `signalbox_build_info`.

fn main() {
    let revision = std::process::Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok();
    let revision = revision
        .filter(|out| out.status.success())
        .and_then(|out| String::from_utf8(out.stdout).ok());
    println!(
        "cargo::rustc-env=SIGNALBOX_REVISION={}",
        revision.as_deref().unwrap_or("unknown").trim()
    );
    println!(
        "cargo::rustc-env=SIGNALBOX_PROFILE={}",
        profile().as_deref().unwrap_or("unknown")
    );
    println!("cargo::rerun-if-changed=../.git/HEAD");
}

/// Name of the profile's folder: cargo's own variable calls `dist` a release too.
fn profile() -> Option<String> {
    // target/PROFILE/build/signalbox-HASH/out
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR")?);
    let folder = out.ancestors().nth(3)?.file_name()?.to_str()?;
    Some(folder.to_owned())
}
