//! Packets of clients: SYNs, and segments of connections that no table knows.

use aya_ebpf::{
    helpers::{bpf_redirect, bpf_redirect_neigh},
    maps::lpm_trie::Key,
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    cut::flow::{OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS, TC_INDEX_HEADER_LOST},
    cut::handshake::{self, SynOptions},
    net::{
        Buffer,
        header::{ACK, FIN, SYN, TCP_HEADER},
        options::{self, OptionVisitor, find_options},
        tuple::is_v4,
    },
    peek::{
        abi::{MAX_PAYLOAD_BYTES, PeekBinding, PeekConfig, protocol},
        cookie::{self, CookieCheck, Standing},
    },
    steer::{STEER_FIXED_BITS, SteerKey},
};

use super::{
    DROP, PASS, burst, choose, cookie_keys, early, exit, first,
    frame::{self, Frame},
    guesses,
    hop::{self, FoundHop, place, way},
    host,
    maps::{CUT_CT, CUT_FLOWS, PEEK_BINDINGS, PEEK_PENDING},
    miss, parts,
    pass_up::{find_socket, pass_up, socket, swapped_macs},
    release,
    segment::{Checksum, Segment},
    settings::{OUR_SCALE, config, is_alive, our_mss, room_for_first_data, scale_factor},
    waiting,
};
use crate::{
    cut::skb::{ETH_HEADER, Family, PacketView, context_field, monotonic_ms, monotonic_ns, tick},
    packet_view::hide_from_verifier,
};

/// Bit of an IPv4 header (RFC 791): the packet must not be fragmented.
const DONT_FRAGMENT: u16 = 0x4000;

/// Destination's listener, if its connections are routed here. A function of its own: its callers need the stack.
#[inline(never)]
fn binding<F: Family>(segment: &Segment) -> Option<&'static PeekBinding> {
    let mut address = [0u8; 16];
    let mut i = 0;
    while i < 16 {
        address[i] = segment.tuple.destination[i / 4].to_be_bytes()[i % 4];
        i += 1;
    }
    let key = SteerKey::new(segment.tcp.destination, F::VERSION, address);
    PEEK_BINDINGS.get(&Key::new(STEER_FIXED_BITS + 128, key))
}

/// Visitor that stops at options which only the kernel's own handshake can answer.
struct KnownOptions;

impl<B: Buffer + ?Sized> OptionVisitor<B> for KnownOptions {
    #[inline(always)]
    fn visit(&mut self, _: &mut B, kind: u8, _: u32, _: u32) -> Option<()> {
        /// Multipath TCP (RFC 8684) and TCP Fast Open (RFC 7413), which are refused by not answering them.
        const MULTIPATH: u8 = 30;
        const FAST_OPEN: u8 = 34;
        // Comparisons, not a table, which would be a map of its own.
        let is_known = kind == options::MSS || kind == options::WINDOW_SCALE || kind == options::SACK_PERMITTED;
        (is_known || kind == options::TIMESTAMPS || kind == MULTIPATH || kind == FAST_OPEN).then_some(())
    }
}

/// Answers a SYN by a cookie.
#[inline(always)]
pub fn on_syn<F: Family>(ctx: &TcContext, segment: &Segment) -> i32 {
    let Some(config) = config() else {
        return miss();
    };
    let tables = choose::version(config);
    let Some(binding) = binding::<F>(segment) else {
        return miss();
    };
    if binding.is_awaited != 0 && hop::place_of::<F>(ctx, &segment.tuple) != place::HERE {
        return exit(Reason::PeekSynPassed, PASS);
    }
    if waiting::is_repeated_syn(segment) != 0 {
        return exit(Reason::PeekEarly, DROP);
    }
    if binding.protocol == protocol::PASS_UP {
        return exit(Reason::PeekSynPassed, PASS);
    }
    // The kernel decides about SYNs for a socket of its own: a socket in TIME_WAIT makes room, a live one sends a
    // challenge (RFC 5961). Packets that routers may fragment are not for tier `cut`.
    let view = PacketView::current(ctx);
    let is_whole = F::VERSION == 6 || view.u16(ETH_HEADER + 6).is_some_and(|field| field & DONT_FRAGMENT != 0);
    let is_odd = segment.payload != 0 || segment.tcp.flags & FIN != 0 || !is_whole;
    let client = &segment.tuple.source;
    let is_left =
        is_martian(client) || binding.clients != 0 && choose::is_left(config, tables, binding.clients, client);
    if is_odd || is_left || !is_alive(config) || find_socket::<F>(ctx, &segment.tuple) != socket::NONE {
        return exit(Reason::PeekSynPassed, PASS);
    }
    match carried(segment) {
        Carried::No => answer::<F>(ctx, segment, config),
        Carried::Same => exit(Reason::PeekEarly, DROP),
        // `cut_out` sees the kernel's answer, and not ours: a client that confirms the kernel's has given up the flow.
        Carried::Other => exit(Reason::PeekSynPassed, PASS),
    }
}

