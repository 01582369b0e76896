//! Whether programs are still where they were attached, according to the kernel: others may remove a qdisc, a link or a
//! pin. Where the kernel cannot be asked, a program counts as attached.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use aya::programs::TcAttachType;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use crate::map::{bpf, open_pin};
use crate::netlink::Netlink;

const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// Part of `union bpf_attr` that asking for information uses.
#[repr(C)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// `struct bpf_link_info` (`include/uapi/linux/bpf.h`) of a link to an interface, by tcx or XDP.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    prog_id: u32,
    _pad: u32,
    /// 0 once the link is detached.
    ifindex: u32,
    _rest: [u32; 11],
}

/// Returns whether the link that is pinned at `pin` attaches a program to an interface.
pub(crate) fn by_link(pin: &Path, index: u32) -> bool {
    match open_pin(pin).and_then(|link| interface_of(&link)) {
        Ok(at) => at == index,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn interface_of(link: &OwnedFd) -> io::Result<u32> {
    let mut info = LinkInfo::default();
    let mut attr = InfoAttr {
        bpf_fd: link.as_raw_fd() as u32,
        info_len: size_of::<LinkInfo>() as u32,
        info: (&raw mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info.ifindex)
}

/// Returns whether an interface has a filter of this priority and handle.
pub(crate) fn by_filter(index: u32, side: TcAttachType, priority: u16, handle: u32) -> bool {
    Netlink::open()
        .and_then(|netlink| netlink.filters(index, side))
        .map_or(true, |all| {
            let is_it = |filter: &Filter| (filter.priority, filter.handle) == (priority, handle);
            all.iter().any(is_it)
        })
}

/// A filter of a clsact qdisc.
pub(crate) struct Filter {
    pub(crate) priority: u16,
    pub(crate) handle: u32,
    /// Kind of classifier, such as `bpf` or `flower`.
    pub(crate) kind: String,
}

impl Netlink {
    /// Returns the filters of an interface's clsact qdisc, of one side.
    pub(crate) fn filters(&self, index: u32, side: TcAttachType) -> io::Result<Vec<Filter>> {
        let mut request = TcMessage::default();
        request.header.index = index as i32;
        request.header.parent = TcHandle {
            major: u16::MAX,
            minor: match side {
                TcAttachType::Egress => TcHandle::MIN_EGRESS,
                _ => TcHandle::MIN_INGRESS,
            },
        };
        let mut found = Vec::new();
        self.request(RouteNetlinkMessage::GetTrafficFilter(request), NLM_F_DUMP, |answer| {
            if let RouteNetlinkMessage::NewTrafficFilter(filter) = answer {
                let number = u32::from(filter.header.handle.major) << 16 | u32::from(filter.header.handle.minor);
                let kind = filter.attributes.into_iter().find_map(|attribute| match attribute {
                    TcAttribute::Kind(kind) => Some(kind),
                    _ => None,
                });
                found.push(Filter {
                    // The priority is the upper half, the protocol the lower one.
                    priority: (filter.header.info >> 16) as u16,
                    handle: number,
                    kind: kind.unwrap_or_default(),
                });
            }
        })?;
        Ok(found)
    }
}
