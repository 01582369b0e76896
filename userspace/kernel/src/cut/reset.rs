//! Sends RSTs to both ends of a flow that has no sockets.
//!
//! An end accepts a RST at the number that it expects next. That number may be unknown if another balancer has carried
//! the flow: then a bare acknowledgement far outside of the end's window makes it send its numbers (RFC 9293, section
//! 3.10.7.4), and the RST follows when the answer has passed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signalbox_common::cut::flow::{CutFlow, DirState, RESYNC, SUPERSEDED};
use signalbox_common::net::header::{ACK, RST};

use super::segment::Segment;
use crate::address::from_words;

/// Resets both ends of a flow: at the sequence number that each expects next, which it has last acknowledged, so that
/// it accepts the RST (RFC 5961, section 3).
pub(super) fn reset_both(flow: &CutFlow) -> std::io::Result<()> {
    let ports = |ports: u32| ((ports >> 16) as u16, ports as u16);
    let (client_port, vip) = ports(flow.ports_a);
    let (backend, local) = ports(flow.ports_b);
    let at = |words, port| SocketAddr::new(from_words(words), port);
    let flags = |way: &DirState| if way.flags & RESYNC == 0 { RST | ACK } else { ACK };
    // The last known number may still be the right one: then a question with it would get no answer.
    let number = |way: &DirState| {
        if way.flags & RESYNC == 0 {
            way.ack
        } else {
            way.ack ^ (1 << 31)
        }
    };
    let segment = |from, to, way: &DirState| Segment {
        from,
        to,
        seq: number(way),
        ack: way.snd_max,
        flags: flags(way),
        window: 0,
        options: Vec::new(),
    };
    let to_client = segment(at(flow.vip, vip), at(flow.client, client_port), &flow.dirs[0]);
    let to_host = segment(at(flow.local, local), at(flow.host_addr, backend), &flow.dirs[1]);
    let [client, host] = flow.dirs.map(|way| way.flags & SUPERSEDED == 0);
    // A leg is left out if another connection has its ports by now: that one would be reset.
    if client {
        to_client.send()?;
    }
    if host {
        to_host.send()?;
    }
    Ok(())
}

/// Sends one end a RST in the name of the other, at `seq`, which it expects next.
pub fn reset_one(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32) -> std::io::Result<()> {
    let segment = Segment {
        from,
        to,
        seq,
        ack,
        flags: RST | ACK,
        window: 0,
        options: Vec::new(),
    };
    segment.send()
}

/// Logs that a RST could not be sent: the first time as a warning, because both ends then wait until they time out.
pub(super) fn log_failure(error: &std::io::Error) {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    if IS_LOGGED.swap(true, Relaxed) {
        tracing::debug!(%error, "A reset could not be sent.");
    } else {
        tracing::warn!(
            %error,
            "A reset could not be sent: client and host of an ended flow wait until their time-outs. It needs \
             CAP_NET_RAW. Further failures are logged at level debug."
        );
    }
}
