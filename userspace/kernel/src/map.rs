//! Map operations by descriptor, callable from any thread. aya's own map types want exclusive access.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use signalbox_common::credit::Credit;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_long = 4;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_MAP_DELETE_BATCH: libc::c_long = 27;

/// Entries read by one batch call.
const BATCH_ENTRIES: usize = 1024;

/// The part of `union bpf_attr` (`include/uapi/linux/bpf.h`) that element operations use.
#[repr(C)]
struct ElemAttr {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Part of `union bpf_attr` that batch operations use.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    /// Number of keys; on return, how many were processed.
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// A map known by its descriptor.
pub struct MapFd(OwnedFd);

impl MapFd {
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        fd.try_clone_to_owned().map(Self)
    }

    /// Inserts or replaces an element. `K` and `V` must be the map's own types: sizes are the caller's promise.
    pub fn update<K: Copy, V: Copy>(&self, key: &K, value: &V) -> io::Result<()> {
        self.call(
            BPF_MAP_UPDATE_ELEM,
            ptr::from_ref(key).cast(),
            ptr::from_ref(value).cast(),
        )
    }

    /// Inserts an element; fails with `EEXIST` where there is one.
    pub fn insert<K: Copy, V: Copy>(&self, key: &K, value: &V) -> io::Result<()> {
        const BPF_NOEXIST: u64 = 1;
        self.call_with(
            BPF_MAP_UPDATE_ELEM,
            ptr::from_ref(key).cast(),
            ptr::from_ref(value).cast(),
            BPF_NOEXIST,
        )
    }

    /// Replaces an element; fails with `ENOENT` where there is none.
    pub fn replace<K: Copy, V: Copy>(&self, key: &K, value: &V) -> io::Result<()> {
        const BPF_EXIST: u64 = 2;
        self.call_with(
            BPF_MAP_UPDATE_ELEM,
            ptr::from_ref(key).cast(),
            ptr::from_ref(value).cast(),
            BPF_EXIST,
        )
    }

