//! Ways in: SYNs of a denied client in every form in which the kernel would give them to a listening socket, and the
//! same of an allowed client, which proves that the form works.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::scene::{BAD, DB, GOOD, Scene, WEB, body};
use super::verdicts::decided;
use crate::l4::services::cabled;
use crate::lab::flood::all_packets;
use crate::lab::raw::{ACK, SYN, checksum};
use crate::lab::signalbox::find;
use crate::lab::tun::Tun;
use crate::lab::{Lab, SOON, eventually, lab_test, privileged};

/// Time in which an answer comes, or does not.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
const ETHERNET: usize = 14;

/// Form of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    /// A tag of VLAN 0: a priority, and no VLAN.
    PriorityTag,
    /// Two tags of VLAN 0.
    PriorityTags,
    /// A tag of VLAN 0 of 802.1ad.
    ServicePriorityTag,
    /// Options of IPv4, or a header of options of IPv6.
    Options,
    /// All of the TCP header in the first of two fragments.
    Fragments,
    /// Eight bytes of TCP in the first fragment (RFC 1858).
    TinyFragment,
    /// A first fragment with other flags than the second one writes over them (RFC 3128).
    OverlappingFragment,
}

const FORMS: [Form; 8] = [
    Form::Plain,
    Form::PriorityTag,
    Form::PriorityTags,
    Form::ServicePriorityTag,
    Form::Options,
    Form::Fragments,
    Form::TinyFragment,
    Form::OverlappingFragment,
];

impl Form {
    /// Whether an allowed client is answered by a listener: a datagram whose first fragment has not the whole TCP header is
    /// dropped from every source, and the kernel drops one whose fragments overlap.
    fn is_answered(self) -> bool {
        !matches!(
            self,
            Self::TinyFragment | Self::OverlappingFragment | Self::PriorityTags
        )
    }

    /// Whether a service answers, too: no host gets the rest of a fragmented SYN that has no more than options.
    fn is_for_services(self) -> bool {
        matches!(self, Self::Plain | Self::PriorityTag)
    }

    /// The frames of a SYN.
    fn frames(self, macs: &[u8], from: SocketAddr, to: SocketAddr) -> Vec<Vec<u8>> {
        let tcp = segment(from, to, SYN);
        let packet = |parts: &[(usize, &[u8], bool)]| -> Vec<Vec<u8>> {
            parts
                .iter()
                .map(|part| frame(macs, &ip(from.ip(), to.ip(), Some(*part), false)))
                .collect()
        };
        match self {
            Self::Plain => vec![frame(macs, &whole(from, to, &tcp, false))],
            Self::PriorityTag | Self::PriorityTags | Self::ServicePriorityTag => {
                let tags: &[u8] = match self {
                    Self::PriorityTag => &[0x81, 0, 0xa0, 0],
                    Self::PriorityTags => &[0x81, 0, 0xa0, 0, 0x81, 0, 0, 0],
                    _ => &[0x88, 0xa8, 0xa0, 0],
                };
                let mut tagged = frame(macs, &whole(from, to, &tcp, false));
                tagged.splice(12..12, tags.iter().copied());
                vec![tagged]
            }
            Self::Options => vec![frame(macs, &whole(from, to, &tcp, true))],
            Self::Fragments => packet(&[(0, &tcp[..24], true), (24, &tcp[24..], false)]),
            Self::TinyFragment => packet(&[(0, &tcp[..8], true), (8, &tcp[8..], false)]),
            Self::OverlappingFragment => {
                let other = segment(from, to, ACK);
                packet(&[(0, &other[..24], true), (8, &tcp[8..], false)])
            }
        }
    }
}

