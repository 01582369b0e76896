//! A layer: files with modes and owners, as a tar archive whose bytes follow from them alone.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

/// A file, directory or link of an image.
pub(super) struct ImageFile {
    pub(super) mode: u32,
    /// Number of its user and group.
    pub(super) owner: u32,
    pub(super) content: ImageContent,
}

pub(super) enum ImageContent {
    Bytes(Vec<u8>),
    Directory,
    /// A symbolic link.
    Link(String),
}

/// Files by their paths, without the first slash.
#[derive(Default)]
pub(super) struct ImageFiles(BTreeMap<String, ImageFile>);

impl ImageFiles {
    pub(super) fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.add(path, mode, 0, ImageContent::Bytes(bytes));
    }

    pub(super) fn directory(&mut self, path: &str, mode: u32, owner: u32) {
        self.add(path, mode, owner, ImageContent::Directory);
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.add(path, 0o777, 0, ImageContent::Link(target.to_owned()));
    }

    fn add(&mut self, path: &str, mode: u32, owner: u32, content: ImageContent) {
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(ImageFile {
                mode: 0o755,
                owner: 0,
                content: ImageContent::Directory,
            });
        }
        self.0.insert(path.to_owned(), ImageFile { mode, owner, content });
    }
}

/// The archive: in the order of paths, and with one time for everything.
pub(super) fn tar(files: &ImageFiles, epoch: u64) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, file) in &files.0 {
        let mut header = tar::Header::new_gnu();
        header.set_mode(file.mode);
        header.set_uid(file.owner.into());
        header.set_gid(file.owner.into());
        header.set_mtime(epoch);
        header.set_size(0);
        let added = match &file.content {
            ImageContent::Bytes(bytes) => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, path, bytes.as_slice())
            }
            ImageContent::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, format!("{path}/"), std::io::empty())
            }
            ImageContent::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                archive.append_link(&mut header, path, target)
            }
        };
        added.with_context(|| format!("{path} cannot be archived"))?;
    }
    Ok(archive.into_inner()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_lists_parents_first_and_is_equal_in_any_file_order() {
        let layer = |paths: &[&str]| {
            let mut files = ImageFiles::default();
            files.directory("var/own", 0o700, 7);
            for path in paths {
                files.file(path, 0o644, b"x".to_vec());
            }
            tar(&files, 1_900_000_000).unwrap()
        };
        let bytes = layer(&["usr/bin/b", "var/own/a"]);
        assert_eq!(bytes, layer(&["var/own/a", "usr/bin/b"]));
        let mut archive = tar::Archive::new(bytes.as_slice());
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                (path, header.mode().unwrap(), header.uid().unwrap())
            })
            .collect();
        let expected = [
            ("usr/", 0o755, 0),
            ("usr/bin/", 0o755, 0),
            ("usr/bin/b", 0o644, 0),
            ("var/", 0o755, 0),
            ("var/own/", 0o700, 7),
            ("var/own/a", 0o644, 0),
        ];
        assert_eq!(
            found,
            expected.map(|(path, mode, owner)| (path.to_owned(), mode, owner))
        );
    }
}
