//! Pieces of configuration that the pages show, within the example of the documentation.

use std::path::Path;

use super::{EXAMPLE, mistakes_of};

/// A piece of a page, with the number of the line where it begins.
struct Piece {
    line: usize,
    text: String,
}

/// Pieces of YAML of a page, without those that a comment before them says are of something else.
fn pieces(page: &str) -> Vec<Piece> {
    let (mut pieces, mut inside, mut before) = (Vec::new(), None::<Piece>, "");
    for (at, line) in page.lines().enumerate() {
        match &mut inside {
            Some(_) if line.trim() == "```" => pieces.extend(inside.take()),
            Some(piece) => {
                piece.text += line;
                piece.text.push('\n');
            }
            None if line == "```yaml" && !before.starts_with("<!-- not read: ") => {
                inside = Some(Piece {
                    line: at + 1,
                    text: String::new(),
                });
            }
            None => {}
        }
        before = line;
    }
    pieces
}

/// Keys at the top of a text.
fn keys(text: &str) -> Vec<&str> {
    let top = text
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    top.filter_map(|line| Some(line.split_once(':')?.0)).collect()
}

/// The example without some of its sections.
fn example_without(left_out: &[&str]) -> String {
    let (mut text, mut is_left_out) = (String::new(), false);
    for line in EXAMPLE.lines() {
        if let Some((key, _)) = line
            .split_once(':')
            .filter(|_| line.starts_with(|c: char| c.is_ascii_alphabetic()))
        {
            is_left_out = left_out.contains(&key);
        }
        if !is_left_out {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// Files that a piece may be a part of: the example without sections of the same names, or without those that need
/// them; a file with one listener; a route; the file of an agent.
fn mistakes(piece: &str) -> Vec<String> {
    const LISTENER: &str = "version: 1\nlisteners: [{ name: web, protocol: http, listen: [\"10.1.0.1:80\"] }]\n";
    let own = keys(piece);
    let beside = |others: &[&str]| example_without(&[&own[..], others].concat()) + piece;
    let indented: String = piece.lines().map(|line| format!("    {line}\n")).collect();
    let route = format!("routes:\n  - host: app.example.com\n    clusters: {{ east: 1 }}\n{indented}");
    let files = [
        beside(&[]),
        beside(&["routes"]),
        beside(&["routes", "listeners"]),
        beside(&["routes", "listeners", "clusters"]),
        format!("{LISTENER}{piece}"),
        example_without(&["routes"]) + &route,
    ];
    let is_agents = || crate::agent::parse(piece).is_ok();
    if files.iter().any(|file| mistakes_of(file).is_empty()) || is_agents() {
        return Vec::new();
    }
    mistakes_of(&files[0])
}

#[test]
fn pieces_of_configuration_on_the_pages_are_right() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (mut count, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(docs).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        for piece in pieces(&std::fs::read_to_string(&path).unwrap()) {
            // Objects of Kubernetes, which has its own tests.
            if piece.text.starts_with("apiVersion: ") {
                continue;
            }
            count += 1;
            let mistakes = mistakes(&piece.text);
            if !mistakes.is_empty() {
                wrong.push(format!("{}:{}: {mistakes:#?}", path.display(), piece.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "{count}");
}