/// Whether an address is none of a client: zero, loopback, multicast or broadcast. The kernel decides about its packets.
#[inline(always)]
fn is_martian(address: &[u32; 4]) -> bool {
    let last = address[3];
    if is_v4(address) {
        last == 0 || last >> 24 == 127 || last >> 28 == 0xe || last == u32::MAX
    } else {
        address[0] >> 24 == 0xff || address[0] | address[1] | address[2] == 0 && last < 2
    }
}

/// Whether a flow is carried on a SYN's tuple.
enum Carried {
    No,
    /// The flow that this SYN began: the SYN is late, or was duplicated. Its cookie would be the same, and the client's
    /// first data would count as that of another connection.
    Same,
    Other,
}

#[inline(always)]
fn carried(segment: &Segment) -> Carried {
    // SAFETY: the value is copied at once.
    let Some(entry) = (unsafe { CUT_CT.get(&segment.tuple) }).copied() else {
        return Carried::No;
    };
    let Some(flow) = CUT_FLOWS.get_ptr(entry.index) else {
        return Carried::No;
    };
    // SAFETY: an element of the array, of which numbers are read that do not change while the flow is carried.
    let (first, first_of_worker) = unsafe { ((*flow).first_byte(), (*flow).isn_b.wrapping_sub((*flow).seq_delta_in)) };
    let begins = segment.tcp.seq.wrapping_add(1);
    if first == begins || first_of_worker == begins {
        Carried::Same
    } else {
        Carried::Other
    }
}

/// Reads the options of a SYN; 0 where it has others than a cookie can answer. A function of its own: `answer` needs the
/// stack.
#[inline(never)]
fn read_offer<F: Family>(ctx: &TcContext, segment: &Segment, offer: &mut SynOptions) -> u32 {
    let (mut view, length) = (PacketView::current(ctx), segment.tcp.length - TCP_HEADER);
    if options::walk(&mut view, F::TCP + TCP_HEADER, length, &mut KnownOptions).is_none() {
        return 0;
    }
    match handshake::read_options(&mut view, F::TCP, &segment.tcp) {
        Some(read) => *offer = read,
        None => return 0,
    }
    1
}

#[inline(never)]
fn answer<F: Family>(ctx: &TcContext, segment: &Segment, config: &PeekConfig) -> i32 {
    try_answer::<F>(ctx, segment, config).unwrap_or_else(|| exit(Reason::PeekSynPassed, PASS))
}

#[inline(always)]
fn try_answer<F: Family>(ctx: &TcContext, segment: &Segment, config: &PeekConfig) -> Option<i32> {
    // Linux drops packets of an IPv4-mapped source (`ip6_rcv_core`), which would have the tuple of an IPv4 client here.
    if F::VERSION == 6 && is_v4(&segment.tuple.source) {
        return None;
    }
    let tcp = &segment.tcp;
    let mut offer = SynOptions {
        mss: 0,
        scale: 0,
        offered: 0,
        ts_val: 0,
    };
    if read_offer::<F>(ctx, segment, &mut offer) == 0 {
        return None;
    }
    offer.offered &= config.offers as u8;
    let checksum = segment.checksum::<F>(ctx, 0)?;
    if checksum == Checksum::Wrong {
        return None;
    }
    let has_timestamps = offer.offered & OFFERED_TIMESTAMPS != 0;
    if !has_timestamps && guesses::is_guessing::<F>(segment) != 0 {
        return None;
    }
    let key = cookie_keys::current()?;
    let epoch = cookie::epoch(key.clock_ns(monotonic_ns()));
    let hash = cookie::hash(&key.key, &segment.tuple, epoch, has_timestamps);
    let number = cookie::make(hash, tcp.seq, &offer, config.slot)?;
    let mut hop = FoundHop {
        ifindex: 0,
        macs: [0; 3],
    };
    let way = hop::way_back::<F>(ctx, &segment.tuple, &mut hop);
    if way == way::ELSEWHERE {
        return None;
    }
    let frame = Frame::new(&segment.tuple.destination, &segment.tuple.source, &hop.macs, checksum)?;
    frame.option(0x0204_0000 | u32::from(our_mss::<F>()?));
    let has_sack = offer.offered & OFFERED_SACK != 0;
    if has_timestamps {
        frame.option(if has_sack { 0x0402_080a } else { 0x0101_080a });
        frame.option(
            monotonic_ms()
                .wrapping_add(key.ahead_ms as u32)
                .wrapping_add(hash.clock()),
        );
        frame.option(offer.ts_val);
    } else if has_sack {
        frame.option(0x0101_0402);
    }
    if offer.offered & OFFERED_SCALE != 0 {
        frame.option(0x0103_0300 | u32::from(OUR_SCALE));
    }
    frame.fill(
        segment.tuple.ports.rotate_left(16),
        number,
        tcp.seq.wrapping_add(1),
        SYN | ACK,
        room_for_first_data::<F>(has_timestamps)?,
    );
    if frame::write::<F>(ctx, frame, core::ptr::null_mut()) != 0 {
        return Some(exit(Reason::PeekFailed, DROP));
    }
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    // SAFETY: helpers that take numbers.
    let action = unsafe {
        if way == way::KNOWN {
            bpf_redirect(ifindex, 0)
        } else {
            bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0)
        }
    };
    Some(exit(Reason::PeekSynAnswered, action as i32))
}

