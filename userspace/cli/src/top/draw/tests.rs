//! The view of each pane, compared with files. `SIGNALBOX_WRITE_PICTURES=1` writes them again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use serde_json::json;

use super::*;
use crate::top::data::Update;
use crate::top::{example, overview};

const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];
const COLOURS: Palette = Palette { has_colours: true };

fn buffer(state: &TopState, (width, height): (u16, u16), palette: Palette, now: Instant) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let address = "/run/signalbox/admin.sock";
    terminal
        .draw(|frame| draw(frame, state, address, palette, now))
        .unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let lines = buffer.content.chunks(width);
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
    lines.map(|cells| format!("{}\n", line(cells).trim_end())).collect()
}

fn shown(state: &TopState, now: Instant) -> String {
    text(&buffer(state, SIZES[0], COLOURS, now))
}

fn compare(name: &str, picture: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/top/pictures/{name}.txt"));
    if std::env::var_os("SIGNALBOX_WRITE_PICTURES").is_some() {
        std::fs::write(&path, picture).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        picture == wanted,
        "{}: the picture is another now:\n{picture}",
        path.display()
    );
}

fn press(state: &mut TopState, keys: &str) {
    for key in keys.chars() {
        state.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    }
}

#[test]
fn each_pane_has_its_picture_in_both_sizes() {
    let now = Instant::now();
    let mut state = example::state(now);
    for (pane, key) in Pane::ALL.into_iter().zip('1'..) {
        press(&mut state, &key.to_string());
        for size in SIZES {
            let picture = text(&buffer(&state, size, COLOURS, now));
            compare(
                &format!("{}-{}x{}", pane.title().to_lowercase(), size.0, size.1),
                &picture,
            );
        }
    }
}

#[test]
fn the_overview_as_text_has_its_file_too() {
    compare("once", &overview::plain(&example::data(Instant::now())));
}

#[test]
fn the_help_has_all_keys_and_fits() {
    let now = Instant::now();
    let mut state = example::state(now);
    press(&mut state, "?");
    let picture = shown(&state, now);
    for line in crate::top::keys::KEYS.lines() {
        assert!(picture.contains(line.split("  ").next().unwrap()), "{line}\n{picture}");
    }
}

#[test]
fn a_dead_balancer_is_said_and_its_last_figures_stay() {
    let now = Instant::now();
    let mut state = example::state(now);
    state.take(Update::Lost("no signalbox answers".into()), now);
    let picture = shown(&state, now + Duration::from_secs(12));
    assert!(picture.contains("stale for 12 s: no signalbox answers"), "{picture}");
    assert!(picture.contains("Connections 69"), "{picture}");
    state.take(
        Update::Sample(
            serde_json::from_value(json!({ "at": 1_795_351_999_000_u64, "figures": {}, "overall": {} })).unwrap(),
        ),
        now,
    );
    assert!(!shown(&state, now).contains("stale"));
    let young = TopState::new();
    assert!(shown(&young, now).contains("connecting"));
}

#[test]
fn a_paused_picture_stays_and_says_so() {
    let now = Instant::now();
    let mut state = example::state(now);
    press(&mut state, "p");
    state.take(
        Update::Sample(
            serde_json::from_value(
                json!({ "at": 1_795_351_999_000_u64, "figures": {}, "overall": { "active": 1234 } }),
            )
            .unwrap(),
        ),
        now,
    );
    let picture = shown(&state, now);
    assert!(picture.contains(" paused ") && !picture.contains("1.23 k"), "{picture}");
    press(&mut state, "p");
    assert!(shown(&state, now).contains("Connections 1.23 k"));
}

#[test]
fn states_have_colours_unless_nobody_wants_them() {
    let now = Instant::now();
    let mut state = example::state(now);
    for key in '1'..='8' {
        press(&mut state, &key.to_string());
        let plain = buffer(&state, SIZES[0], Palette { has_colours: false }, now);
        assert!(
            plain
                .content
                .iter()
                .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
        );
        let coloured = buffer(&state, SIZES[0], COLOURS, now);
        assert_eq!(text(&plain), text(&coloured), "state is never told by colour alone");
    }
    press(&mut state, "2");
    let coloured = buffer(&state, SIZES[0], COLOURS, now);
    assert!(
        coloured
            .content
            .iter()
            .any(|cell| cell.symbol() == "■" && cell.fg == Color::Red)
    );
}

#[test]
fn no_size_of_a_terminal_breaks_a_pane() {
    let now = Instant::now();
    let mut state = example::state(now);
    for key in '1'..='8' {
        press(&mut state, &key.to_string());
        for size in [(1, 1), (5, 3), (20, 5), (40, 10), (400, 120)] {
            buffer(&state, size, COLOURS, now);
        }
    }
    press(&mut state, "?");
    buffer(&state, (2, 2), COLOURS, now);
}

#[test]
fn five_hundred_hosts_are_reached_by_keys_and_filtered() {
    let now = Instant::now();
    let mut state = example::state_with_hosts(500, now);
    press(&mut state, "2");
    for size in SIZES {
        let picture = text(&buffer(&state, size, COLOURS, now));
        assert!(
            picture.contains("host-000") && !picture.contains("host-499"),
            "{picture}"
        );
    }
    state.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    let picture = shown(&state, now);
    assert!(
        picture.contains("host-499") && !picture.contains("host-000"),
        "{picture}"
    );
    for _ in 0..499 {
        press(&mut state, "k");
    }
    assert!(shown(&state, now).contains("host-000"));
    press(&mut state, "/host-31");
    state.press(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
    let picture = shown(&state, now);
    assert!(
        picture.contains("host-310") && picture.contains("host-319") && !picture.contains("host-320"),
        "{picture}"
    );
    assert!(
        picture.contains("■ unhealthy") && picture.contains("● healthy"),
        "{picture}"
    );
}