    /// Removes an element; a missing key is no error.
    pub fn delete<K: Copy>(&self, key: &K) -> io::Result<()> {
        match self.call(BPF_MAP_DELETE_ELEM, ptr::from_ref(key).cast(), ptr::null()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Removes several elements of a hash map; missing keys are no error. Kernel 5.6+.
    pub fn delete_all<K: Copy>(&self, mut keys: &[K]) -> io::Result<()> {
        while !keys.is_empty() {
            let mut attr = BatchAttr {
                in_batch: 0,
                out_batch: 0,
                keys: keys.as_ptr() as u64,
                values: 0,
                count: keys.len() as u32,
                map_fd: self.0.as_raw_fd() as u32,
                elem_flags: 0,
                flags: 0,
            };
            match bpf(BPF_MAP_DELETE_BATCH, &mut attr) {
                // The first missing key ends the call (`kernel/bpf/syscall.c`, generic_map_delete_batch).
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    keys = keys.get(attr.count as usize + 1..).unwrap_or_default();
                }
                other => return other.map(drop),
            }
        }
        Ok(())
    }

    /// Writes an element. `value` must have the size of the map's values.
    pub fn update_bytes<K: Copy>(&self, key: &K, value: &[u8]) -> io::Result<()> {
        self.call(BPF_MAP_UPDATE_ELEM, ptr::from_ref(key).cast(), value.as_ptr())
    }

    /// Returns the value of a key, if there is one. `K` and `V` must be the map's own types.
    pub fn get<K: Copy, V: Copy + Default>(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = V::default();
        match self.call(
            BPF_MAP_LOOKUP_ELEM,
            ptr::from_ref(key).cast(),
            ptr::from_mut(&mut value).cast(),
        ) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns all keys of a map that no other thread or program changes.
    pub fn keys<K: Copy + Default>(&self) -> io::Result<Vec<K>> {
        let (mut keys, mut next) = (Vec::<K>::new(), K::default());
        loop {
            let last = keys.last().map_or(ptr::null(), |key| ptr::from_ref(key).cast());
            match self.call(BPF_MAP_GET_NEXT_KEY, last, ptr::from_mut(&mut next).cast()) {
                Ok(()) => keys.push(next),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
                Err(error) => return Err(error),
            }
        }
    }

    /// Visits a hash map that others may change during the visit: every entry that stays is handed out once. Kernel
    /// 5.6+. `K` and `V` must be the map's own types.
    pub fn for_each<K: Copy + Default, V: Copy + Default>(&self, mut each: impl FnMut(&K, &V)) -> io::Result<()> {
        self.for_each_bytes(size_of::<K>(), size_of::<V>(), |key, value| {
            let (key, value) = (key.as_ptr().cast::<K>(), value.as_ptr().cast::<V>());
            // SAFETY: as many bytes as the types have; the types of keys and values take every bit pattern.
            let (key, value) = unsafe { (key.read_unaligned(), value.read_unaligned()) };
            each(&key, &value);
        })
    }

    /// Goes through a map as [`Self::for_each`], in bytes; arrays too. The sizes of keys and values must be the map's.
    fn for_each_bytes(&self, key_size: usize, value_size: usize, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        let mut room = BATCH_ENTRIES;
        let (mut keys, mut values) = (vec![0; room * key_size], vec![0; room * value_size]);
        // The batch position takes 4 bytes in a hash map, the size of a key in an array.
        let (mut position, mut begun) = ([0u64; 8], false);
        loop {
            let mut attr = BatchAttr {
                in_batch: if begun { position.as_ptr() as u64 } else { 0 },
                out_batch: position.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: room as u32,
                map_fd: self.0.as_raw_fd() as u32,
                elem_flags: 0,
                flags: 0,
            };
            let ended = match bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) {
                Ok(_) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                // ENOSPC: a bucket has more entries than there is room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && room < 1 << 20 => {
                    room *= 2;
                    keys.resize(room * key_size, 0);
                    values.resize(room * value_size, 0);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let entries = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
            for (key, value) in entries.take(attr.count as usize) {
                each(key, value);
            }
            if ended {
                return Ok(());
            }
            begun = true;
        }
    }

    fn call(&self, command: libc::c_long, key: *const u8, value: *const u8) -> io::Result<()> {
        self.call_with(command, key, value, 0)
    }

    fn call_with(&self, command: libc::c_long, key: *const u8, value: *const u8, flags: u64) -> io::Result<()> {
        let mut attr = ElemAttr {
            map_fd: self.0.as_raw_fd() as u32,
            _pad: 0,
            key: key as u64,
            value: value as u64,
            flags,
        };
        bpf(command, &mut attr).map(drop)
    }
}

/// Calls `bpf(2)`.
pub(super) fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    let size = size_of::<T>() as libc::c_long;
    // SAFETY: the attribute and everything that it points to live for the call: keys and values of the map's sizes.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attr), size) };
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

/// Map flag `BPF_F_MMAPABLE`.
pub const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Part of `union bpf_attr` that creating a map uses.
#[repr(C)]
struct CreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

/// Creates an array map, whose name the kernel cuts off after 15 bytes.
pub fn create_array(name: &str, value_size: u32, max_entries: u32, flags: u32) -> io::Result<OwnedFd> {
    const BPF_MAP_TYPE_ARRAY: u32 = 2;
    create(name, BPF_MAP_TYPE_ARRAY, value_size, max_entries, flags, 0)
}

/// Creates an array of maps like `inner`.
pub fn create_array_of_maps(name: &str, max_entries: u32, inner: &OwnedFd) -> io::Result<OwnedFd> {
    const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
    create(
        name,
        BPF_MAP_TYPE_ARRAY_OF_MAPS,
        4,
        max_entries,
        0,
        inner.as_raw_fd() as u32,
    )
}

fn create(name: &str, kind: u32, value_size: u32, max_entries: u32, flags: u32, inner: u32) -> io::Result<OwnedFd> {
    let mut attr = CreateAttr {
        map_type: kind,
        key_size: 4,
        value_size,
        max_entries,
        map_flags: flags,
        inner_map_fd: inner,
        numa_node: 0,
        map_name: [0; 16],
    };
    // The kernel shows the first 15 bytes of a map's name (BPF_OBJ_NAME_LEN), as of the maps that aya creates.
    let shown = name.len().min(attr.map_name.len() - 1);
    attr.map_name[..shown].copy_from_slice(&name.as_bytes()[..shown]);
    let fd = bpf(BPF_MAP_CREATE, &mut attr)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Part of `union bpf_attr` that pinning uses.
#[repr(C)]
struct PinAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

impl PinAttr {
    fn new(path: &CString, fd: u32) -> Self {
        Self {
            pathname: path.as_ptr() as u64,
            bpf_fd: fd,
            file_flags: 0,
        }
    }
}

/// Pins a map in a mounted bpf file system.
pub fn pin(map: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    bpf(BPF_OBJ_PIN, &mut PinAttr::new(&path, map.as_raw_fd() as u32)).map(drop)
}

/// Opens a pinned map, program or link.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let fd = bpf(BPF_OBJ_GET, &mut PinAttr::new(&path, 0))?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A pinned map of another version, accessed by bytes: its keys and values may differ from ours.
pub struct RawMap {
    fd: MapFd,
    key_size: usize,
    value_size: usize,
}

impl RawMap {
    /// Opens a pinned map.
    pub fn open(path: &Path) -> io::Result<Self> {
        let info = aya::maps::MapInfo::from_pin(path).map_err(io::Error::other)?;
        Ok(Self {
            fd: MapFd(open_pin(path)?),
            key_size: info.key_size() as usize,
            value_size: info.value_size() as usize,
        })
    }

    /// Returns the value of a key, which must have the size of the map's keys.
    pub fn get(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        if key.len() != self.key_size {
            return Err(io::Error::other(format!("its keys have {} bytes", self.key_size)));
        }
        let mut value = vec![0; self.value_size];
        self.fd
            .call(BPF_MAP_LOOKUP_ELEM, key.as_ptr(), value.as_mut_ptr().cast_const())?;
        Ok(value)
    }

    /// Writes the value of a key; both must have the sizes of the map's.
    pub fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if (key.len(), value.len()) != (self.key_size, self.value_size) {
            return Err(io::Error::other("its keys or values have another size"));
        }
        self.fd.call(BPF_MAP_UPDATE_ELEM, key.as_ptr(), value.as_ptr())
    }

    /// Removes all entries of a map whose entries can be removed.
    pub fn clear(&self) -> io::Result<()> {
        let mut keys = Vec::new();
        self.for_each(|key, _| keys.push(key.to_vec()))?;
        let delete = |key: &Vec<u8>| self.fd.call(BPF_MAP_DELETE_ELEM, key.as_ptr(), ptr::null());
        keys.iter().try_for_each(delete)
    }

    /// Goes through all entries, as [`MapFd::for_each`] does.
    pub fn for_each(&self, each: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        self.fd.for_each_bytes(self.key_size, self.value_size, each)
    }
}

/// An array map, mapped into our memory (`BPF_F_MMAPABLE`, kernel 5.5+).
pub struct MmapArray<T> {
    base: *mut T,
    count: u32,
}

// SAFETY: the mapping is shared memory that lives as long as the value; every caller that gets its pointers accesses
// them atomically or as volatile.
unsafe impl<T> Send for MmapArray<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for MmapArray<T> {}

impl<T> MmapArray<T> {
    pub fn map(fd: BorrowedFd<'_>, count: u32) -> io::Result<Self> {
        // The kernel puts elements at multiples of 8 bytes (`kernel/bpf/arraymap.c`).
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let len = size_of::<T>() * count as usize;
        // SAFETY: a new shared mapping of the map's own size; the kernel refuses any other.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base: base.cast(),
            count,
        })
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Leaves the mapping to the process, and returns its elements as numbers that programs may change at any time.
    pub fn leak(self) -> &'static [AtomicU64]
    where
        T: Into<u64>,
    {
        const { assert!(size_of::<T>() == size_of::<AtomicU64>()) };
        let mapping = std::mem::ManuallyDrop::new(self);
        // SAFETY: the mapping lives as long as the process from here on; its elements are numbers of eight bytes at multiples
        // of eight, which are only read and written atomically.
        unsafe { std::slice::from_raw_parts(mapping.base.cast(), mapping.count as usize) }
    }

    /// Returns a pointer to an element; the kernel may write the element at any time.
    pub fn at(&self, index: u32) -> *mut T {
        assert!(index < self.count, "element {index} of {}", self.count);
        // SAFETY: within the mapping, as just asserted.
        unsafe { self.base.add(index as usize) }
    }
}

impl<T> Drop for MmapArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, with its length.
        unsafe { libc::munmap(self.base.cast(), size_of::<T>() * self.count as usize) };
    }
}

