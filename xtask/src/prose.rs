//! `check-prose`: pages are written in plain English. An operator who lands on a page by search understands each sentence
//! at the first reading.

mod page;
mod phrases;

use std::path::Path;

use anyhow::{Context, Result, bail};

use page::Sentence;

/// Longest sentence, in words.
const MAX_WORDS: usize = 35;

/// Greatest median of the words of a page's sentences.
const MAX_MEDIAN: usize = 17;

/// Shortest sentence that counts for the median: shorter ones are labels.
const MIN_WORDS: usize = 4;

/// Page that is written from comments of the BPF sources.
const GENERATED: &str = "docs/kernel-maps.md";

/// Prints each sentence that is too long or hard to read, and fails if there is one.
pub(crate) fn run() -> Result<()> {
    let root = crate::root::root()?;
    let faults = check(&root)?;
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} places to be written in plainer words", faults.len());
    }
    Ok(())
}

fn check(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for name in crate::deps::pages(root)?.into_iter().filter(|name| name != GENERATED) {
        let text = std::fs::read_to_string(root.join(&name)).with_context(|| format!("{name} cannot be read"))?;
        faults.extend(check_page(&name, &text));
    }
    Ok(faults)
}

fn check_page(name: &str, text: &str) -> Vec<String> {
    let sentences = page::sentences(text);
    let mut faults = Vec::new();
    for sentence in &sentences {
        let place = format!("{name}:{}", sentence.line);
        if sentence.words() > MAX_WORDS {
            let (words, start) = (sentence.words(), sentence.start());
            faults.push(format!(
                "{place}: a sentence of {words} words, split it (at most {MAX_WORDS}): {start} ..."
            ));
        }
        for (phrase, plainer) in odd_phrases(sentence) {
            faults.push(format!("{place}: \"{phrase}\", write: {plainer}"));
        }
    }
    let mut lengths: Vec<_> = sentences
        .iter()
        .map(Sentence::words)
        .filter(|words| *words >= MIN_WORDS)
        .collect();
    lengths.sort_unstable();
    let median = lengths.get(lengths.len() / 2).copied().unwrap_or_default();
    if median > MAX_MEDIAN {
        faults.push(format!(
            "{name}: half of its sentences have {median} words or more (at most {MAX_MEDIAN}): shorten them"
        ));
    }
    faults
}

/// Phrases of a sentence that a reader stumbles over, each with a plainer one.
fn odd_phrases(sentence: &Sentence) -> Vec<(&'static str, &'static str)> {
    let text = format!(" {} ", sentence.bare());
    let is_in = |phrase: &str| text.contains(&format!(" {phrase} "));
    let phrases = phrases::PHRASES.iter().filter(|(phrase, _)| is_in(phrase));
    let is_question = sentence.text.trim_end_matches(['*', '_', ')', '"']).ends_with('?');
    let first = sentence.text.split_whitespace().next();
    let openings = phrases::OPENINGS
        .iter()
        .filter(|(word, _)| !is_question && first == Some(word));
    phrases.chain(openings).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_phrases_are_found_with_line_and_plainer_words() {
        let text = "# What is there\n\nThe host, whoever\nasks, answers. What waits is lost. What is lost?\n";
        assert_eq!(
            check_page("a.md", text),
            [
                "a.md:3: \"whoever\", write: anyone who, the client that",
                "a.md:4: \"What\", write: name the thing: `The bytes that ...`",
            ]
        );
        assert_eq!(
            check_page("a.md", "The hosts are `behind it`. A whoeverish word.\n"),
            [""; 0]
        );
    }

    #[test]
    fn sentences_have_at_most_35_words() {
        let of = |words: usize| "Word ".repeat(words - 1) + "end.\n";
        assert_eq!(check_page("a.md", &(of(10) + &of(10) + &of(35))), [""; 0]);
        let faults = check_page("a.md", &(of(10) + &of(10) + &of(36)));
        assert!(faults.len() == 1 && faults[0].contains("36 words"), "{faults:?}");
    }

    #[test]
    fn half_of_a_pages_sentences_are_short() {
        let page = |words: usize| ("Word ".repeat(words - 1) + "end.\n").repeat(3);
        assert_eq!(check_page("a.md", &page(17)), [""; 0]);
        assert_eq!(
            check_page("a.md", &page(18)),
            ["a.md: half of its sentences have 18 words or more (at most 17): shorten them"]
        );
    }
}
