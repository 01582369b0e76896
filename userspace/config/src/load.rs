//! Loading of the file; [`super::parse`] decodes its text.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{ConfigErrors, Parsed, parse};

/// Largest file that is read, in bytes. A configuration with all the routes signalbox can hold is far smaller; a log or
/// a device named by mistake is not.
pub const MAX_BYTES: u64 = 64 << 20;

/// Reason why a file gave no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("cannot read {}: {source}: {}", path.display(), remedy(source))]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is larger than [`MAX_BYTES`].
    #[error("{} is larger than 64 MiB: is it the configuration?", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not text.
    #[error("{} is not UTF-8 text (first at line {line}): save it as UTF-8", path.display())]
    NotText {
        /// Path of the file.
        path: PathBuf,
        /// First line with bytes that are not UTF-8, from 1.
        line: usize,
    },
    /// The configuration has mistakes.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
}

/// Reads and parses a file.
pub fn load(path: &Path) -> Result<Parsed, LoadError> {
    decode(File::open(path).and_then(read), path)
}

/// Reads and parses standard input.
pub fn load_input() -> Result<Parsed, LoadError> {
    decode(read(io::stdin()), Path::new("standard input"))
}

/// Parses the bytes of a file.
fn decode(bytes: io::Result<Option<Vec<u8>>>, path: &Path) -> Result<Parsed, LoadError> {
    let bytes = bytes.map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })?;
    let Some(bytes) = bytes else {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    };
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = bytes.iter().take(error.valid_up_to());
            let line = good.filter(|&&byte| byte == b'\n').count() + 1;
            return Err(LoadError::NotText {
                path: path.to_owned(),
                line,
            });
        }
    };
    parse(text).map_err(|errors| errors.with_file(path).into())
}

/// Reads a file. `None`: it has more than [`MAX_BYTES`].
fn read(file: impl io::Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok((read as u64 <= MAX_BYTES).then_some(bytes))
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "create it, or give the path of another",
        io::ErrorKind::PermissionDenied => "let the user that signalbox runs as read it, and enter its directories",
        io::ErrorKind::IsADirectory => "give the path of a file in it",
        _ => "check the path and what it is stored on",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("signalbox-config-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_missing_file_is_named_with_the_remedy() {
        let message = load(Path::new("/nonexistent/signalbox.yaml")).unwrap_err().to_string();
        assert!(
            message.starts_with("cannot read /nonexistent/signalbox.yaml: No such file"),
            "{message}"
        );
        assert!(message.ends_with("create it, or give the path of another"), "{message}");
        let message = load(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(message.ends_with("give the path of a file in it"), "{message}");
    }

    #[test]
    fn an_endless_file_is_refused_as_too_large_a_configuration() {
        assert!(matches!(load(Path::new("/dev/zero")), Err(LoadError::TooLarge { .. })));
    }

    #[test]
    fn bytes_that_are_no_text_are_placed() {
        let path = scratch("bytes");
        std::fs::write(&path, b"version: 1\n\xff\n").unwrap();
        let message = load(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(message.contains("(first at line 2)"), "{message}");
    }

    #[test]
    fn mistakes_name_the_file() {
        let path = scratch("mistakes");
        std::fs::write(&path, "version: 2\nlisteners: []\nclusters: []\n").unwrap();
        let message = load(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(
            message.starts_with(&format!("{}:1:10: version: ", path.display())),
            "{message}"
        );
    }
}
