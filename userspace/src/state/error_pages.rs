//! The operator's own error pages, read from files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Maximum size of a page, which is sent to each refused client.
const MAX_PAGE_BYTES: usize = 64 * 1024;

/// Pages that replace the balancer's own, by status code.
#[derive(Debug, Default)]
pub struct ErrorPages(HashMap<u16, ErrorPage>);

/// A page, with its content type.
#[derive(Debug)]
pub struct ErrorPage {
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

impl ErrorPages {
    /// Reads the files. The first unusable file is the error.
    pub fn load(files: &BTreeMap<u16, PathBuf>) -> Result<Self, String> {
        let page = |(status, path): (&u16, &PathBuf)| {
            let page = ErrorPage::load(path);
            page.map(|page| (*status, page))
                .map_err(|error| format!("page for {status}, {}: {error}", path.display()))
        };
        files.iter().map(page).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the page for a status code.
    #[must_use]
    pub fn get(&self, status: u16) -> Option<&ErrorPage> {
        self.0.get(&status)
    }
}

impl ErrorPage {
    fn load(path: &Path) -> Result<Self, String> {
        let mut body = Vec::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        // A directory can be opened, and a device may have no end.
        if !file.metadata().is_ok_and(|file| file.is_file()) {
            return Err("not a regular file".to_owned());
        }
        let read = file.take(MAX_PAGE_BYTES as u64 + 1).read_to_end(&mut body);
        read.map_err(|error| error.to_string())?;
        if body.len() > MAX_PAGE_BYTES {
            return Err(format!("longer than {MAX_PAGE_BYTES} bytes"));
        }
        let content_type = match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => "application/json",
            Some("txt") => "text/plain; charset=utf-8",
            _ => "text/html; charset=utf-8",
        };
        Ok(Self { content_type, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_and_what_is_none_is_refused() {
        let directory = std::env::temp_dir().join(format!("signalbox-pages-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (page, long) = (directory.join("503.json"), directory.join("long.html"));
        std::fs::write(&page, "{}").unwrap();
        std::fs::write(&long, vec![b'a'; MAX_PAGE_BYTES + 1]).unwrap();
        let load = |path: &Path| ErrorPages::load(&BTreeMap::from([(503, path.to_owned())]));
        let pages = load(&page).unwrap();
        let found = pages.get(503).unwrap();
        assert_eq!((found.content_type, &found.body[..]), ("application/json", &b"{}"[..]));
        assert!(pages.get(404).is_none());
        for (path, error) in [
            (&*directory.join("none.html"), "No such file"),
            (&directory, "not a regular file"),
            (&long, "longer than"),
            (Path::new("/dev/zero"), "not a regular file"),
        ] {
            let refused = load(path).unwrap_err();
            assert!(
                refused.starts_with("page for 503, ") && refused.contains(error),
                "{refused}"
            );
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
