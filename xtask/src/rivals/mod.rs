//! Rivals that `cargo xtask bench` compares with: the versions that a user would install today. They are installed
//! once, each in a separate place below the cache directory, and kept. [`list`] says which, [`install`] how, [`wanted`]
//! for which runs.

mod install;
mod list;
mod wanted;

use std::{env, ffi::OsString, path::PathBuf};

use anyhow::{Result, bail};

use crate::vm::store;
use list::{RIVALS, Rival, Source};

/// End of the variable that holds the reason why a rival is missing.
const MISSING: &str = "_MISSING";

/// `rivals`: installs the rivals that are missing, and prints their paths.
pub(crate) fn run() -> Result<()> {
    let mut missing = Vec::new();
    for rival in &RIVALS {
        match rival.find(true) {
            Ok(place) => println!("{}={}", rival.variable, place.display()),
            Err(error) => {
                eprintln!("{} is not installed: {error:#}", rival.name);
                missing.push(rival.name);
            }
        }
    }
    if !missing.is_empty() {
        bail!("not installed: {}", missing.join(", "));
    }
    Ok(())
}

/// Variables that tell signalbox-bench, when it runs with these arguments, where the rivals are; for an unavailable
/// one, the reason.
pub(crate) fn environment(args: &[OsString]) -> Vec<(String, OsString)> {
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let may_install = !words.iter().any(|word| word == "--no-install");
    let entry = |rival: &Rival| match rival.find(may_install) {
        Ok(place) => (rival.variable.to_owned(), place.into()),
        Err(error) => {
            eprintln!(
                "{} is not installed, and the run goes on without it: {error:#}",
                rival.name
            );
            // The reason goes into results: without the paths of this machine that its causes name.
            (rival.variable.to_owned() + MISSING, OsString::from(error.to_string()))
        }
    };
    let rivals = RIVALS.iter().filter(|rival| wanted::is_wanted(rival.name, &words));
    rivals.map(entry).collect()
}

impl Rival {
    /// The place that the variable names, the one that was installed before, or a new one.
    fn find(&self, may_install: bool) -> Result<PathBuf> {
        if let Some(given) = env::var_os(self.variable).map(PathBuf::from) {
            if !given.exists() {
                bail!("{} names {}, which does not exist", self.variable, given.display());
            }
            return Ok(given);
        }
        let dir = store::dir("rivals")?.join(self.folder);
        let place = match self.source {
            Source::Debian { .. } => dir.clone(),
            Source::PyPi { .. } => dir.join(install::PROGRAM),
        };
        if !place.exists() {
            if !may_install {
                bail!("it was not installed before, and --no-install was given; `cargo xtask rivals` installs it");
            }
            eprintln!("installing {} for the benchmarks", self.folder);
            install::install(self, &dir)?;
        }
        Ok(place)
    }
}
