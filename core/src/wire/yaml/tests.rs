use super::*;

fn read_all(text: &str) -> Vec<YamlNode> {
    read(text, Dialect::Ruby).unwrap()
}

fn mistake(text: &str, dialect: Dialect) -> (usize, usize, usize, String) {
    let error = read(text, dialect).unwrap_err();
    (
        error.document,
        error.position.line,
        error.position.column,
        error.message,
    )
}

#[test]
fn keys_and_values_remember_where_they_stood() {
    let [root] = &read("\u{feff}a: 1\nb:\n  - é: [x, \"2\"]\n", Dialect::Plain).unwrap()[..] else {
        panic!("one document")
    };
    let NodeKind::Map(entries) = &root.kind else {
        panic!("{root:?}")
    };
    let place = |position: Position| (position.line, position.column);
    assert_eq!((place(entries[1].position), entries[1].key.as_str()), ((2, 1), "b"));
    let NodeKind::List(items) = &entries[1].value.kind else {
        panic!("{root:?}")
    };
    let NodeKind::Map(inner) = &items[0].kind else {
        panic!("{root:?}")
    };
    let NodeKind::List(words) = &inner[0].value.kind else {
        panic!("{root:?}")
    };
    assert_eq!(place(words[1].position), (3, 12));
    assert!(matches!(&words[0].kind, NodeKind::Scalar { text, quoted: false } if text == "x"));
    assert!(matches!(&words[1].kind, NodeKind::Scalar { text, quoted: true } if text == "2"));
}

#[test]
fn documents_and_tags_are_for_ruby() {
    let documents = read_all("--- !ruby/object:X\na: !binary aGk=\n--- !ruby/sym null\n---\n~\n");
    let kinds: Vec<&str> = documents.iter().map(|node| node.kind.type_name()).collect();
    assert_eq!(kinds, ["a mapping", "a single value", "nothing"]);
    let NodeKind::Map(entries) = &documents[0].kind else {
        panic!("{documents:?}")
    };
    assert!(matches!(entries[0].value.kind, NodeKind::Binary));
    let (_, line, column, message) = mistake("a: !!int 1", Dialect::Plain);
    assert_eq!((line, column), (1, 4), "{message}");
    assert!(message.contains("YAML tags (here `int`)"), "{message}");
    let (document, line, _, message) = mistake("a: 1\n---\nb: 1\n", Dialect::Plain);
    assert_eq!((document, line), (2, 2));
    assert!(message.starts_with("a second document"), "{message}");
}

#[test]
fn the_document_of_a_mistake_is_named() {
    let (document, line, column, message) = mistake("a: 1\n---\n? [b]\n: 1\n", Dialect::Ruby);
    assert_eq!((document, line, column), (2, 3, 3));
    assert!(message.starts_with("a list cannot be a key"), "{message}");
}

/// Aliases of one long text are few nodes, and much memory.
#[test]
fn a_copied_text_counts_by_its_length() {
    let long = "x".repeat(1 << 20);
    let copies = |count: usize| format!("a: &a {long}\nb: [{}]\n", vec!["*a"; count].join(", "));
    assert_eq!(read_all(&copies(50)).len(), 1);
    let (.., message) = mistake(&copies(70), Dialect::Ruby);
    assert!(message.contains("beyond a million values"), "{message}");
}
