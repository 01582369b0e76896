//! Keys of `top`: they select the pane, the filter and a row, and send requests to the balancer.

use std::collections::HashMap;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::data::{TopData, Topic, Update};
use super::grid::{Grid, SortBy};
use super::panes;

/// Maximum length of typed text.
const MAX_TYPED_CHARS: usize = 200;
/// Rows that a page key moves.
const PAGE_ROWS: isize = 10;

/// A part of the view that is shown alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pane {
    Overview,
    Hosts,
    Routes,
    Flows,
    Services,
    Shield,
    Ha,
    Events,
}

impl Pane {
    pub(super) const ALL: [Self; 8] = [
        Self::Overview,
        Self::Hosts,
        Self::Routes,
        Self::Flows,
        Self::Services,
        Self::Shield,
        Self::Ha,
        Self::Events,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Hosts => "Hosts",
            Self::Routes => "Routes",
            Self::Flows => "Flows",
            Self::Services => "Services",
            Self::Shield => "Shield",
            Self::Ha => "HA",
            Self::Events => "Events",
        }
    }

    /// Answers that the pane shows, in addition to the samples and the status.
    pub(super) const fn topics(self) -> &'static [Topic] {
        match self {
            Self::Overview | Self::Hosts => &[Topic::Hosts],
            Self::Routes => &[Topic::Routes, Topic::Figures, Topic::Migrations],
            Self::Flows => &[Topic::Flows],
            Self::Services => &[Topic::Services],
            Self::Shield => &[Topic::Shield, Topic::Drops],
            Self::Ha => &[Topic::Ha],
            Self::Events => &[],
        }
    }

    fn next(self, step: usize) -> Self {
        let at = Self::ALL.iter().position(|pane| *pane == self).unwrap_or(0);
        Self::ALL[(at + step) % Self::ALL.len()]
    }
}

/// A request to the balancer, or the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopCommand {
    Quit,
    Explain(String),
    Rotate(HostRotation),
}

/// A host to take out of rotation, or back in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostRotation {
    pub(super) cluster: String,
    pub(super) host: String,
    pub(super) is_out: bool,
}

/// Current meaning of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Browse,
    /// A filter is being typed.
    Filter,
    /// The host's name is being typed, as a confirmation.
    Confirm { rotation: HostRotation, typed: String },
    /// A text is shown, from this line on.
    Reading { title: String, text: String, top: u16 },
}

/// The view: its pane, the pane's settings, and the data.
pub(super) struct TopState {
    pub(super) pane: Pane,
    pub(super) mode: Mode,
    pub(super) filters: HashMap<Pane, String>,
    pub(super) sorts: HashMap<Pane, SortBy>,
    selected: HashMap<Pane, String>,
    /// The result of the last request. The next key clears it.
    pub(super) message: Option<String>,
    latest: TopData,
    /// The data at the time when the view was paused.
    paused: Option<Box<TopData>>,
}

pub(super) const KEYS: &str = "\
1 to 8, Tab, ← →    the panes
↑ ↓ j k PgUp PgDn   select a row; Home, End
/                   filter rows by text; Enter keeps it, Esc clears it
s                   sort by the next column; S reverses the order
e                   explain the selected route: where its connections go, and why
o                   take the selected host out of rotation, or in again: type its name to confirm
p                   pause and resume
?                   this help
q, Ctrl-C           quit
";

impl TopState {
    pub(super) fn new() -> Self {
        Self {
            pane: Pane::Overview,
            mode: Mode::Browse,
            filters: HashMap::new(),
            sorts: HashMap::new(),
            selected: HashMap::new(),
            message: None,
            latest: TopData::default(),
            paused: None,
        }
    }

