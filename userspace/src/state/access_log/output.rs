//! Output of the access log: standard output or a file, which may be renamed, full or missing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use signalbox_core::model::LogTarget;

/// Interval of attempts to open a file that could not be opened.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// An open file, or the reason why there is none.
#[derive(Default)]
pub(super) struct LogOutput {
    file: Option<File>,
    failed: Option<(Instant, String)>,
    /// True if the last line was cut short.
    torn: bool,
}

/// Number of lines written, and the error that prevented the rest.
pub(super) struct WriteResult {
    pub(super) written: u64,
    pub(super) error: Option<String>,
}

impl LogOutput {
    /// Closes the file, and opens it or another by its name.
    pub(super) fn open(&mut self, target: &LogTarget) {
        *self = Self::default();
        let opened = match target {
            LogTarget::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            LogTarget::File(path) => open(path),
        };
        match opened {
            Ok(file) => self.file = Some(file),
            Err(error) => self.failed = Some((Instant::now(), format!("opening {target}: {error}"))),
        }
    }

    /// Closes the file.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// Returns why the file is not open.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_ref().map(|(_, why)| why.as_str())
    }

    /// Writes lines, each of which ends in a line feed.
    pub(super) fn write(&mut self, lines: &[u8], target: &LogTarget) -> WriteResult {
        if self
            .failed
            .as_ref()
            .is_some_and(|(when, _)| when.elapsed() >= RETRY_INTERVAL)
        {
            self.open(target);
        }
        let Some(file) = &mut self.file else {
            return WriteResult {
                written: 0,
                error: self.failure().map(str::to_owned),
            };
        };
        // A truncated line is ended first, so that it stays a separate broken line.
        let feed: &[u8] = if self.torn { b"\n" } else { b"" };
        let bytes = [feed, lines].concat();
        let mut at = 0;
        let mut error = None;
        while at < bytes.len() && error.is_none() {
            match file.write(&bytes[at..]) {
                Ok(0) => error = Some(io::ErrorKind::WriteZero.into()),
                Ok(n) => at += n,
                Err(again) if again.kind() == io::ErrorKind::Interrupted => {}
                Err(other) => error = Some(other),
            }
        }
        let done = &bytes[..at];
        let written = done.iter().skip(feed.len()).filter(|&&byte| byte == b'\n').count() as u64;
        self.torn = match done.last() {
            Some(last) => *last != b'\n',
            None => self.torn,
        };
        WriteResult {
            written,
            error: error.map(|error: io::Error| format!("writing to {target}: {error}")),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        // O_NONBLOCK: opening a pipe without a reader fails instead of waiting.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_loses_lines_and_no_more() {
        let full = LogTarget::File("/dev/full".into());
        let mut output = LogOutput::default();
        output.open(&full);
        for _ in 0..2 {
            let outcome = output.write(b"{}\n{}\n", &full);
            assert_eq!(outcome.written, 0);
            assert!(
                outcome
                    .error
                    .unwrap()
                    .starts_with("writing to /dev/full: No space left")
            );
        }
    }

    #[test]
    fn a_renamed_log_is_recreated_and_an_open_failure_is_reported() {
        let dir = std::env::temp_dir().join(format!("signalbox-access-log-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let target = LogTarget::File(dir.join("connections.log"));
        let mut output = LogOutput::default();
        output.open(&target);
        assert!(output.failure().unwrap().contains("No such file"));
        assert_eq!(output.write(b"{}\n", &target).written, 0);
        std::fs::create_dir(&dir).unwrap();
        output.open(&target);
        assert_eq!(output.write(b"1\n2\n", &target).written, 2);
        std::fs::rename(dir.join("connections.log"), dir.join("old.log")).unwrap();
        assert_eq!(output.write(b"3\n", &target).written, 1);
        output.open(&target);
        assert_eq!(output.write(b"4\n", &target).written, 1);
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(
            (text("old.log"), text("connections.log")),
            ("1\n2\n3\n".into(), "4\n".into())
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
