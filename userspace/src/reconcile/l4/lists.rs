//! Prefix lists of the shield from the configuration, from files and from the API, and the tables made of them.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use signalbox_common::shield::prefixes::Node;
use signalbox_core::limits::prefixes::{Verdict, build};
use signalbox_core::model::shield::{PrefixLists, Prefixes, parse_net};

use crate::sys::FileStamp;

/// Largest file that is read: some four million prefixes.
const MAX_FILE_BYTES: u64 = 128 << 20;

/// Files with prefixes, as last read.
#[derive(Default)]
pub(super) struct Files(HashMap<PathBuf, File>);

struct File {
    /// Stamp of the content that was read; `None`: it could not be read.
    stamp: Option<FileStamp>,
    /// Stamp at the last check: a file that is still changing is not read.
    last_seen: Option<FileStamp>,
    prefixes: Arc<Vec<IpNet>>,
    error: Option<String>,
}

impl Files {
    /// Reads files that have changed. If a file cannot be read, its last content stays active.
    pub(super) fn refresh<'a>(&mut self, paths: impl Iterator<Item = &'a PathBuf>) {
        let mut before = std::mem::take(&mut self.0);
        for path in paths {
            if self.0.contains_key(path) {
                continue;
            }
            let known = before.remove(path);
            let stamp = FileStamp::of(path).ok();
            let file = match known {
                Some(known) if stamp.is_some() && known.stamp == stamp => known,
                // A writer may still be at work: the stamp must be the same in two checks.
                Some(mut known) if stamp.is_some() && known.last_seen != stamp => {
                    known.last_seen = stamp;
                    known
                }
                known => reread(path, stamp, known),
            };
            self.0.insert(path.clone(), file);
        }
    }

    pub(super) fn errors(&self) -> Vec<String> {
        let mut all: Vec<_> = self.0.values().filter_map(|file| file.error.clone()).collect();
        all.sort();
        all
    }

    fn prefixes(&self, path: &Path) -> Arc<Vec<IpNet>> {
        self.0
            .get(path)
            .map(|file| Arc::clone(&file.prefixes))
            .unwrap_or_default()
    }
}

/// Reads a file. Logs its errors once.
fn reread(path: &Path, seen: Option<FileStamp>, known: Option<File>) -> File {
    let mut read = read(path);
    if read.is_ok() && FileStamp::of(path).ok() != seen {
        read = Err(format!("{}: the file changed while it was read", path.display()));
    }
    let trouble = read.as_ref().err().cloned();
    match &trouble {
        Some(error) if known.as_ref().is_none_or(|known| known.error != trouble) => {
            tracing::error!(
                error,
                "A file of prefixes cannot be used; the prefixes last read from it stay active."
            );
        }
        None => tracing::info!(file = %path.display(), "A file of prefixes has been read."),
        Some(_) => {}
    }
    let is_wrong_text = trouble.is_some() && std::fs::File::open(path).is_ok();
    File {
        stamp: if trouble.is_none() || is_wrong_text { seen } else { None },
        last_seen: seen,
        prefixes: read.map_or_else(|_| known.map(|known| known.prefixes).unwrap_or_default(), Arc::new),
        error: trouble,
    }
}

fn read(path: &Path) -> Result<Vec<IpNet>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    if FileStamp::of(path).map_err(failed)?.length > MAX_FILE_BYTES {
        return Err(format!(
            "{}: the file is larger than {} MiB",
            path.display(),
            MAX_FILE_BYTES >> 20
        ));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse(&text).map_err(|(line, what)| {
        format!(
            "{}:{line}: {what:?} is not a prefix without bits beyond its length, such as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.7",
            path.display()
        )
    })
}

/// Parses a prefix or an address per line; `#` begins a comment. `Err`: the number of the wrong line, from 1, and its
/// text.
fn parse(text: &str) -> Result<Vec<IpNet>, (usize, String)> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let what = line.split('#').next().unwrap_or_default().trim();
        if what.is_empty() {
            continue;
        }
        match parse_net(what) {
            // An address with host bits is refused, because a truncated line may look like a shorter prefix.
            Some(net) if net == net.trunc() => all.push(net),
            _ => return Err((number, what.chars().take(60).collect())),
        }
    }
    Ok(all)
}

/// Lists that a prefix table is made of.
#[derive(Clone, Default, PartialEq)]
pub(super) struct PrefixSet {
    lists: Arc<PrefixLists>,
    from_api: Arc<Prefixes>,
    /// Prefixes of files: denied, then allowed.
    files: [Vec<Arc<Vec<IpNet>>>; 2],
}