    /// Handles news. A paused view does not show them.
    pub(super) fn take(&mut self, update: Update, now: Instant) {
        self.latest.take(update, now);
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// The data that is shown.
    pub(super) fn data(&self) -> &TopData {
        self.paused.as_deref().unwrap_or(&self.latest)
    }

    /// The newest data, even while the view is paused.
    pub(super) const fn latest(&self) -> &TopData {
        &self.latest
    }

    pub(super) fn filter(&self) -> &str {
        self.filters.get(&self.pane).map_or("", String::as_str)
    }

    /// The table of the pane, filtered and sorted; `None` for the overview.
    pub(super) fn grid(&self) -> Option<Grid> {
        let mut grid = panes::grid(self.pane, self.data())?;
        grid.arrange(self.filter(), self.sorts.get(&self.pane).copied());
        Some(grid)
    }

    /// Index of the selected row, or of the first if it no longer exists.
    pub(super) fn selected(&self, grid: &Grid) -> usize {
        let id = self.selected.get(&self.pane);
        grid.rows.iter().position(|row| Some(&row.id) == id).unwrap_or(0)
    }

    fn selected_id(&self) -> Option<String> {
        let grid = self.grid()?;
        grid.rows.get(self.selected(&grid)).map(|row| row.id.clone())
    }

    /// Shows a text on top of the pane.
    pub(super) fn read(&mut self, title: impl Into<String>, text: impl Into<String>) {
        self.mode = Mode::Reading {
            title: title.into(),
            text: text.into(),
            top: 0,
        };
    }

    /// Handles a key. Returns the request to send.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<TopCommand> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(TopCommand::Quit);
        }
        match std::mem::take(&mut self.mode) {
            Mode::Browse => self.browse(key.code),
            Mode::Filter => self.type_filter(key.code),
            Mode::Confirm { rotation, typed } => self.confirm(rotation, typed, key.code),
            Mode::Reading { title, text, top } => {
                self.scroll(title, text, top, key.code);
                None
            }
        }
    }

    fn browse(&mut self, code: KeyCode) -> Option<TopCommand> {
        match code {
            KeyCode::Char('q') => return Some(TopCommand::Quit),
            KeyCode::Char(digit @ '1'..='8') => self.pane = Pane::ALL[digit as usize - '1' as usize],
            KeyCode::Tab | KeyCode::Right => self.pane = self.pane.next(1),
            KeyCode::BackTab | KeyCode::Left => self.pane = self.pane.next(Pane::ALL.len() - 1),
            KeyCode::Char('?') => self.read("Keys", KEYS),
            KeyCode::Char('p') => self.pause(),
            KeyCode::Char('/') if self.pane != Pane::Overview => self.mode = Mode::Filter,
            KeyCode::Esc => drop(self.filters.remove(&self.pane)),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('S') => self.reverse(),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-PAGE_ROWS),
            KeyCode::PageDown => self.select(PAGE_ROWS),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('e') => return self.explain(),
            KeyCode::Char('o') => self.ask_rotation(),
            _ => {}
        }
        None
    }

    fn pause(&mut self) {
        self.paused = match self.paused {
            Some(_) => None,
            None => Some(Box::new(self.latest.clone())),
        };
    }

    fn sort_by_next(&mut self) {
        let Some(grid) = panes::grid(self.pane, self.data()) else {
            return;
        };
        let next = self.sorts.get(&self.pane).map_or(0, |sort| sort.column + 1);
        if next < grid.headings.len() {
            let by = SortBy {
                column: next,
                is_reversed: false,
            };
            self.sorts.insert(self.pane, by);
        } else {
            self.sorts.remove(&self.pane);
        }
    }

    fn reverse(&mut self) {
        if let Some(sort) = self.sorts.get_mut(&self.pane) {
            sort.is_reversed = !sort.is_reversed;
        }
    }

    fn select(&mut self, step: isize) {
        let Some(grid) = self.grid() else {
            return;
        };
        let last = grid.rows.len().saturating_sub(1);
        let at = self.selected(&grid).saturating_add_signed(step).min(last);
        if let Some(row) = grid.rows.get(at) {
            self.selected.insert(self.pane, row.id.clone());
        }
    }

    fn explain(&mut self) -> Option<TopCommand> {
        if self.pane != Pane::Routes {
            self.message = Some("select a route in pane 3 to have it explained".into());
            return None;
        }
        let route = self.selected_id()?;
        // A wildcard is explained with one of its names.
        let name = route.strip_prefix("*.").map(|rest| format!("any.{rest}"));
        Some(TopCommand::Explain(name.unwrap_or(route)))
    }

    fn ask_rotation(&mut self) {
        if self.pane != Pane::Hosts {
            self.message = Some("select a host in pane 2 to take it out of rotation".into());
            return;
        }
        let Some(id) = self.selected_id() else {
            return;
        };
        // The rotation acts on the current state, not on that of a paused view.
        let latest = self.latest();
        let Some(series) = latest.history.hosts.iter().find(|host| host.key() == id) else {
            self.message = Some("this host is gone".into());
            return;
        };
        let Some(view) = latest.host_view(&id) else {
            self.message = Some("this host's rotation is not known yet".into());
            return;
        };
        let rotation = HostRotation {
            cluster: series.host.cluster.clone(),
            host: series.host.name.clone(),
            is_out: view.out_of_rotation.is_none(),
        };
        self.mode = Mode::Confirm {
            rotation,
            typed: String::new(),
        };
    }

    fn type_filter(&mut self, code: KeyCode) -> Option<TopCommand> {
        let filter = self.filters.entry(self.pane).or_default();
        match code {
            KeyCode::Enter => return None,
            KeyCode::Esc => {
                filter.clear();
                return None;
            }
            other => edit(filter, other),
        }
        self.mode = Mode::Filter;
        None
    }

    fn confirm(&mut self, rotation: HostRotation, mut typed: String, code: KeyCode) -> Option<TopCommand> {
        match code {
            KeyCode::Esc => {
                self.message = Some("nothing was changed".into());
                return None;
            }
            KeyCode::Enter if typed == rotation.host => return Some(TopCommand::Rotate(rotation)),
            KeyCode::Enter => {
                self.message = Some(format!("nothing was changed: the name is {}", rotation.host));
                return None;
            }
            other => edit(&mut typed, other),
        }
        self.mode = Mode::Confirm { rotation, typed };
        None
    }

    fn scroll(&mut self, title: String, text: String, top: u16, code: KeyCode) {
        let last = u16::try_from(text.lines().count().saturating_sub(1)).unwrap_or(u16::MAX);
        let top = match code {
            KeyCode::Up | KeyCode::Char('k') => top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => top.saturating_add(1),
            KeyCode::PageUp => top.saturating_sub(10),
            KeyCode::PageDown => top.saturating_add(10),
            // Any other key ends the mode.
            _ => return,
        };
        let top = top.min(last);
        self.mode = Mode::Reading { title, text, top };
    }
}

/// Changes a text as it is typed.
fn edit(text: &mut String, code: KeyCode) {
    match code {
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(c) if !c.is_control() && text.chars().count() < MAX_TYPED_CHARS => text.push(c),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
