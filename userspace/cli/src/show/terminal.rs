//! The terminal on standard output, if there is one, and tables shown in it repeatedly.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use jiff::Zoned;

/// Columns and lines of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TerminalSize {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

/// Returns the size of the terminal on standard output. COLUMNS and LINES have priority over the terminal's answer.
pub(super) fn size() -> Option<TerminalSize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let variable = |name: &str| std::env::var(name).ok()?.parse().ok();
    let (columns, lines) = own_size();
    Some(TerminalSize {
        columns: variable("COLUMNS").filter(|n| *n > 0).unwrap_or(columns),
        lines: variable("LINES").filter(|n| *n > 0).unwrap_or(lines),
    })
}

#[cfg(feature = "tui")]
fn own_size() -> (usize, usize) {
    let known = crossterm::terminal::size().ok();
    let known = known.filter(|(columns, lines)| *columns > 0 && *lines > 0);
    known.map_or((usize::MAX, usize::MAX), |(columns, lines)| {
        (columns.into(), lines.into())
    })
}

#[cfg(not(feature = "tui"))]
const fn own_size() -> (usize, usize) {
    (usize::MAX, usize::MAX)
}

/// Prints a text each `interval`, until its output is closed. In a terminal each text replaces the previous one. If the
/// balancer stops answering, waits for it, because it may be restarting.
pub(super) fn repeat(interval: Duration, text: impl Fn() -> anyhow::Result<String>) -> anyhow::Result<ExitCode> {
    let mut shown = text()?;
    loop {
        let out = match size().filter(|_| !is_dumb()) {
            Some(size) => picture(&shown, size.lines, interval),
            None => format!("{}\n\n", shown.trim_end()),
        };
        let mut stdout = std::io::stdout();
        match stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            other => other?,
        }
        std::thread::sleep(interval);
        shown = text().unwrap_or_else(|error| format!("error: {error:#}"));
    }
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Formats a text for a terminal of this many lines, drawn over the previous one, so that nothing flickers.
fn picture(text: &str, lines: usize, interval: Duration) -> String {
    const HOME: &str = "\x1b[H";
    const REST_OF_LINE: &str = "\x1b[K";
    const REST_OF_SCREEN: &str = "\x1b[J";
    let now = Zoned::now().strftime("%H:%M:%S").to_string();
    let head = format!("{now}, every {} s; Ctrl-C ends", interval.as_secs_f64());
    let all: Vec<&str> = text.trim_end().lines().collect();
    // The cursor needs the last line.
    let room = lines.saturating_sub(2);
    let mut out = format!("{HOME}{head}{REST_OF_LINE}\n");
    let is_whole = all.len() <= room;
    let shown = if is_whole { all.len() } else { room.saturating_sub(1) };
    for line in all.iter().take(shown) {
        out += &format!("{line}{REST_OF_LINE}\n");
    }
    if !is_whole {
        out += &format!("... and {} more lines{REST_OF_LINE}\n", all.len() - shown);
    }
    out + REST_OF_SCREEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_lines_of_the_terminal() {
        let text = "A\nB\nC\nD\nE\n";
        let picture = picture(text, 5, Duration::from_secs(2));
        assert_eq!(picture.lines().count(), 5, "{picture:?}");
        assert!(
            picture.contains("every 2 s") && picture.contains("... and 3 more lines"),
            "{picture:?}"
        );
        assert!(!super::picture(text, 7, Duration::from_secs(2)).contains("more lines"));
    }
}
