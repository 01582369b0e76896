//! `docs`: the pages of `docs/` as a site with a search, built by mdBook.
//!
//! The chapters are those of docs/SUMMARY.md, which `check-deps` compares with the pages. README is the first one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::deps::TOP_PAGES;
use crate::exec::{Run, find_program};
use crate::root::root;

const MDBOOK: &str = "0.4.52";

const BOOK: &str =
    "[book]\ntitle = \"signalbox\"\nlanguage = \"en\"\nsrc = \"src\"\n\n[output.html]\nno-section-label = true\n";

/// Builds the site below `target/docs`.
pub(crate) fn run() -> Result<()> {
    install()?;
    let root = root()?;
    let book = root.join("target/docs");
    let _ = fs::remove_dir_all(&book);
    copy(&root.join("docs"), &book.join("src"))?;
    for page in crate::deps::pages(&root)?.iter().filter(|page| !page.contains('/')) {
        let text = fs::read_to_string(root.join(page)).with_context(|| format!("{page} cannot be read"))?;
        write(
            &book.join("src").join(page),
            &without_outer_links(&text.replace("](docs/", "](")),
        )?;
    }
    write(&book.join("book.toml"), BOOK)?;
    Run::new("mdbook")?.args(["build"]).args([&book]).run()?;
    println!("{}", book.join("book/index.html").display());
    Ok(())
}

fn install() -> Result<()> {
    if find_program("mdbook").is_some() {
        return Ok(());
    }
    let cargo = Run::cargo(["install", "mdbook", "--version", MDBOOK, "--locked", "--debug"])?;
    cargo.without_env("RUSTFLAGS").without_env("CARGO_TARGET_DIR").run()
}

/// Copies a folder; pages lose their links to files that the site does not have.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{} cannot be made", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &target)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            write(&target, &without_outer_links(&text))?;
        } else {
            fs::copy(&path, &target).with_context(|| format!("{} cannot be copied", path.display()))?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// Replaces links that leave the site by their labels. Pages at the top of the repository are in it.
fn without_outer_links(text: &str) -> String {
    let text = TOP_PAGES.iter().fold(text.to_owned(), |text, page| {
        text.replace(&format!("](../{page}"), &format!("]({page}"))
    });
    let is_outer = |target: &str| {
        let path = target.split_once('#').map_or(target, |(path, _)| path);
        let is_page =
            path.is_empty() || (path.ends_with(".md") && !path.contains('/')) || path.starts_with("pictures/");
        let is_image = [".png", ".svg", ".webp", ".yaml"]
            .iter()
            .any(|ending| path.ends_with(ending));
        !target.contains("://") && (target.starts_with("../") || !(is_page || is_image))
    };
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find("](") {
        let (before, after) = rest.split_at(at);
        let end = after.find(')').unwrap_or(after.len() - 1);
        let label = before.rfind('[').filter(|_| is_outer(&after[2..end]));
        match label {
            Some(start) => {
                out.push_str(&before[..start]);
                out.push_str(&before[start + 1..]);
            }
            None => {
                out.push_str(before);
                out.push_str(&after[..=end]);
            }
        }
        rest = &after[end + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_leave_the_site_become_their_labels() {
        let text = "See [the maps](kernel-maps.md#pins), [`rivals`](../bench/rivals/README.md), [a\nlicence](LICENSE-MIT), \
                    [RFC](https://example.org/a) and ![a picture](pictures/ui.webp).";
        let expected = "See [the maps](kernel-maps.md#pins), `rivals`, a\nlicence, [RFC](https://example.org/a) and \
                        ![a picture](pictures/ui.webp).";
        assert_eq!(without_outer_links(text), expected);
    }
}
