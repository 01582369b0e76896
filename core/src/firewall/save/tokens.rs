//! Words of a rule.

/// Words of a rule, in quotes or not.
pub(super) struct RuleWords {
    words: Vec<(String, bool)>,
    at: usize,
}

impl RuleWords {
    pub(super) fn new(rule: &str) -> Self {
        let (mut words, mut word, mut is_quoted, mut is_open) = (Vec::new(), String::new(), false, false);
        let mut rest = rule.chars();
        while let Some(character) = rest.next() {
            match character {
                '"' => (is_open, is_quoted) = (!is_open, true),
                '\\' if is_open => word.extend(rest.next()),
                ' ' if !is_open => {
                    if is_quoted || !word.is_empty() {
                        words.push((std::mem::take(&mut word), is_quoted));
                    }
                    is_quoted = false;
                }
                other => word.push(other),
            }
        }
        if is_quoted || !word.is_empty() {
            words.push((word, is_quoted));
        }
        Self { words, at: 0 }
    }

    /// The next word, whatever it is.
    pub(super) fn take(&mut self) -> Option<String> {
        let (word, _) = self.words.get(self.at)?;
        self.at += 1;
        Some(word.clone())
    }

    pub(super) fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(|(word, _)| word.as_str())
    }

    /// Words up to the next option.
    pub(super) fn arguments(&mut self) -> Vec<String> {
        let rest = self.words.get(self.at..).unwrap_or_default();
        let is_argument = |(word, is_quoted): &&(String, bool)| *is_quoted || !word.starts_with('-') && word != "!";
        let found: Vec<_> = rest
            .iter()
            .take_while(is_argument)
            .map(|(word, _)| word.clone())
            .collect();
        self.at += found.len();
        found
    }

    /// Whether one of the words is among these.
    pub(super) fn have_any(&self, wanted: &[&str]) -> bool {
        self.words
            .iter()
            .any(|(word, is_quoted)| !is_quoted && wanted.contains(&word.as_str()))
    }
}