/// Decides about a segment that opens and resets nothing.
#[inline(always)]
pub fn on_segment<F: Family>(ctx: &TcContext, segment: &Segment) -> i32 {
    if context_field(ctx, |skb| unsafe { &raw const (*skb).tc_index }) == TC_INDEX_HEADER_LOST {
        // SAFETY: a writable field of the context. Another machine's programs must not read the mark.
        unsafe { (&raw mut (*ctx.skb.skb).tc_index).write_volatile(0) };
        let mut stamps = [0; 2];
        timestamps::<F>(ctx, segment, &mut stamps);
        return burst::repeat::<F>(ctx, segment, &stamps);
    }
    let Some(binding) = binding::<F>(segment) else {
        return host::on_challenge::<F>(ctx, segment);
    };
    let Some(config) = config() else {
        return miss();
    };
    // The result is hidden from the verifier, which would check the cookie for each combination.
    let hide = |found: u32| hide_from_verifier(found, segment.tcp.ack) & 3;
    let mut place = place::HERE;
    if binding.is_awaited != 0 {
        place = hide(hop::place_of::<F>(ctx, &segment.tuple));
        if place == place::ELSEWHERE {
            return miss();
        }
    }
    let is_waiting = hide(u32::from(PEEK_PENDING.get_ptr(&segment.tuple).is_some())) != 0;
    let mut is_joined = 0;
    if is_waiting {
        let action = waiting::on_segment::<F>(ctx, segment, u32::from(binding.protocol));
        is_joined = u32::from(action == waiting::JOINED);
        if action != waiting::OF_ANOTHER && is_joined == 0 {
            return action;
        }
    }
    let is_joined = hide(is_joined);
    // Before the cookie: a connection with a socket may have numbers like a cookie's, once as many bytes came as left.
    let socket = hide(find_socket::<F>(ctx, &segment.tuple));
    if socket == socket::WHOLE {
        if is_waiting {
            release::give_up_waiting(&segment.tuple);
        }
        return miss();
    }
    let mut stamps = [0; 2];
    let has_stamps = hide(timestamps::<F>(ctx, segment, &mut stamps));
    let mut check = CookieCheck {
        standing: Standing::Unknown,
        clock: 0,
        slot: 0,
        options: SynOptions {
            mss: 0,
            scale: 0,
            offered: 0,
            ts_val: 0,
        },
    };
    if cookie_keys::check(config, segment, has_stamps, stamps[1], &mut check) == 0 {
        // The kernel's own handshake, perhaps.
        return if socket == socket::REQUEST {
            miss()
        } else {
            guesses::on_wrong::<F>(segment)
        };
    }
    if socket == socket::REQUEST && check.standing != Standing::First {
        // Numbers of the kernel's own handshake may look like one of ours.
        return miss();
    }
    if place == place::UNKNOWN {
        // The address has just come, or a client has not heard that it has left. Its repetition will show, if there is a
        // process to tell.
        return if config.is_orphaned(tick()) {
            miss()
        } else {
            exit(Reason::PeekEarly, DROP)
        };
    }
    if has_stamps == 0 && guesses::is_guessing::<F>(segment) != 0 {
        return guesses::on_wrong::<F>(segment);
    }
    if is_waiting && check.standing == Standing::First {
        // The client has given up the connection that waits, and has opened another.
        release::give_up_waiting(&segment.tuple);
    }
    let bare = segment.payload == 0 && segment.tcp.flags & FIN == 0;
    if check.standing == Standing::First && bare {
        return exit(Reason::PeekAcknowledged, DROP);
    }
    hide_options(&PacketView::current(ctx), &mut check);
    if is_joined != 0 && check.standing == Standing::Later {
        return parts::on_joined::<F>(ctx, segment, &check, &stamps, binding);
    }
    on_cookie::<F>(ctx, segment, config, &check, &stamps, binding)
}

