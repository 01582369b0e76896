//! The tables of docs/configuration.md have the keys that the decoders know, and their defaults where one is one value.
//!
//! The decoders are asked: the message about an unknown key lists the known ones. A comment `<!-- keys: PATH -->`
//! before a table says whose keys it has; `[]` stands for an item of a list.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use signalbox_core::wire::yaml::{Dialect, NodeKind, YamlNode, read};

use super::{documented, mistakes_of, parse};

const PAGE: &str = include_str!("../../../../docs/configuration.md");
const UNKNOWN: &str = "no_such_key";

/// Known keys of each mapping: `clusters[].hosts[]` with `address`, `name` and so on.
type Schema = BTreeMap<String, BTreeSet<String>>;

/// A mapping at a path, in the mappings around it. Listeners for TLS read more of their keys than others.
fn nested(path: &str, inner: Value) -> Value {
    let steps = path.split('.').filter(|step| !step.is_empty());
    steps
        .rev()
        .fold(inner, |mut inner, step| match step.strip_suffix("[]") {
            Some("listeners") => {
                inner["protocol"] = "https".into();
                json!({ "listeners": [inner] })
            }
            Some(key) => json!({ key: [inner] }),
            None => json!({ step: inner }),
        })
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Keys that the mapping at a path may have; `None`: there is no mapping at this path.
fn known_keys(path: &str) -> Option<BTreeSet<String>> {
    let place = joined(&path.replace("[]", "[0]"), UNKNOWN);
    let mistakes = mistakes_of(&nested(path, json!({ UNKNOWN: 1 })).to_string());
    let unknown = format!(" {place}: unknown key ");
    let message = mistakes.iter().find(|mistake| mistake.contains(&unknown))?;
    let (_, keys) = message.split_once("(known here: ")?;
    let keys = keys.trim_end_matches(')').replace(" or ", ", ");
    Some(keys.split(", ").map(str::to_owned).collect())
}

/// All mappings that the decoders open, found by trying each known key.
fn schema() -> Schema {
    let (mut schema, mut left) = (Schema::new(), VecDeque::from([String::new()]));
    while let Some(path) = left.pop_front() {
        let Some(keys) = known_keys(&path) else { continue };
        for key in &keys {
            let inner = joined(&path, key);
            left.extend([format!("{inner}[]"), inner]);
        }
        schema.insert(path, keys);
    }
    schema
}

/// A row of the page: path of a mapping, its key (perhaps `nat.ports`), the default as it is written, the whole row.
struct Row {
    path: &'static str,
    key: String,
    default: &'static str,
    text: &'static str,
}

/// Texts in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Rows of the tables that a comment names. A row with `a.b`, `.c` is of `a.b` and of `a.c`; the column "In" names
/// mappings between the table's and the keys.
fn rows() -> Vec<Row> {
    let (mut rows, mut lines) = (Vec::new(), PAGE.lines());
    while let Some(line) = lines.next() {
        let Some(paths) = line
            .strip_prefix("<!-- keys: ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        let has_in = lines.next().is_some_and(|head| head.contains("| In |"));
        for text in lines.by_ref().skip(1).take_while(|line| line.starts_with("| ")) {
            let cells: Vec<_> = text.trim_matches(['|', ' ']).split(" | ").collect();
            let (keys, default) = (whole_keys(cells[0]), cells[1 + usize::from(has_in)]);
            let inner: Vec<&str> = if has_in { quoted(cells[1]).collect() } else { vec![""] };
            for path in paths.split(", ").map(|path| path.trim_start_matches("(top)")) {
                let all = inner.iter().flat_map(|inner| keys.iter().map(|key| joined(inner, key)));
                rows.extend(all.map(|key| Row {
                    path,
                    key,
                    default,
                    text,
                }));
            }
        }
    }
    rows
}

/// Keys of a row: `a.b`, `.c` is `a.b` and `a.c`.
fn whole_keys(cell: &str) -> Vec<String> {
    let first = quoted(cell).next().unwrap_or_default();
    let parent = first.rsplit_once('.').unwrap_or_default().0;
    let whole = |key: &str| {
        key.strip_prefix('.')
            .map_or_else(|| key.to_owned(), |last| joined(parent, last))
    };
    quoted(cell).map(whole).collect()
}

/// Whether a row has a word in backquotes, as in `{ ca: FILE, required: true }`.
fn has_word(row: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    quoted(row).any(|code| code.split(|c| !is_part(c)).any(|part| part == word))
}

#[test]
fn documented_keys_are_known_and_known_ones_documented() {
    let (schema, rows) = (schema(), rows());
    let mut wrong = Vec::new();
    for Row { key, text, .. } in &rows {
        let is_known = |row: &Row| {
            let place = joined(row.path, key);
            let (path, key) = place.rsplit_once('.').unwrap_or(("", &place));
            schema.get(path).is_some_and(|keys| keys.contains(key))
        };
        if !rows
            .iter()
            .filter(|row| row.text == *text && row.key == *key)
            .any(is_known)
        {
            wrong.push(format!("no decoder knows `{key}`: {text}"));
        }
    }
    for (path, keys) in &schema {
        for key in keys {
            let place = joined(path, key);
            let is_said = rows.iter().any(|row| {
                let said = joined(row.path, &row.key);
                let inline = path.trim_end_matches("[]") == said && has_word(row.text, key);
                said == place || said.starts_with(&format!("{place}.")) || inline
            });
            if !is_said {
                wrong.push(format!("no table has {place}"));
            }
        }
    }
    assert!(schema.len() > 90, "{}", schema.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn value(node: &YamlNode) -> Value {
    match &node.kind {
        NodeKind::Null | NodeKind::Binary => Value::Null,
        NodeKind::Scalar { text, quoted: false } => text.parse().map_or_else(|_| text.as_str().into(), u64::into),
        NodeKind::Scalar { text, .. } => text.as_str().into(),
        NodeKind::List(items) => items.iter().map(value).collect(),
        NodeKind::Map(entries) => {
            let entries = entries.iter().map(|entry| (entry.key.clone(), value(&entry.value)));
            Value::Object(entries.collect())
        }
    }
}

fn value_of(text: &str) -> Option<Value> {
    Some(value(read(text, Dialect::Plain).ok()?.first()?))
}

/// Mapping at a path, made if there is none; of a list its first item.
fn at<'a>(root: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.')
        .filter(|step| !step.is_empty())
        .fold(root, |of, step| match step.strip_suffix("[]") {
            Some(key) => &mut of[key][0],
            None => &mut of[step],
        })
}

/// A default that the page writes as one value: "`5s`", not "`1h` of tcp, `30s` of udp", and no other key.
fn written_default(row: &Row) -> Option<Value> {
    let text = row.default.strip_prefix('`')?.strip_suffix('`')?;
    value_of(text).filter(|_| !text.contains('`') && text != "timeouts.drain")
}

/// The page's example with the sections that it leaves out, and first items that have few keys.
fn whole_example(protocol: &str) -> Value {
    let mut whole = value_of(documented("version: 1\nadmin:")).unwrap();
    for section in ["shield", "ha"] {
        whole[section] = value_of(documented(&format!("{section}:\n"))).unwrap()[section].clone();
    }
    whole["services"] = json!([{ "name": "db", "protocol": "tcp", "listen": ["10.1.0.8:3307"], "cluster": "east" }]);
    for (list, first) in [
        (
            "listeners",
            json!({ "name": "site", "protocol": protocol, "listen": ["10.1.0.8:8443"] }),
        ),
        (
            "clusters",
            json!({ "name": "pods", "kubernetes": { "in_cluster": true }, "proxy_protocol": {}, "hosts": [{ "name": "p", "address": "10.2.0.9", "http": 80, "https": 443 }] }),
        ),
        (
            "routes",
            json!({ "host": "site.test", "clusters": { "east": 1 }, "affinity": { "cookie": "id" } }),
        ),
    ] {
        whole[list].as_array_mut().unwrap().insert(0, first);
    }
    whole
}

/// Meaning of a configuration with a key at its default, and without the key; or the mistakes.
fn meanings(whole: &Value, place: &str, default: &Value) -> [Result<String, String>; 2] {
    let (path, key) = place.rsplit_once('.').unwrap_or(("", place));
    let (mut with, mut without) = (whole.clone(), whole.clone());
    at(&mut with, path)[key] = default.clone();
    if let Some(entries) = at(&mut without, path).as_object_mut() {
        entries.remove(key);
    }
    [with, without].map(|root| match parse(&root.to_string()) {
        Ok(parsed) => Ok(format!("{:?}", parsed.model)),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    })
}

#[test]
fn a_documented_default_means_what_leaving_the_key_out_means() {
    let wholes = ["https", "http"].map(whole_example);
    let (mut seen, mut tried, mut wrong) = (BTreeSet::new(), 0, Vec::new());
    for row in rows() {
        // Where a table is of several mappings, it has the defaults of the first.
        if !seen.insert((row.text, row.key.clone())) {
            continue;
        }
        let Some(default) = written_default(&row) else { continue };
        tried += 1;
        let place = joined(row.path, &row.key);
        // Some keys are only for one of the protocols.
        let found = wholes.each_ref().map(|whole| meanings(whole, &place, &default));
        let mut read = found.iter().filter(|[with, _]| with.is_ok()).peekable();
        if read.peek().is_none() || !read.all(|[with, without]| with == without) {
            let mistakes: Vec<_> = found.into_iter().flatten().filter_map(Result::err).collect();
            wrong.push(format!(
                "{place}: {} is not the default, or a mistake: {mistakes:?}",
                row.default
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 85, "{tried}");
}
