//! Finds out which revision is built, for `signalbox --version` and `signalbox_build_info`.

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
    println!("cargo::rerun-if-changed=../.git/HEAD");
}