/// A segment with an MSS, and enough meaningless options for two fragments.
fn segment(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend([0, 0, 1, 0, 0, 0, 0, 0, 10 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend([2, 4, 5, 0xb4]);
    tcp.extend([1; 16]);
    let pseudo = [octets(from.ip()), octets(to.ip()), vec![0, 6, 0, tcp.len() as u8]].concat();
    let sum = checksum(&[pseudo, tcp.clone()].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    tcp
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn whole(from: SocketAddr, to: SocketAddr, tcp: &[u8], has_options: bool) -> Vec<u8> {
    let mut packet = ip(from.ip(), to.ip(), None, has_options);
    let length = packet.len() + tcp.len();
    set_length(&mut packet, length);
    packet.extend(tcp);
    packet
}

/// An IP header, and with a `fragment` (offset, bytes, whether more follow) its bytes.
fn ip(from: IpAddr, to: IpAddr, fragment: Option<(usize, &[u8], bool)>, has_options: bool) -> Vec<u8> {
    const ID: [u8; 4] = [0, 0, 0x12, 0x34];
    let mut packet = if from.is_ipv4() {
        let field = fragment.map_or(0, |(offset, _, more)| (offset / 8) as u16 | u16::from(more) << 13);
        let mut header = vec![if has_options { 0x46 } else { 0x45 }, 0, 0, 0, ID[2], ID[3]];
        header.extend(field.to_be_bytes());
        header.extend([64, 6, 0, 0]);
        header.extend(octets(from));
        header.extend(octets(to));
        if has_options {
            header.extend([1, 1, 1, 0]);
        }
        header
    } else {
        let next = match (fragment, has_options) {
            (Some(_), _) => 44,
            (None, true) => 60,
            (None, false) => 6,
        };
        let mut header = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        header.extend(octets(from));
        header.extend(octets(to));
        if let Some((offset, _, more)) = fragment {
            header.extend([6, 0]);
            header.extend(((offset as u16) | u16::from(more)).to_be_bytes());
            header.extend(ID);
        } else if has_options {
            // Destination options: six bytes of padding.
            header.extend([6, 0, 1, 4, 0, 0, 0, 0]);
        }
        header
    };
    if let Some((_, bytes, _)) = fragment {
        let length = packet.len() + bytes.len();
        set_length(&mut packet, length);
        packet.extend(bytes);
    }
    packet
}

/// Writes the length of a packet of `length` bytes, and the checksum of an IPv4 header.
fn set_length(header: &mut [u8], length: usize) {
    if header[0] >> 4 == 4 {
        header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        header[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
    }
}

/// A packet after an Ethernet header; without addresses for one, the packet alone.
fn frame(macs: &[u8], packet: &[u8]) -> Vec<u8> {
    if macs.is_empty() {
        return packet.to_vec();
    }
    let ethertype = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [macs, &ethertype, packet].concat()
}

/// Ethernet addresses of the client's frames: destination, source.
fn macs(lab: &Lab) -> [u8; 12] {
    let address = |words: String| -> Vec<u8> {
        let mut words = words.split_whitespace();
        words
            .find(|word| *word == "link/ether")
            .expect("the link has no address");
        let mac = words.next().unwrap();
        mac.split(':')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect()
    };
    let there = address(lab.lb.must(&["ip", "-o", "link", "show", "client"]));
    let here = address(lab.client.must(&["ip", "-o", "link", "show", "eth0"]));
    [there, here].concat().try_into().unwrap()
}

/// Whether frames are answered by a SYN-ACK.
fn is_answered(socket: &Socket, frames: &[Vec<u8>], (from, to): (SocketAddr, SocketAddr)) -> bool {
    for frame in frames {
        (&mut &*socket).write_all(frame).unwrap();
    }
    let until = Instant::now() + ANSWER_TIMEOUT;
    let mut room = [0; 2048];
    while Instant::now() < until {
        match (&mut &*socket).read(&mut room) {
            Ok(length) if length > ETHERNET && is_syn_ack(&room[ETHERNET..length], from, to) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    false
}

/// Whether a packet is the answer to a SYN between two addresses.
fn is_syn_ack(packet: &[u8], from: SocketAddr, to: SocketAddr) -> bool {
    let (version, tcp) = if to.is_ipv4() { (4, 20) } else { (6, 40) };
    let ports = [to.port().to_be_bytes(), from.port().to_be_bytes()].concat();
    packet.len() >= tcp + 20
        && packet[0] >> 4 == version
        && packet[tcp..tcp + 4] == ports[..]
        && packet[tcp + 13] & (SYN | ACK) == SYN | ACK
}

/// Each SYN has its own port, so the kernel cannot mistake it for another.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn no_denied_client_gets_in(test: &str, hook: &str) {
    if !privileged(test) {
        return;
    }
    let shield = format!("shield: {{ deny: [\"10.1.0.3\", \"fd00:1::3\"] }}\nlayer4: {{ hook: {hook} }}");
    // By XDP, packets that are sent on go to peers that also have a program.
    let lab = if hook == "native" { cabled() } else { Lab::new() };
    let scene = Scene::of(lab, &body(&shield, "", ""));
    let macs = macs(&scene.lab);
    let socket = scene.lab.client.run(|| all_packets("eth0"));
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    for family in [0, 1] {
        for (target, is_service) in [(WEB[family], false), (DB[family], true)] {
            for form in FORMS {
                let to: SocketAddr = target.parse().unwrap();
                let answered = |who: &str| {
                    let from = SocketAddr::new(who.parse().unwrap(), next_port());
                    is_answered(&socket, &form.frames(&macs, from, to), (from, to))
                };
                assert!(!answered(BAD[family]), "{hook}: a denied client, {form:?}, at {target}");
                // XDP drops it, TC takes it for a tag of VLAN 0: such packets are never sent in practice.
                if form == Form::ServicePriorityTag {
                    continue;
                }
                let expected = form.is_answered() && (!is_service || form.is_for_services());
                if expected || !is_service {
                    assert_eq!(
                        answered(GOOD[family]),
                        expected,
                        "{hook}: an allowed client, {form:?}, at {target}"
                    );
                }
            }
        }
    }
    assert!(decided(&scene.sb, "web", "denied") >= 8);
}

#[test]
fn no_form_of_a_packet_lets_a_denied_client_in_by_tc() {
    no_denied_client_gets_in("no_form_of_a_packet_lets_a_denied_client_in_by_tc", "tc");
}

#[test]
fn no_form_of_a_packet_lets_a_denied_client_in_by_xdp() {
    no_denied_client_gets_in("no_form_of_a_packet_lets_a_denied_client_in_by_xdp", "native");
}

/// A device without Ethernet, such as WireGuard's: the shield is there, and reports that.
#[lab_test]
fn a_device_without_ethernet_lets_no_denied_client_in() {
    let scene = Scene::new("shield: { deny: [\"10.77.0.3\", \"fd00:77::3\"] }", "", "");
    let mut tun = scene.lab.lb.run(|| Tun::open("tun0"));
    for words in [
        "ip addr add 10.77.0.1/24 dev tun0",
        "ip -6 addr add fd00:77::1/64 dev tun0 nodad",
        "ip link set tun0 up",
    ] {
        scene.lab.lb.must(&words.split(' ').collect::<Vec<_>>());
    }
    // Connections that begin before the program is attached are reset by userspace.
    let is_there = || {
        let hooks = scene.sb.json("/api/v1/services")["hooks"].clone();
        find(&hooks, "interface", "tun0")["hook"] == "tc_ip"
    };
    assert!(eventually(SOON, is_there), "{}", scene.sb.json("/api/v1/services"));
    for (denied, allowed, target) in [("10.77.0.3", "10.77.0.2", WEB[0]), ("fd00:77::3", "fd00:77::2", WEB[1])] {
        let to: SocketAddr = target.parse().unwrap();
        for form in [Form::Plain, Form::Options, Form::Fragments, Form::TinyFragment] {
            let mut answered = |who: &str| {
                let from = SocketAddr::new(who.parse().unwrap(), next_port());
                tun.send(&form.frames(&[], from, to));
                tun.expect(ANSWER_TIMEOUT, |packet| is_syn_ack(packet, from, to))
            };
            assert!(!answered(denied), "a denied client, {form:?}, at {target}");
            assert_eq!(
                answered(allowed),
                form.is_answered(),
                "an allowed client, {form:?}, at {target}"
            );
        }
    }
}