/// Decides about a segment with a cookie, whose connection has no socket.
#[inline(always)]
fn on_cookie<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    config: &PeekConfig,
    check: &CookieCheck,
    stamps: &[u32; 2],
    binding: &PeekBinding,
) -> i32 {
    let has_fin = segment.tcp.flags & FIN != 0;
    if check.standing == Standing::First {
        let is_others = check.slot != config.slot && binding.protocol != protocol::TLS;
        // The end of a connection without a request has no effect.
        if is_others && segment.payload != 0 && early::is_repeatable::<F>(ctx, segment) == 0 {
            return exit(Reason::PeekNotRepeatable, PASS);
        }
        if has_fin || segment.payload > MAX_PAYLOAD_BYTES {
            return pass_up::<F>(ctx, segment, check, stamps);
        }
        return first::on_first_data::<F>(ctx, segment, check, stamps, binding);
    }
    if check.standing == Standing::Probe && segment.payload == 0 {
        return answer_probe::<F>(ctx, segment, check, stamps);
    }
    // The kernel would answer a segment after a missing one by a reset: the client repeats both.
    if check.standing == Standing::Later || segment.payload != 0 || has_fin {
        return early::on_later(segment);
    }
    miss()
}

/// Reads TSval and TSecr of a segment; 0 where it has none.
#[inline(never)]
pub fn timestamps<F: Family>(ctx: &TcContext, segment: &Segment, stamps: &mut [u32; 2]) -> u32 {
    let mut view = PacketView::current(ctx);
    let found = find_options(&mut view, F::TCP + TCP_HEADER, segment.tcp.length - TCP_HEADER);
    let Some(found) = found else {
        return 0;
    };
    if found.timestamps == 0 {
        return 0;
    }
    let (Some(value), Some(echo)) = (view.u32(found.timestamps + 2), view.u32(found.timestamps + 6)) else {
        return 0;
    };
    *stamps = [value, echo];
    1
}

/// Hides the content of a cookie from the verifier, which would follow each combination of options separately.
#[inline(always)]
fn hide_options(view: &PacketView, check: &mut CookieCheck) {
    let options = &mut check.options;
    options.offered = view.hide_from_verifier(u32::from(options.offered)) as u8;
    options.scale = (view.hide_from_verifier(u32::from(options.scale)) & 15) as u8;
    options.mss = view.hide_from_verifier(u32::from(options.mss)) as u16;
    check.clock = view.hide_from_verifier(check.clock);
}

/// Answers a keep-alive probe (RFC 9293, section 3.8.4) of a client that has sent nothing yet.
#[inline(never)]
fn answer_probe<F: Family>(ctx: &TcContext, segment: &Segment, check: &CookieCheck, stamps: &[u32; 2]) -> i32 {
    try_answer_probe::<F>(ctx, segment, check, stamps).unwrap_or_else(miss)
}

#[inline(always)]
fn try_answer_probe<F: Family>(
    ctx: &TcContext,
    segment: &Segment,
    check: &CookieCheck,
    stamps: &[u32; 2],
) -> Option<i32> {
    let view = PacketView::current(ctx);
    let checksum = segment.checksum::<F>(ctx, 0)?;
    if checksum == Checksum::Wrong {
        return None;
    }
    let macs = swapped_macs(&view)?;
    let frame = Frame::new(&segment.tuple.destination, &segment.tuple.source, &macs, checksum)?;
    if check.options.offered & OFFERED_TIMESTAMPS != 0 {
        frame.timestamps(monotonic_ms().wrapping_add(check.clock), stamps[0]);
    }
    let scale = OUR_SCALE * scale_factor(check.options.offered);
    let room = room_for_first_data::<F>(check.options.offered & OFFERED_TIMESTAMPS != 0)?;
    frame.fill(
        segment.tuple.ports.rotate_left(16),
        segment.tcp.ack,
        segment.tcp.seq.wrapping_add(1),
        ACK,
        room >> scale,
    );
    if frame::write::<F>(ctx, frame, core::ptr::null_mut()) != 0 {
        return Some(exit(Reason::PeekFailed, DROP));
    }
    let ifindex = context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex });
    // SAFETY: the helper takes numbers.
    let action = unsafe { bpf_redirect(ifindex, 0) };
    Some(exit(Reason::PeekProbe, action as i32))
}
