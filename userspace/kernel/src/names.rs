//! Numbers of names: a flow says by number which host, listener and route it belongs to, and a process that adopts it
//! must know them.

use std::collections::HashMap;
use std::io;

use aya::Ebpf;
use aya::maps::HashMap as AyaHashMap;
use parking_lot::Mutex;
use signalbox_common::cut::flow::{MAX_NAMES, Name};

use crate::error::KernelError;
use crate::map::MapFd;
use crate::object::map_fd;

/// Names by number, in a pinned map, and numbers by name, in memory.
pub struct Names {
    map: MapFd,
    tables: Mutex<NameTables>,
}

#[derive(Default)]
struct NameTables {
    numbers: HashMap<Vec<String>, u32>,
    parts: HashMap<u32, Vec<String>>,
    last: u32,
}

impl Names {
    /// Reads the names in the map of an object.
    pub(crate) fn of(ebpf: &Ebpf) -> Result<Self, KernelError> {
        let unusable = |e| KernelError::Map {
            name: "ID_NAMES",
            source: Box::new(e),
        };
        let map = ebpf.map("ID_NAMES").ok_or(KernelError::NoMap("ID_NAMES"))?;
        let found = AyaHashMap::<_, u32, Name>::try_from(map).map_err(unusable)?;
        let mut known = NameTables::default();
        for entry in found.iter() {
            let (number, name) = entry.map_err(unusable)?;
            let parts = parts_of(&name);
            known.numbers.insert(parts.clone(), number);
            known.parts.insert(number, parts);
            known.last = known.last.max(number);
        }
        Ok(Self {
            map: map_fd(ebpf, "ID_NAMES")?,
            tables: Mutex::new(known),
        })
    }

    /// Returns the number of a name, given once and kept as long as flows live. 0 is no name's.
    pub fn number(&self, parts: &[&str]) -> io::Result<u32> {
        let mut known = self.tables.lock();
        let owned: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
        if let Some(number) = known.numbers.get(&owned) {
            return Ok(*number);
        }
        let number = known.last + 1;
        let mut name = Name { text: [0; 320] };
        let text = parts.join("\0");
        if text.len() >= name.text.len() || number >= MAX_NAMES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        name.text[..text.len()].copy_from_slice(text.as_bytes());
        self.map.update(&number, &name)?;
        known.last = number;
        known.numbers.insert(owned.clone(), number);
        known.parts.insert(number, owned);
        Ok(number)
    }

    /// Returns the parts of the name that a number means.
    #[must_use]
    pub fn parts(&self, number: u32) -> Option<Vec<String>> {
        let known = self.tables.lock();
        known.parts.get(&number).cloned()
    }
}

/// Splits a name of the map into its parts.
pub(super) fn parts_of(name: &Name) -> Vec<String> {
    let text = String::from_utf8_lossy(&name.text);
    text.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}
