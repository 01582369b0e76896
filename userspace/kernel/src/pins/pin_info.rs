//! Type of a pin, as the kernel describes its descriptor (`/proc/self/fdinfo`): a link and where it is attached, or a
//! map and its shape.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use aya_obj::obj::Object;

use crate::map;

/// Text of `/proc/self/fdinfo` for a pinned object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PinInfo(String);

impl PinInfo {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let pinned = map::open_pin(path)?;
        fs::read_to_string(format!("/proc/self/fdinfo/{}", pinned.as_raw_fd())).map(Self)
    }

    fn number(&self, key: &str) -> Option<u32> {
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix(':')?.trim().parse().ok();
        self.0.lines().find_map(value)
    }

    /// Returns whether the pin is a link whose interface is gone; `None` if it is no link.
    pub(super) fn is_defunct_link(&self) -> Option<bool> {
        let is_link = self.0.lines().any(|line| line.starts_with("link_type:"));
        is_link.then(|| self.number("ifindex") == Some(0))
    }

    /// Returns type, key size and value size of a map; `None` if the pin is no map.
    fn shape(&self) -> Option<[u32; 3]> {
        Some([
            self.number("map_type")?,
            self.number("key_size")?,
            self.number("value_size")?,
        ])
    }
}

/// Fails if a pin in `dir` has the name of a map of the object but another shape: the programs could not be loaded onto it,
/// and the kernel would not say why.
pub(super) fn check_shapes(dir: &Path, object: &[u8]) -> io::Result<()> {
    let mut names: Vec<_> = super::names_in(dir).unwrap_or_default();
    names.retain(|name| crate::map_in_map::inner_shape(name).is_none());
    if names.is_empty() {
        return Ok(());
    }
    let ours = Object::parse(object).map_err(io::Error::other)?;
    for (name, path) in names.iter().map(|name| (name, dir.join(name))) {
        let Some(wanted) = ours.maps.get(name) else { continue };
        let wanted = [wanted.map_type(), wanted.key_size(), wanted.value_size()];
        let found = if path.is_dir() {
            None
        } else {
            PinInfo::open(&path)?.shape()
        };
        if found != Some(wanted) {
            return Err(io::Error::other(format!(
                "{} is not the map that belongs there ({}, not {}): `signalbox detach` removes what is pinned, and cut \
                 flows and services' flows end with it",
                path.display(),
                found.map_or_else(|| "no map".to_owned(), shape_text),
                shape_text(wanted),
            )));
        }
    }
    Ok(())
}

fn shape_text([kind, key, value]: [u32; 3]) -> String {
    format!("type {kind} with keys of {key} and values of {value} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_info_tells_links_from_maps_and_finds_defunct_links() {
        let link = |ifindex: u32| PinInfo(format!("pos:\t0\nlink_type:\ttcx\nlink_id:\t7\nifindex:\t{ifindex}\n"));
        assert_eq!(link(0).is_defunct_link(), Some(true));
        assert_eq!(link(12).is_defunct_link(), Some(false));
        // A link that does not say where it is attached may be anywhere.
        assert_eq!(PinInfo("link_type:\txdp\n".into()).is_defunct_link(), Some(false));
        let map = PinInfo("flags:\t02000002\nmap_type:\t2\nkey_size:\t4\nvalue_size:\t256\nmax_entries:\t8\n".into());
        assert_eq!((map.is_defunct_link(), map.shape()), (None, Some([2, 4, 256])));
        assert_eq!(link(1).shape(), None);
    }
}
