//! Splits a dump into its events, each with its position, so that an error in one does not affect the others.

/// The text of one event, as a separate document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventDocument {
    /// Line in the file of the text's first line, counted from 1; 0 if a `---` was added before line 1.
    pub(super) first_line: usize,
    pub(super) text: String,
}

/// Returns the events of a dump: YAML documents between lines of `---`, and lines that are JSON objects.
pub(super) fn split_documents(text: &str) -> Vec<EventDocument> {
    let mut all = Vec::new();
    let mut open: Option<EventDocument> = None;
    for (number, line) in (1..).zip(text.strip_prefix('\u{feff}').unwrap_or(text).lines()) {
        let is_end = line.trim_end() == "...";
        let is_json = open.as_ref().is_none_or(is_blank) && is_object(line);
        if is_end || is_json || line.trim_end() == "---" || line.starts_with("--- ") {
            close(&mut all, open.take());
        }
        if is_json {
            let text = format!("---\n{line}\n");
            all.push(EventDocument {
                first_line: number - 1,
                text,
            });
        } else if !is_end {
            let piece = open.get_or_insert_with(|| begin(number, line));
            piece.text.push_str(line);
            piece.text.push('\n');
        }
    }
    close(&mut all, open);
    all
}

/// Makes a document that begins with this line. A missing `---` is added, because documents are posted one after
/// another.
fn begin(number: usize, line: &str) -> EventDocument {
    if line.starts_with("---") {
        return EventDocument {
            first_line: number,
            text: String::new(),
        };
    }
    EventDocument {
        first_line: number - 1,
        text: "---\n".to_owned(),
    }
}

fn close(all: &mut Vec<EventDocument>, open: Option<EventDocument>) {
    all.extend(open.filter(|piece| !is_blank(piece)));
}

/// Returns whether a document has only comments.
fn is_blank(piece: &EventDocument) -> bool {
    let mut lines = piece.text.lines();
    lines.all(|line| {
        let rest = line.strip_prefix("---").unwrap_or(line).trim();
        rest.is_empty() || rest.starts_with('#')
    })
}

fn is_object(line: &str) -> bool {
    line.trim_start().starts_with('{')
        && serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok()
}

#[cfg(test)]
mod tests {
    use signalbox_core::discovered::spi::parse;

    use super::*;

    #[test]
    fn each_event_knows_where_it_was() {
        let json = r#"{"action": "delete_application", "app_name": "a", "namespace": "n"}"#;
        let yaml = ":action: :delete_application\n:app_name: b\n:namespace: n\n";
        let text = format!(
            "# a dump\n{yaml}---\n{yaml}...\n\n{json}\n{json}\n---\n:action: :nothing\n:app_name: c\n:namespace: n\n--- # end\n"
        );
        let all = split_documents(&text);
        let lines: Vec<_> = all.iter().map(|piece| piece.first_line).collect();
        assert_eq!(lines, [0, 5, 10, 11, 13]);
        for piece in &all[..4] {
            assert_eq!(parse(&piece.text).unwrap().len(), 1, "{piece:?}");
        }
        let error = parse(&all[4].text).unwrap_err();
        assert_eq!(
            all[4].first_line + error.line - 1,
            14,
            "the line of the action in the file"
        );
        let joined: String = all[..4].iter().map(|piece| piece.text.as_str()).collect();
        assert_eq!(parse(&joined).unwrap().len(), 4, "together as they are posted");
    }

    #[test]
    fn nothing_is_no_event() {
        for text in ["", "\n\n", "---\n", "# nothing\n---\n...\n", "\u{feff}"] {
            assert_eq!(split_documents(text), [], "{text:?}");
        }
    }

    #[test]
    fn lines_of_a_certificate_are_no_separators() {
        let text = ":action: :add_ssl\n:app_name: a\n:namespace: n\n:alias: a.test\n:ssl: |\n  -----BEGIN CERTIFICATE-----\n  \
                    MIIB\n  -----END CERTIFICATE-----\n";
        assert_eq!(split_documents(text).len(), 1);
    }
}
