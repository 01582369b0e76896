//! Layout of pinned structures, pinned beside the maps as text: another version of signalbox, whose structures differ,
//! reads flows by it field by field. The rules for those who change a structure are in `signalbox_common::layout`.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

use aya::Pod;
use serde::{Deserialize, Serialize};
use signalbox_common::layout::{Field, Layout};

use super::former_names;
use crate::map::{self, MapFd};

/// Name of the pin: an array map of one element, JSON filled up with NUL.
pub(crate) const LAYOUT: &str = "LAYOUT";

/// Shapes of structures, by name.
pub(crate) type Structures = BTreeMap<String, Shape>;

/// Fields of a structure: offset and size in bytes by name, such as `dirs.1.ack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    size: usize,
    fields: BTreeMap<String, (usize, usize)>,
}

impl Shape {
    /// Returns the shape of a structure of this version.
    #[must_use]
    pub(crate) fn of<T: Layout>() -> Self {
        let mut fields = BTreeMap::new();
        collect(T::FIELDS, "", 0, &mut fields);
        let size = size_of::<T>();
        Self { size, fields }
    }

    /// Plans the conversion of bytes of this shape to a `T`. Fields that `T` lacks are left out, fields that only `T`
    /// has are zero.
    pub(crate) fn plan<T: Layout + Pod>(&self) -> io::Result<Conversion> {
        let mut copies = Vec::new();
        for (name, (to, room)) in Self::of::<T>().fields {
            let theirs = self.fields.get(&name);
            let Some(&(from, size)) = theirs.or_else(|| self.fields.get(&*former_names::of_field(&name))) else {
                continue;
            };
            if size > room || from.checked_add(size).is_none_or(|end| end > self.size) {
                return Err(io::Error::other(format!(
                    "its field {name} has {size} bytes at {from} of {}, and {room} here",
                    self.size
                )));
            }
            copies.push((from, to, size));
        }
        Ok(Conversion {
            size: self.size,
            copies,
        })
    }

    /// Finds a field that is a 32-bit number.
    pub(crate) fn number(&self, name: &str) -> io::Result<NumberField> {
        match self.fields.get(name) {
            Some(&(offset, 4)) => Ok(NumberField(offset)),
            other => Err(io::Error::other(format!(
                "its field {name} is no number of 32 bits: {other:?}"
            ))),
        }
    }
}

/// Offset of a 32-bit number in a structure of another version.
pub(crate) struct NumberField(usize);

impl NumberField {
    pub(crate) fn read(&self, bytes: &[u8]) -> Option<u32> {
        bytes
            .get(self.0..)?
            .first_chunk()
            .map(|bytes| u32::from_ne_bytes(*bytes))
    }
}

fn collect(fields: &[Field], prefix: &str, base: usize, into: &mut BTreeMap<String, (usize, usize)>) {
    for field in fields {
        let (name, offset) = (format!("{prefix}{}", field.name), base + field.offset);
        if field.parts.is_empty() {
            into.insert(name, (offset, field.size));
            continue;
        }
        for index in 0..field.count {
            let at = offset + index * (field.size / field.count);
            collect(field.parts, &format!("{name}.{index}."), at, into);
        }
    }
}

/// Copies to make from a structure of another version to one of this version.
pub(crate) struct Conversion {
    size: usize,
    /// Offset in the other version, offset in this version, size. Numbers are little-endian: one that has grown keeps
    /// its value.
    copies: Vec<(usize, usize, usize)>,
}

impl Conversion {
    /// Converts the bytes of the other version's structure; `None` if they are fewer than it has.
    #[must_use]
    pub(crate) fn read<T: Pod>(&self, bytes: &[u8]) -> Option<T> {
        const { assert!(cfg!(target_endian = "little")) };
        if bytes.len() < self.size {
            return None;
        }
        let mut value = MaybeUninit::<T>::zeroed();
        for &(from, to, size) in &self.copies {
            debug_assert!(to + size <= size_of::<T>());
            // SAFETY: `plan` has taken `to` and a size that fits from the layout of a `T`; the source's end is checked
            // there.
            unsafe {
                let target = value.as_mut_ptr().cast::<u8>().add(to);
                target.copy_from_nonoverlapping(bytes.as_ptr().add(from), size);
            }
        }
        // SAFETY: all bytes are initialised, and every bit pattern of a Pod is a value.
        Some(unsafe { value.assume_init() })
    }
}

/// Pins the layout at `path`, unless there is one.
pub(crate) fn pin(path: &Path, structures: &Structures) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut text = serde_json::to_vec(structures)?;
    text.resize(text.len().next_multiple_of(8), 0);
    let made = map::create_array("layout", text.len() as u32, 1, 0)?;
    MapFd::new(std::os::fd::AsFd::as_fd(&made))?.update_bytes(&0u32, &text)?;
    map::pin(&made, path)
}

/// Reads the layout that is pinned in a directory.
pub(crate) fn read(dir: &Path) -> io::Result<Structures> {
    let raw = map::RawMap::open(&dir.join(LAYOUT))?;
    let text = raw.get(&0u32.to_ne_bytes())?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Ok(serde_json::from_slice(text.get(..end).unwrap_or_default())?)
}

#[cfg(test)]
mod tests {
    use signalbox_common::cut::flow::{CutFlow, DirState};
    use signalbox_common::net::Key;

    use super::*;

    /// Returns the bytes of a structure.
    fn bytes<T: Pod>(value: &T) -> Vec<u8> {
        // SAFETY: a Pod has no padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
    }

