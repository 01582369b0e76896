//! Runs other programs: prints the command, and on failure which command it was and how it ended.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::root::root;

/// Unsets the variables that `cargo run` has set for xtask. ring's build script reads them: with other values than in a
/// shell, cargo would build ring again, and all crates that depend on ring.
pub(crate) fn without_package_env(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// A command that is printed before it runs. By default it runs in the root of the checkout.
pub(crate) struct Run {
    command: Command,
    /// Variables that were set here, to be printed: the rest of the environment is the caller's.
    shown_env: Vec<String>,
}

impl Run {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Result<Self> {
        let mut command = Command::new(program);
        command.current_dir(root()?);
        without_package_env(&mut command);
        Ok(Self {
            command,
            shown_env: Vec::new(),
        })
    }

    /// A command of the cargo that runs xtask, so that a toolchain chosen with `cargo +x` stays chosen.
    pub(crate) fn cargo<const N: usize>(args: [&str; N]) -> Result<Self> {
        Ok(Self::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))?.args(args))
    }

    /// A command that runs as root: directly, or by sudo.
    pub(crate) fn as_root(program: &str) -> Result<Self> {
        if is_root() {
            Self::new(program)
        } else {
            Ok(Self::new("sudo")?.args([program]))
        }
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.shown_env.push(format!("{name}={}", quoted(value.as_ref())));
        self.command.env(name, value);
        self
    }

    /// Unsets a variable that would change the meaning of the command.
    pub(crate) fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Runs the command with our own stdout and stderr.
    pub(crate) fn run(mut self) -> Result<()> {
        let line = self.announce();
        let status = self.command.status().with_context(|| cannot_start(&line))?;
        if !status.success() {
            bail!("`{line}` failed: {status}");
        }
        Ok(())
    }

    /// Runs the command in place of this process; returns only if that fails.
    pub(crate) fn replace(mut self) -> Result<()> {
        let line = self.announce();
        Err(self.command.exec()).with_context(|| cannot_start(&line))
    }

    /// Runs the command and passes its output on, line by line, also to `each`.
    pub(crate) fn run_tee(mut self, mut each: impl FnMut(&str)) -> Result<()> {
        let line = self.announce();
        let (said, says) = std::io::pipe().context("no pipe")?;
        // cargo's test runner says some of it on its stdout, nextest on its stderr.
        let child = self.command.stdout(says.try_clone()?).stderr(says).spawn();
        let mut child = child.with_context(|| cannot_start(&line))?;
        // The command holds the pipe's writing end, too.
        drop(self);
        for text in BufReader::new(said).split(b'\n') {
            let text = text.with_context(|| format!("the output of `{line}` cannot be read"))?;
            let text = String::from_utf8_lossy(&text);
            println!("{text}");
            each(&text);
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("`{line}` failed: {status}");
        }
        Ok(())
    }

    /// Stdout of the command, if it can be started and succeeds; nothing is printed. For questions, not for work.
    pub(crate) fn answer(mut self) -> Option<String> {
        let output = self.command.stderr(Stdio::null()).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether the command succeeds, and its whole output; nothing is printed.
    pub(crate) fn outcome(mut self) -> Result<(bool, String)> {
        let name = self.command.get_program().to_string_lossy().into_owned();
        let output = self.command.output().with_context(|| cannot_start(&name))?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    }

    fn announce(&self) -> String {
        let words = std::iter::once(self.command.get_program())
            .chain(self.command.get_args())
            .map(quoted);
        let line = self
            .shown_env
            .iter()
            .cloned()
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ");
        eprintln!("+ {line}");
        line
    }
}

pub(crate) fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

/// Finds the first `name` in PATH, or in `~/.cargo/bin`, where `cargo install` puts it whether PATH has it or not.
pub(crate) fn find_program(name: &str) -> Option<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(cargo_home().map(|home| home.join("bin")));
    dirs.map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .map(Into::into)
}

pub(crate) fn cargo_home() -> Option<std::path::PathBuf> {
    env::var_os("CARGO_HOME")
        .map(Into::into)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")))
}

fn cannot_start(line: &str) -> String {
    format!("`{line}` cannot be started; is it installed? `cargo xtask test --only install` installs what is needed")
}

/// Quotes a word for a shell, so that a printed command can be pasted.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