impl PrefixSet {
    pub(super) fn new(lists: &Arc<PrefixLists>, told: Option<&Arc<Prefixes>>, files: &Files) -> Self {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| files.prefixes(path)).collect();
        Self {
            lists: Arc::clone(lists),
            from_api: told.cloned().unwrap_or_default(),
            files: [all(&lists.deny_files), all(&lists.allow_files)],
        }
    }

    fn iter(&self) -> impl Iterator<Item = (IpNet, Verdict)> + '_ {
        let [denied, allowed] = &self.files;
        let deny = [&self.lists.deny, &self.from_api.deny]
            .into_iter()
            .chain(denied.iter().map(|file| &**file));
        let allow = [&self.lists.allow, &self.from_api.allow]
            .into_iter()
            .chain(allowed.iter().map(|file| &**file));
        let deny = deny.flatten().map(|net| (*net, Verdict::Deny));
        deny.chain(allow.flatten().map(|net| (*net, Verdict::Allow)))
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn build(&self) -> Vec<Node> {
        build(self.iter())
    }

    /// Returns the longest prefix that contains an address, with its verdict.
    pub(super) fn longest_match(&self, address: IpAddr) -> Option<(IpNet, Verdict)> {
        let holds = self.iter().filter(|(net, _)| net.contains(&address));
        holds.max_by_key(|(net, verdict)| (net.prefix_len(), *verdict == Verdict::Allow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_lines_are_prefixes_or_comments_and_errors_give_the_line() {
        let text = "# from the abuse desk\n192.0.2.0/24\n\n 192.0.2.7 # but not he\n2001:db8::/32\n";
        let all = parse(text).unwrap();
        let shown: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.0/24", "192.0.2.7/32", "2001:db8::/32"]);
        assert_eq!(parse("192.0.2.0/24\nnobody\n"), Err((2, "nobody".to_owned())));
        assert_eq!(parse("192.0.2.7/3"), Err((1, "192.0.2.7/3".to_owned())));
        assert_eq!(parse("192.0.2.0/33"), Err((1, "192.0.2.0/33".to_owned())));
    }

    #[test]
    fn a_file_that_is_wrong_leaves_what_it_said_before() {
        let path = std::env::temp_dir().join(format!("signalbox-lists-{}", std::process::id()));
        let mut files = Files::default();
        std::fs::write(&path, "192.0.2.0/24\n").unwrap();
        files.refresh([&path].into_iter());
        assert_eq!((files.prefixes(&path).len(), files.errors().len()), (1, 0));
        std::fs::write(&path, "192.0.2.0/24\n198.51.100.0/24\nwhat?\n").unwrap();
        files.refresh([&path].into_iter());
        assert_eq!(files.errors().len(), 0, "somebody may be writing it");
        files.refresh([&path].into_iter());
        assert_eq!(files.prefixes(&path).len(), 1);
        assert!(
            files.errors()[0].contains(":3: \"what?\" is not a prefix"),
            "{:?}",
            files.errors()
        );
        std::fs::remove_file(&path).unwrap();
        files.refresh([&path].into_iter());
        assert_eq!(files.prefixes(&path).len(), 1, "gone: as before");
        assert!(files.errors()[0].contains("No such file"));
    }

    #[test]
    fn the_longest_prefix_decides_and_allow_wins_on_equal_prefixes() {
        let lists = PrefixLists {
            deny: vec!["192.0.2.0/24".parse().unwrap(), "192.0.2.9/32".parse().unwrap()],
            allow: vec!["192.0.2.8/29".parse().unwrap(), "192.0.2.9/32".parse().unwrap()],
            ..PrefixLists::default()
        };
        let source = PrefixSet::new(&Arc::new(lists), None, &Files::default());
        let of = |text: &str| {
            source
                .longest_match(text.parse().unwrap())
                .map(|(net, v)| (net.to_string(), v))
        };
        assert_eq!(of("192.0.2.1"), Some(("192.0.2.0/24".into(), Verdict::Deny)));
        assert_eq!(of("192.0.2.10"), Some(("192.0.2.8/29".into(), Verdict::Allow)));
        assert_eq!(of("192.0.2.9"), Some(("192.0.2.9/32".into(), Verdict::Allow)));
        assert_eq!(of("192.0.3.1"), None);
    }
}