/// Map `SOCKMAP_CREDITS`: the credits of tier `sockmap`.
pub struct Credits(MmapArray<Credit>);

impl Credits {
    pub fn map(fd: BorrowedFd<'_>, count: u32) -> io::Result<Self> {
        MmapArray::map(fd, count).map(Self)
    }

    fn credit(&self, index: u32) -> *mut Credit {
        self.0.at(index)
    }

    /// Reads a credit's fields.
    pub fn read(&self, index: u32) -> Credit {
        // SAFETY: valid and aligned; the kernel may write at the same time, so the read is volatile, and each 8-byte
        // field is read whole.
        unsafe { self.credit(index).read_volatile() }
    }

    /// Prepares a credit that no program uses yet, of a stream whose next byte has this sequence number.
    pub fn reset(&self, index: u32, limit: u64, next_sequence: u32) {
        let fresh = Credit {
            limit,
            next_sequence,
            ..Credit::default()
        };
        // SAFETY: as above; no entry of `SOCKMAP_LEGS` points here, so no program writes.
        unsafe { self.credit(index).write_volatile(fresh) };
    }

    pub fn set_limit(&self, index: u32, limit: u64) {
        // SAFETY: the field is aligned and only ever accessed whole; userspace is its only writer.
        let field = unsafe { AtomicU64::from_ptr(ptr::addr_of_mut!((*self.credit(index)).limit)) };
        field.store(limit, Ordering::Release);
    }

    pub fn set_consumed(&self, index: u32, consumed: u64) {
        // SAFETY: as for the limit.
        let field = unsafe { AtomicU64::from_ptr(ptr::addr_of_mut!((*self.credit(index)).consumed)) };
        field.store(consumed, Ordering::Release);
    }
}
/// Lifts RLIMIT_MEMLOCK, which limits BPF memory before 5.11; later kernels charge the cgroup.
pub(crate) fn lift_memory_limit() {
    let _ = nix::sys::resource::setrlimit(
        nix::sys::resource::Resource::RLIMIT_MEMLOCK,
        nix::libc::RLIM_INFINITY,
        nix::libc::RLIM_INFINITY,
    );
}
