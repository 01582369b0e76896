//! Sentences of a page in Markdown: those of its paragraphs, items of lists and cells of tables. Headings, code and results
//! of benchmarks are left out.

/// A sentence, and the line where it begins.
pub(super) struct Sentence {
    pub(super) line: usize,
    pub(super) text: String,
}

impl Sentence {
    /// Number of words; a span of code is one.
    pub(super) fn words(&self) -> usize {
        let is_word = |word: &&str| word.contains(char::is_alphanumeric);
        self.text.split_whitespace().filter(is_word).count()
    }

    /// First words, to find the sentence by.
    pub(super) fn start(&self) -> String {
        self.text.split_whitespace().take(8).collect::<Vec<_>>().join(" ")
    }

    /// Words in lower case, without punctuation, one space between them.
    pub(super) fn bare(&self) -> String {
        let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '\'');
        let words = self
            .text
            .split(|c: char| !is_of_word(c))
            .filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
    }
}

/// Sentences of a page.
pub(super) fn sentences(text: &str) -> Vec<Sentence> {
    let lines: Vec<_> = text.lines().collect();
    let (mut found, mut paragraph, mut is_code) = (Vec::new(), Paragraph::default(), false);
    let mut is_result = false;
    for (at, line) in lines.iter().enumerate() {
        let (number, line) = (at + 1, line.trim());
        // A program has written the lines between these marks.
        is_result = (is_result || line.starts_with("<!-- bench:")) && line != "<!-- end of bench -->";
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let is_no_prose = is_result || line.is_empty() || line.starts_with("<!--") || line.starts_with('#');
        if is_code || is_fence || is_no_prose {
            paragraph.end(&mut found);
        } else if line.starts_with('|') {
            paragraph.end(&mut found);
            let is_rule = |line: &str| line.trim().starts_with("|-") || line.trim().starts_with("|:");
            let is_header = lines.get(number).is_some_and(|next| is_rule(next));
            if !is_header && !is_rule(line) {
                cells(line).for_each(|cell| split(&[(number, cell)], &mut found));
            }
        } else {
            let item = list_item(line);
            if item.is_some() {
                paragraph.end(&mut found);
            }
            paragraph.push(number, item.unwrap_or(line));
        }
    }
    paragraph.end(&mut found);
    found
}

/// Lines of a paragraph, each with its number.
#[derive(Default)]
struct Paragraph {
    lines: Vec<(usize, String)>,
    /// Whether a span of code goes on in the next line.
    is_code: bool,
}

impl Paragraph {
    fn push(&mut self, number: usize, line: &str) {
        let line = plain(line, &mut self.is_code);
        self.lines.push((number, line));
    }

    fn end(&mut self, found: &mut Vec<Sentence>) {
        split(&std::mem::take(self).lines, found);
    }
}

/// Splits text at the ends of sentences: a full stop, question mark or exclamation mark before a space and no lower case.
fn split(lines: &[(usize, String)], found: &mut Vec<Sentence>) {
    let words = lines
        .iter()
        .flat_map(|(line, text)| text.split_whitespace().map(move |word| (*line, word)));
    let words: Vec<_> = words.collect();
    let (mut text, mut line) = (String::new(), 0);
    for (at, (number, word)) in words.iter().enumerate() {
        if text.is_empty() {
            line = *number;
        } else {
            text.push(' ');
        }
        text.push_str(word);
        let ends = word
            .trim_end_matches(['"', '\'', ')', '*', '_'])
            .ends_with(['.', '?', '!']);
        let next = words
            .get(at + 1)
            .and_then(|(_, next)| next.trim_start_matches(['"', '(', '*', '_', '[']).chars().next());
        if next.is_none() || (ends && next.is_some_and(|first| !first.is_lowercase())) {
            let text = std::mem::take(&mut text);
            found.push(Sentence { line, text });
        }
    }
}

/// Cells of a row of a table. A bar in code is written `\|`.
fn cells(row: &str) -> impl Iterator<Item = String> {
    let row = row.trim_matches('|').replace("\\|", "\u{1}");
    let cells: Vec<_> = row
        .split('|')
        .map(|cell| plain(&cell.replace('\u{1}', "|"), &mut false))
        .collect();
    cells.into_iter()
}

fn list_item(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if rest.len() < line.len() {
        rest.strip_prefix('.')?
    } else {
        rest.strip_prefix(['-', '*', '+'])?
    };
    rest.strip_prefix(' ')
}

/// Text without its spans of code, each of which becomes one word, and without the targets of links.
fn plain(text: &str, is_code: &mut bool) -> String {
    let mut out = String::new();
    for (nth, part) in text.split('`').enumerate() {
        *is_code ^= nth > 0;
        match (*is_code, nth) {
            // The span began in the line before.
            (true, 0) => {}
            (true, _) => out.push_str("Code"),
            (false, _) => out.push_str(part),
        }
    }
    while let Some(start) = out.find("](") {
        let end = out[start..].find(')').map_or(out.len(), |end| start + end + 1);
        out.replace_range(start..end, "");
    }
    out.replace('[', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(page: &str) -> Vec<(usize, String)> {
        sentences(page).into_iter().map(|s| (s.line, s.text)).collect()
    }

    #[test]
    fn paragraphs_items_and_cells_are_split_into_sentences() {
        let page = "# Title\n\nOne two. Three\nfour? `a. B` five.\n\n- Item one.\n- Item [two](x.md#y).\n\n\
                    | Header |\n|---|\n| Cell. With two. | `a\\|b` |\n\n```text\nCode. Here.\n```\nVersion 1.2 is out.\n";
        let expected = [
            (3, "One two."),
            (3, "Three four?"),
            (4, "Code five."),
            (6, "Item one."),
            (7, "Item two."),
            (11, "Cell."),
            (11, "With two."),
            (11, "Code"),
            (16, "Version 1.2 is out."),
        ];
        assert_eq!(texts(page), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn a_span_of_code_is_one_word() {
        let page = sentences("The `a b\nc d` of [a host](hosts.md \"x\") is set.\n");
        assert_eq!(page.iter().map(Sentence::words).collect::<Vec<_>>(), [7]);
    }
}
