//! Commands of a page of the documents, as a script that gives them one after the other in one shell, and compares
//! their output with the page's.

use std::fmt::Write as _;

use anyhow::{Result, bail};

/// Language of blocks whose commands are given.
const COMMANDS: &str = "console";
/// Language of a block, after one of commands, with lines that these must print. `…` matches anything.
const OUTPUT: &str = "text";
/// Mark of a block whose commands are not given, with the reason.
const LEFT_OUT: &str = "<!-- not run by the test: ";

/// Consecutive commands, and the output that they must give.
#[derive(PartialEq, Eq, Debug)]
struct Block {
    /// Heading above the block, as a name of a test.
    heading: String,
    commands: String,
    says: Vec<String>,
}

/// Beginning of every script. Output of a block goes into a file, so that a command left in the background prints
/// nothing between the lines that are parsed.
const HEAD: &str = r#"set -e -o pipefail
exec 3>&1
name= out=/run/page.out
report() {
    code=$?
    [ -n "$name" ] || return
    exec >&3 2>&1
    cat "$out"
    echo "it ended with $code"
    echo "test $name ... FAILED"
}
trap report EXIT
begin() {
    name=$1 since=$SECONDS
    exec >"$out" 2>&1
}
says() {
    if ! grep -Eqx -- "$1" "$out"; then
        echo "no line is like $1"
        exit 1
    fi
}
end() {
    exec >&3 2>&1
    echo "test $name ... ok"
    echo "$name took $((SECONDS - since)) s"
    name=
}
"#;

/// Makes the script of a page. The name of each of its tests begins with `prefix`.
pub(super) fn script(page: &str, prefix: &str) -> Result<String> {
    let mut script = HEAD.to_owned();
    let blocks = blocks(page)?;
    if blocks.is_empty() {
        bail!("the page has no block of commands");
    }
    for (number, block) in blocks.iter().enumerate() {
        let _ = writeln!(script, "begin {prefix}::{:02}_{}", number + 1, block.heading);
        script += &block.commands;
        for line in &block.says {
            let _ = writeln!(script, "says '{}'", pattern(line).replace('\'', "'\\''"));
        }
        script += "end\n";
    }
    Ok(script)
}

fn blocks(page: &str) -> Result<Vec<Block>> {
    let (mut blocks, mut heading, mut is_left_out) = (Vec::<Block>::new(), String::new(), false);
    let mut lines = page.lines();
    // Whether only empty lines have followed the last block of commands.
    let mut is_behind = false;
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            match language {
                COMMANDS if is_left_out => {}
                COMMANDS => blocks.push(Block {
                    heading: heading.clone(),
                    commands: body.join("\n") + "\n",
                    says: Vec::new(),
                }),
                OUTPUT if is_behind => {
                    let says = body.iter().filter(|line| !line.trim().is_empty());
                    let Some(block) = blocks.last_mut() else { continue };
                    block.says = says.map(|line| (*line).to_owned()).collect();
                }
                "sh" | "bash" | "shell" => bail!("under \"{heading}\": commands belong in blocks of `{COMMANDS}`"),
                _ => {}
            }
            is_behind = language == COMMANDS && !is_left_out;
            is_left_out = false;
        } else if line.starts_with(LEFT_OUT) {
            is_left_out = true;
        } else if let Some(text) = line.strip_prefix('#') {
            heading = name(text);
            is_behind = false;
        } else if !line.trim().is_empty() {
            is_behind = false;
        }
    }
    Ok(blocks)
}

/// Words of a heading, as a name.
fn name(heading: &str) -> String {
    let words = heading.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<String> = words
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("_")
}

/// Extended regular expression for a line of output, with any spaces in it.
fn pattern(line: &str) -> String {
    let part = |part: &str| {
        let special = |c: char| ".[]()*+?{}|^$\\".contains(c);
        part.chars().fold(String::new(), |mut made, c| {
            if special(c) {
                made.push('\\');
            }
            made.push(c);
            made
        })
    };
    let words = line
        .split_whitespace()
        .map(|word| word.split('…').map(part).collect::<Vec<_>>().join(".*"));
    format!(" *{} *", words.collect::<Vec<_>>().join(" +"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\n## First, look\n\n```console\nls /\n```\n\n```text\nbin  …\n\n```\n\n```yaml\na: 1\n```\n\n\
                        <!-- not run by the test: it takes a network -->\n```console\ngit clone x\n```\n\n```text\nnever\n```\n\n\
                        ## Then\n\n```console\ncat <<END\na\nEND\n```\n\nWords.\n\n```text\nno output\n```\n";

    #[test]
    fn commands_are_found_with_what_they_say() {
        let block = |heading: &str, commands: &str, says: &[&str]| Block {
            heading: heading.into(),
            commands: commands.into(),
            says: says.iter().map(|line| (*line).to_owned()).collect(),
        };
        let expected = [
            block("first_look", "ls /\n", &["bin  …"]),
            block("then", "cat <<END\na\nEND\n", &[]),
        ];
        assert_eq!(blocks(PAGE).unwrap(), expected);
    }

    #[test]
    fn a_block_of_another_language_or_an_empty_page_is_an_error() {
        assert!(blocks("```sh\nls\n```\n").is_err());
        assert!(script("# Page\n", "page").is_err());
    }

    #[test]
    fn a_pages_script_passes_only_if_commands_work_and_match_output() {
        let run = |commands: &str, says: &str| {
            let page = format!("# Page\n```console\n{commands}\n```\n```text\n{says}\n```\n");
            let script = script(&page, "page").unwrap();
            let file = std::env::temp_dir().join(format!("xtask-page-{}", std::process::id()));
            let script = script.replace("/run/page.out", &file.display().to_string());
            let output = std::process::Command::new("bash")
                .args(["-c", &script])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(
                output.status.success(),
                said.contains("test page::01_page ... ok\n"),
                "{said}"
            );
            output.status.success()
        };
        assert!(run("echo 'a.b  (1)'", "a.b (…)"));
        assert!(run("echo 'it'\"'\"'s'; false || true", "it's"));
        assert!(!run("echo 'axb (1)'", "a.b (1)"), "a full stop is one");
        assert!(!run("echo more than a", "a"));
        assert!(!run("false\necho a", "a"));
        assert!(!run("false | cat\necho a", "a"));
    }
}
