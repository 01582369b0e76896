use serde_json::json;

use super::*;
use crate::top::example;

fn key(state: &mut TopState, code: KeyCode) -> Option<TopCommand> {
    state.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn write(state: &mut TopState, text: &str) {
    for c in text.chars() {
        assert_eq!(key(state, KeyCode::Char(c)), None);
    }
}

fn selected(state: &TopState) -> String {
    let grid = state.grid().unwrap();
    grid.rows[state.selected(&grid)].cells[0].text.clone()
}

fn in_pane(digit: char) -> TopState {
    let mut state = example::state(Instant::now());
    write(&mut state, &digit.to_string());
    state
}

#[test]
fn digits_tab_and_arrows_choose_the_pane() {
    let mut state = in_pane('7');
    assert_eq!(state.pane, Pane::Ha);
    key(&mut state, KeyCode::Tab);
    key(&mut state, KeyCode::Right);
    assert_eq!(state.pane, Pane::Overview, "behind the last is the first");
    key(&mut state, KeyCode::Left);
    assert_eq!(state.pane, Pane::Events);
    write(&mut state, "9");
    assert_eq!(state.pane, Pane::Events);
}

#[test]
fn q_and_ctrl_c_quit_whatever_is_typed() {
    assert_eq!(key(&mut in_pane('1'), KeyCode::Char('q')), Some(TopCommand::Quit));
    let mut state = in_pane('2');
    write(&mut state, "/q");
    assert_eq!(
        (state.filter(), &state.mode),
        ("q", &Mode::Filter),
        "a letter of the filter"
    );
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(ctrl_c), Some(TopCommand::Quit));
    let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
    assert_eq!(in_pane('1').press(released), None);
}

#[test]
fn a_filter_belongs_to_its_pane_until_it_is_cleared() {
    let mut state = in_pane('2');
    write(&mut state, "/WESTX");
    key(&mut state, KeyCode::Backspace);
    key(&mut state, KeyCode::Enter);
    assert_eq!(state.grid().unwrap().rows.len(), 1);
    write(&mut state, "3");
    assert_eq!((state.filter(), state.grid().unwrap().rows.len()), ("", 2));
    write(&mut state, "2");
    key(&mut state, KeyCode::Esc);
    assert_eq!(state.grid().unwrap().rows.len(), 3);
    write(&mut state, "/x");
    key(&mut state, KeyCode::Esc);
    assert_eq!((state.filter(), &state.mode), ("", &Mode::Browse));
    write(&mut state, "1/");
    assert_eq!(state.mode, Mode::Browse, "the overview has no rows");
    write(&mut state, "2/");
    write(&mut state, &"x".repeat(1000));
    assert_eq!(state.filter().len(), MAX_TYPED_CHARS);
}

#[test]
fn s_goes_through_the_columns_and_back_to_the_order_of_the_api() {
    let mut state = in_pane('3');
    for column in 0..4 {
        write(&mut state, "s");
        assert_eq!(state.sorts[&Pane::Routes].column, column);
        if column == 0 {
            assert_eq!(selected(&state), "*.apps.example.com");
            write(&mut state, "S");
            assert_eq!(selected(&state), "app.example.com");
        }
    }
    write(&mut state, "s");
    assert!(state.sorts.is_empty());
}

#[test]
fn the_selection_stays_at_its_row_and_within_the_table() {
    let mut state = in_pane('2');
    write(&mut state, "jj");
    assert_eq!(selected(&state), "west/west-1");
    write(&mut state, "s");
    key(&mut state, KeyCode::Down);
    assert_eq!(selected(&state), "west/west-1", "the last row");
    key(&mut state, KeyCode::Home);
    assert_eq!(selected(&state), "east/east-1");
    key(&mut state, KeyCode::PageDown);
    key(&mut state, KeyCode::Up);
    assert_eq!(selected(&state), "east/east-2");
    key(&mut state, KeyCode::End);
    write(&mut state, "/east");
    assert_eq!(
        selected(&state),
        "east/east-1",
        "the first, where the selected row is not shown"
    );
}

#[test]
fn e_explains_the_selected_route_and_a_wildcard_by_one_name() {
    let mut state = in_pane('3');
    let asked = key(&mut state, KeyCode::Char('e'));
    assert_eq!(asked, Some(TopCommand::Explain("app.example.com".into())));
    write(&mut state, "j");
    let asked = key(&mut state, KeyCode::Char('e'));
    assert_eq!(asked, Some(TopCommand::Explain("any.apps.example.com".into())));
    assert_eq!(key(&mut in_pane('2'), KeyCode::Char('e')), None);
}

#[test]
fn a_host_is_rotated_only_after_its_name_is_typed() {
    let mut state = in_pane('2');
    write(&mut state, "oeast-2");
    assert_eq!(key(&mut state, KeyCode::Enter), None);
    assert!(
        state.message.as_deref().unwrap().starts_with("nothing was changed"),
        "another host's name"
    );
    assert_eq!(state.mode, Mode::Browse);
    write(&mut state, "oeast-1");
    key(&mut state, KeyCode::Esc);
    assert_eq!((key(&mut state, KeyCode::Enter), &state.mode), (None, &Mode::Browse));
    write(&mut state, "oeast-1");
    let out = HostRotation {
        cluster: "east".into(),
        host: "east-1".into(),
        is_out: true,
    };
    assert_eq!(key(&mut state, KeyCode::Enter), Some(TopCommand::Rotate(out)));
    write(&mut state, "jjowest-1");
    let Some(TopCommand::Rotate(into)) = key(&mut state, KeyCode::Enter) else {
        panic!("nothing is asked");
    };
    assert_eq!(
        (into.host.as_str(), into.is_out),
        ("west-1", false),
        "it is out already"
    );
}

#[test]
fn rotate_keys_use_the_current_state_even_while_top_is_paused() {
    let mut state = in_pane('2');
    write(&mut state, "p");
    let hosts = json!({ "hosts": [{ "cluster": "east", "name": "east-1", "address": "10.2.0.2", "out_of_rotation": "host:east/east-1" }] });
    state.take(Update::Answer(Topic::Hosts, hosts), Instant::now());
    write(&mut state, "oeast-1");
    let Some(TopCommand::Rotate(rotation)) = key(&mut state, KeyCode::Enter) else {
        panic!("nothing is asked");
    };
    assert!(!rotation.is_out);
    write(&mut state, "jo");
    assert!(
        state.message.is_some() && state.mode == Mode::Browse,
        "a host that is no longer there"
    );
}

#[test]
fn a_text_is_scrolled_and_any_other_key_closes_it() {
    let mut state = in_pane('1');
    write(&mut state, "?jjk");
    assert!(matches!(state.mode, Mode::Reading { top: 1, .. }));
    for _ in 0..10 {
        key(&mut state, KeyCode::PageDown);
    }
    let Mode::Reading { text, top, .. } = &state.mode else {
        panic!("the help is gone");
    };
    assert_eq!(usize::from(*top), text.lines().count() - 1);
    assert_eq!(key(&mut state, KeyCode::Char('q')), None, "this closes the text only");
    assert_eq!(state.mode, Mode::Browse);
}
