//! `signalbox man`: a manual page for each command, made from the text of `--help`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Section of the pages: commands for administrators.
const SECTION: &str = "8";

const FILES: [(&str, &str); 4] = [
    (
        "/etc/signalbox/signalbox.yaml",
        "The configuration that the packaged unit reads.",
    ),
    (
        "/run/signalbox/admin.sock",
        "The admin socket, through which the other commands reach the running process.",
    ),
    (
        "/var/lib/signalbox",
        "State that is kept over restarts: weights and rotations that were set, and discovered routes.",
    ),
    (
        "/sys/fs/bpf/signalbox",
        "Pinned programs and maps: cut flows and services outlive the process.",
    ),
];

const SIGNALS: [(&str, &str); 3] = [
    (
        "SIGTERM",
        "Stop: accept no new connections, and let open connections finish. A second SIGTERM ends the process at once.",
    ),
    ("SIGHUP", "Read the configuration again."),
    (
        "SIGUSR2",
        "Start a successor: the program that is on disk, with the same arguments. It takes over, and this process drains.",
    ),
];

#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// The directory to write to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The date that the pages show, as YYYY-MM-DD.
    #[arg(long)]
    date: String,
}

pub(super) fn run(args: &ManArgs, root: clap::Command) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.out).with_context(|| format!("{} cannot be made", args.out.display()))?;
    let mut root = root.disable_help_subcommand(true);
    // Sets each command's full name, and the options of its parent commands.
    root.build();
    write_pages(&root, &[], args)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and of its subcommands. `above` are the pages to refer to.
fn write_pages(command: &clap::Command, above: &[String], args: &ManArgs) -> anyhow::Result<()> {
    let name = page_name(command);
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(SECTION)
        .date(&args.date)
        .source(format!("signalbox {version}"))
        .manual("signalbox");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let below: Vec<_> = shown_below(command).collect();
    if !below.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    if above.is_empty() {
        definitions("SIGNALS", &SIGNALS).to_writer(&mut page)?;
        definitions("FILES", &FILES).to_writer(&mut page)?;
    } else {
        see_also(above).to_writer(&mut page)?;
    }
    write_page(&args.out, &name, &page)?;
    let mut above = above.to_vec();
    above.push(name);
    below.iter().try_for_each(|below| write_pages(below, &above, args))
}

/// Full name of a command, with hyphens.
fn page_name(command: &clap::Command) -> String {
    let name = command.get_display_name();
    name.unwrap_or_else(|| command.get_name()).to_owned()
}

/// Subcommands of a command, except for hidden ones.
fn shown_below(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

fn write_page(out: &Path, name: &str, page: &[u8]) -> anyhow::Result<()> {
    let file = out.join(format!("{name}.{SECTION}"));
    std::fs::write(&file, page).with_context(|| format!("{} cannot be written", file.display()))
}

fn definitions(title: &str, pairs: &[(&str, &str)]) -> Roff {
    let mut section = Roff::new();
    section.control("SH", [title]);
    for (term, meaning) in pairs {
        section.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
    }
    section
}

fn see_also(pages: &[String]) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["SEE ALSO"]);
    let mut words = Vec::new();
    for page in pages {
        if !words.is_empty() {
            words.push(roman(", "));
        }
        words.extend([bold(page.clone()), roman(format!("({SECTION})"))]);
    }
    section.text(words);
    section
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use clap::CommandFactory as _;

    fn visit(command: &clap::Command, see: &mut impl FnMut(&clap::Command)) {
        see(command);
        shown_below(command).for_each(|below| visit(below, see));
    }

    #[test]
    fn each_command_that_is_shown_has_a_page_with_its_options() {
        let out = std::env::temp_dir().join(format!("signalbox-man-{}", std::process::id()));
        let args = ManArgs {
            out: out.clone(),
            date: "2030-01-02".to_owned(),
        };
        run(&args, crate::cli::Cli::command()).expect("pages are written");
        let page = |name: &str| std::fs::read_to_string(out.join(name));
        let run = page("signalbox-run.8").expect("`run` has a page");
        assert!(run.contains("\\-\\-takeover") && run.contains("2030"), "{run}");
        assert!(page("signalbox-ha-run.8").is_ok_and(|text| text.contains("signalbox\\-ha")));
        assert!(page("signalbox.8").is_ok_and(|text| text.contains("/etc/signalbox/signalbox.yaml")));
        assert!(page("signalbox-man.8").is_err(), "a hidden command has no page");
        std::fs::remove_dir_all(out).expect("the pages are removed");
    }

    /// Commands whose manual pages are in a package's list of files.
    fn listed(list: &str) -> BTreeSet<String> {
        let names = list
            .lines()
            .filter_map(|line| line.split_once("/man/man8/")?.1.strip_suffix(".8.gz"));
        names.map(str::to_owned).collect()
    }

    /// The packages are built half an hour later. A new, renamed or removed command must be noticed now.
    #[test]
    fn the_lists_of_files_of_packages_have_the_page_of_each_command() {
        let mut root = crate::cli::Cli::command().disable_help_subcommand(true);
        root.build();
        let mut made = BTreeSet::new();
        visit(&root, &mut |command| {
            made.insert(page_name(command));
        });
        assert!(
            made.contains("signalbox-ha-run") && !made.contains("signalbox-man"),
            "{made:?}"
        );
        for (file, list) in [
            (
                "packaging/deb/files.txt",
                include_str!("../../../packaging/deb/files.txt"),
            ),
            (
                "packaging/rpm/files.txt",
                include_str!("../../../packaging/rpm/files.txt"),
            ),
            (
                "packaging/tar/files.txt",
                include_str!("../../../packaging/tar/files.txt"),
            ),
        ] {
            let listed = listed(list);
            let lacking: Vec<_> = made.difference(&listed).collect();
            let gone: Vec<_> = listed.difference(&made).collect();
            assert!(
                lacking.is_empty() && gone.is_empty(),
                "{file} lacks the pages of {lacking:?}, and has those of {gone:?}, which are no commands: `cargo xtask \
                 dist --check --update --profile dev` writes the lists"
            );
        }
    }
}
