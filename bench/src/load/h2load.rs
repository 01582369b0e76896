//! HTTP/2 by h2load, the client of nghttp2: many streams over few connections.

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Errors;
use crate::hosts::NAME;
use crate::lab::{Lab, VIP};

/// Streams of a connection at a time.
pub(crate) const STREAMS: usize = 32;

/// A running h2load; killed on drop.
pub(crate) struct H2Load(Child);

/// Outcome of h2load.
#[derive(Debug, PartialEq)]
pub(crate) struct H2LoadOutcome {
    /// Requests per second, after the warm-up.
    pub(crate) rate: f64,
    pub(crate) errors: Errors,
}

impl H2Load {
    /// Starts h2load in the client's namespace.
    pub(crate) fn start(lab: &Lab, connections: usize, (warm_up, length): (Duration, Duration)) -> Result<Self> {
        let mut command = lab.client.command("h2load");
        command.args([
            &format!("-c{connections}"),
            &format!("-m{STREAMS}"),
            "-t2",
            "--groups=X25519",
            &format!("--warm-up-time={}ms", warm_up.as_millis()),
            &format!("--duration={}ms", length.as_millis()),
            &format!("--connect-to={VIP}:443"),
            &format!("https://{NAME}/"),
        ]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        child.context("h2load cannot be started").map(Self)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for the end, which comes soon after the window's.
    pub(crate) fn finish(mut self) -> Result<H2LoadOutcome> {
        let mut text = String::new();
        self.0.stdout.take().context("no output")?.read_to_string(&mut text)?;
        ensure!(self.0.wait()?.success(), "h2load failed: {text}");
        outcome(&text).with_context(|| format!("h2load said: {text}"))
    }
}

impl Drop for H2Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads what h2load says at its end.
fn outcome(text: &str) -> Option<H2LoadOutcome> {
    let line = |begin: &str| text.lines().find_map(|line| line.trim().strip_prefix(begin));
    let rate = line("finished in ")?
        .split(", ")
        .find_map(|part| part.strip_suffix(" req/s"))?;
    let mut errors = Errors::default();
    for part in line("requests: ")?.split(", ") {
        let (count, what) = part.trim().split_once(' ')?;
        if matches!(what, "failed" | "errored" | "timeout") {
            (0..count.parse::<u64>().ok()?).for_each(|_| errors.add(what));
        }
    }
    if line("Application protocol: ") != Some("h2") {
        errors.add("no HTTP/2");
    }
    // Answers with other codes have succeeded, for h2load.
    for part in line("status codes: ")?.split(", ") {
        match part.trim().split_once(' ')? {
            ("0", "2xx") => errors.add("no response at all"),
            ("0", _) | (_, "2xx") => {}
            (count, what) => (0..count.parse::<u64>().ok()?).for_each(|_| errors.add(what)),
        }
    }
    let rate = rate.parse().ok()?;
    Some(H2LoadOutcome { rate, errors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_h2load_is_parsed_for_rate_and_errors() {
        let text = |failed: u64| {
            format!(
                "Application protocol: h2\nfinished in 2.00s, 12345.50 req/s, 1.02MB/s\n\
                 requests: 24691 total, 25011 started, 24691 done, 24689 succeeded, {failed} failed, 0 errored, 0 timeout\n\
                 status codes: 24689 2xx, 0 3xx, 0 4xx, 0 5xx\n"
            )
        };
        let good = outcome(&text(0)).unwrap();
        assert_eq!((good.rate, good.errors.total()), (12345.5, 0));
        assert_eq!(outcome(&text(2)).unwrap().errors.total(), 2);
        let refused = text(0).replace("0 4xx", "3 4xx");
        assert_eq!(outcome(&refused).unwrap().errors.to_string(), "3 x 4xx");
        let other = text(0).replace(": h2\n", ": http/1.1\n");
        assert_eq!(outcome(&other).unwrap().errors.total(), 1);
        assert_eq!(outcome("nothing"), None);
    }
}
