//! Draws the view.

mod overview;
mod table;

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::grid::Look;
use super::keys::{Mode, Pane, TopState};
use super::overview::headline;

/// Styles: with colours, or for terminals and users without them.
#[derive(Clone, Copy)]
pub(super) struct Palette {
    pub(super) has_colours: bool,
}

impl Palette {
    pub(super) fn look(self, look: Look) -> Style {
        let colour = match look {
            Look::Good => Color::Green,
            Look::Warn => Color::Yellow,
            Look::Bad => Color::Red,
            Look::Idle => Color::Reset,
        };
        let style = self.coloured(colour);
        if look == Look::Bad {
            style.add_modifier(Modifier::BOLD)
        } else {
            style
        }
    }

    pub(super) fn coloured(self, colour: Color) -> Style {
        if self.has_colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    pub(super) const fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) const fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Draws everything. `address` is that of the balancer.
pub(super) fn draw(frame: &mut Frame<'_>, state: &TopState, address: &str, palette: Palette, now: Instant) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head_line(state, address, palette, now), head);
    frame.render_widget(tab_line(state, palette), tabs);
    if state.data().history.is_empty() {
        frame.render_widget(waiting(state, address), body);
    } else if state.pane == Pane::Overview {
        overview::draw(frame, body, state.data(), palette);
    } else {
        table::draw(frame, body, state, palette);
    }
    frame.render_widget(foot_line(state, palette), foot);
    if let Mode::Reading { title, text, top } = &state.mode {
        reading(frame, body, title, text, *top);
    }
}

/// The balancer, its state, and the age of the view.
fn head_line<'a>(state: &TopState, address: &'a str, palette: Palette, now: Instant) -> Line<'a> {
    let data = state.data();
    let version = data.version();
    let mut spans = vec![Span::styled(format!("signalbox {version} "), palette.strong())];
    let stale = state.latest().stale_seconds(now);
    let lost = &state.latest().lost;
    if stale.is_some() || (lost.is_some() && !data.history.is_empty()) {
        let since = stale.map_or_else(
            || "not connected".to_owned(),
            |seconds| format!("stale for {seconds} s"),
        );
        let why = lost.as_deref().map_or_else(String::new, |why| format!(": {why}"));
        let style = palette.look(Look::Bad).add_modifier(Modifier::REVERSED);
        spans.push(Span::styled(format!(" {since}{why} "), style));
        return Line::from(spans);
    }
    if state.is_paused() {
        let style = palette.look(Look::Warn).add_modifier(Modifier::REVERSED);
        spans.push(Span::styled(" paused ", style));
        spans.push(Span::raw(" "));
    }
    let (look, text) = headline(data);
    spans.push(Span::styled(format!("{} {text}", look.shape()), palette.look(look)));
    spans.push(Span::raw(format!("  {address}")));
    Line::from(spans)
}

fn tab_line(state: &TopState, palette: Palette) -> Line<'static> {
    let tab = |(at, pane): (usize, &Pane)| {
        let text = format!(" {} {} ", at + 1, pane.title());
        if *pane == state.pane {
            Span::styled(text, palette.chosen())
        } else {
            Span::raw(text)
        }
    };
    Line::from_iter(Pane::ALL.iter().enumerate().map(tab))
}

/// Says that no data has arrived yet, and why.
fn waiting(state: &TopState, address: &str) -> Paragraph<'static> {
    let why = state.latest().lost.as_deref().unwrap_or("connecting");
    let text = format!("{address}\n\n{why}\n\nRetrying every second; q quits.");
    Paragraph::new(text).wrap(Wrap { trim: false })
}

/// The last line: the current keys, the typed text, or the result of a request.
fn foot_line(state: &TopState, palette: Palette) -> Line<'static> {
    let failure = || state.data().failure(state.pane.topics());
    match &state.mode {
        Mode::Filter => Line::from(format!("/{}█  Enter keeps the filter, Esc clears it", state.filter())),
        Mode::Confirm { rotation, typed } => {
            let way = if rotation.is_out { "out of" } else { "into" };
            let (cluster, host) = (&rotation.cluster, &rotation.host);
            let text = format!("{cluster}/{host} {way} rotation? Type {host} and Enter (Esc: no): {typed}█");
            Line::styled(text, palette.look(Look::Warn))
        }
        Mode::Reading { .. } => Line::from("↑ ↓ scroll, any other key closes"),
        Mode::Browse => match (&state.message, failure()) {
            (Some(message), _) => Line::styled(message.clone(), palette.strong()),
            (None, Some(failure)) => Line::styled(format!("■ {failure}"), palette.look(Look::Bad)),
            (None, None) => Line::from(hints(state)),
        },
    }
}

fn hints(state: &TopState) -> String {
    let mut hints = String::new();
    if !state.filter().is_empty() {
        hints += &format!("filter {:?} (Esc clears)  ", state.filter());
    }
    hints
        + match state.pane {
            Pane::Overview => "? keys  p pause  q quit",
            Pane::Hosts => "↑↓ select  o rotate  / filter  s sort  p pause  ? keys  q quit",
            Pane::Routes => "↑↓ select  e explain  / filter  s sort  p pause  ? keys  q quit",
            _ => "↑↓ select  / filter  s sort  p pause  ? keys  q quit",
        }
}

/// A text on top of the pane.
fn reading(frame: &mut Frame<'_>, area: Rect, title: &str, text: &str, top: u16) {
    let block = Block::bordered().title(format!(" {title} "));
    let text = Paragraph::new(text)
        .wrap(Wrap { trim: false })
        .scroll((top, 0))
        .block(block);
    frame.render_widget(Clear, area);
    frame.render_widget(text, area);
}

#[cfg(test)]
mod tests;