    fn flow() -> CutFlow {
        let way = |n: u32| DirState {
            packets: u64::from(n) << 40,
            ack: n + 1,
            macs: [n, n + 2, n + 3],
            flags: n,
            ..DirState::default()
        };
        CutFlow {
            state: 4,
            ineligible: 3,
            listener: 700,
            client: [1, 2, 3, 4],
            dirs: [way(10), way(20)],
            ..CutFlow::default()
        }
    }

    /// Layouts of versions that may have flows, by kind.
    type Layouts = BTreeMap<String, Structures>;

    /// A change of a pinned structure raises ABI_VERSION and keeps the old file; this test writes the new one:
    /// `UPDATE_LAYOUTS=1 cargo test -p signalbox-kernel --lib pins::layout`.
    #[test]
    #[cfg(not(feature = "next_abi"))]
    fn the_layout_of_this_version_is_on_record() {
        let ours = Layouts::from([
            ("cut".to_owned(), crate::cut::structures()),
            ("layer4".to_owned(), crate::l4::structures()),
        ]);
        let version = signalbox_common::ABI_VERSION;
        let path = format!("{}/../../ebpf/layouts/v{version}.json", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_LAYOUTS").is_some() {
            std::fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
            let text = serde_json::to_string(&ours).unwrap() + "\n";
            std::fs::write(&path, text).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let recorded: Layouts = serde_json::from_str(&text).unwrap();
        assert_eq!(
            recorded, ours,
            "pinned structures have changed: see this test's comment"
        );
    }

    #[test]
    fn flows_of_every_version_on_record_can_be_carried_over() {
        use signalbox_common::cut::flow::Name;
        use signalbox_common::l4::abi as l4;

        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ebpf/layouts");
        let mut seen = 0;
        for file in std::fs::read_dir(dir).unwrap().flatten() {
            let all: Layouts = serde_json::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap();
            let shape = |kind: &str, name: &str| &all[kind][name];
            shape("cut", "Flow").plan::<CutFlow>().unwrap();
            shape("cut", "Flow").number("state").unwrap();
            shape("cut", "Name").plan::<Name>().unwrap();
            shape("layer4", "Flow").plan::<l4::L4Flow>().unwrap();
            shape("layer4", "Key").plan::<Key>().unwrap();
            shape("layer4", "Host").plan::<l4::Host>().unwrap();
            shape("layer4", "Name").plan::<Name>().unwrap();
            seen += 1;
        }
        assert!(seen > 0);
    }

    /// A field that is renamed and not listed among the former names would come back as zero, without an error.
    #[test]
    #[cfg(not(feature = "next_abi"))]
    fn no_field_of_v4_is_lost() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ebpf/layouts/v4.json");
        let all: Layouts = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let ours = Layouts::from([
            ("cut".to_owned(), crate::cut::structures()),
            ("layer4".to_owned(), crate::l4::structures()),
        ]);
        for (kind, name, shape) in all
            .iter()
            .flat_map(|(kind, s)| s.iter().map(move |(name, s)| (kind, name, s)))
        {
            let former = |name: &String| former_names::of_field(name).into_owned();
            let known: std::collections::BTreeSet<String> = ours[kind][name]
                .fields
                .keys()
                .flat_map(|name| [name.clone(), former(name)])
                .collect();
            let lost: Vec<&String> = shape.fields.keys().filter(|name| !known.contains(*name)).collect();
            assert!(lost.is_empty(), "{kind} {name}: {lost:?}");
        }
    }

    #[test]
    fn a_structure_of_the_same_version_comes_back_whole() {
        let shape = Shape::of::<CutFlow>();
        let text = serde_json::to_string(&shape).unwrap();
        let told: Shape = serde_json::from_str(&text).unwrap();
        assert_eq!(
            told.fields["dirs.1.ack"].0,
            std::mem::offset_of!(CutFlow, dirs) + 64 + 28
        );
        let read = told
            .plan::<CutFlow>()
            .unwrap()
            .read::<CutFlow>(&bytes(&flow()))
            .unwrap();
        assert_eq!(read, flow());
    }

    #[test]
    fn fields_are_found_by_name_wherever_another_version_has_them() {
        let mut shape = Shape::of::<CutFlow>();
        shape.size += 48;
        for (offset, _) in shape.fields.values_mut() {
            *offset += 48;
        }
        // The other version lacks a field, and its number of the listener was a byte.
        shape.fields.remove("client");
        let (listener, _) = shape.fields["listener"];
        shape.fields.insert("listener".into(), (listener, 1));
        let mut old = vec![0xee; 48];
        old.extend(bytes(&flow()));
        let read: CutFlow = shape.plan::<CutFlow>().unwrap().read(&old).unwrap();
        let expected = CutFlow {
            client: [0; 4],
            listener: 700 & 0xff,
            ..flow()
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn a_layout_with_an_unreadable_field_is_refused_by_field_name() {
        let mut shape = Shape::of::<Key>();
        shape.fields.insert("ports".into(), (32, 8));
        shape.size = 44;
        let error = shape.plan::<Key>().err().unwrap().to_string();
        assert!(error.contains("ports") && error.contains('8'), "{error}");
        let mut beyond = Shape::of::<Key>();
        beyond.fields.insert("ports".into(), (usize::MAX, 4));
        assert!(beyond.plan::<Key>().is_err());
        let plan = Shape::of::<Key>().plan::<Key>().unwrap();
        assert_eq!(plan.read::<Key>(&[0; 39]), None);
    }
}
