//! Where the network card has summed a packet up (CHECKSUM_COMPLETE), the kernel keeps that sum with it, and its
//! receivers on this machine rely on it. A program that writes must keep it correct: the kernel checks it after these
//! runs.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use super::packet::Packet;
use super::scene::{Scene, over_ipv4, over_ipv6};

#[test]
fn the_cards_sum_of_a_forwarded_ipv4_packet_stays_right() {
    over_ipv4(|mut scene| stays_right(&mut scene));
}

#[test]
fn the_cards_sum_of_a_forwarded_ipv6_packet_stays_right() {
    over_ipv6(|mut scene| stays_right(&mut scene));
}

#[track_caller]
fn stays_right(scene: &mut Scene) {
    scene.put(&scene.flow());
    let data = |packet: Packet| Packet {
        payload: vec![7; 333],
        ..packet
    };
    for packet in [scene.client_sends(5, 5), scene.host_sends(5, 5)] {
        let summed = run_summed(scene, &data(packet).bytes());
        if matches!(&summed, Err(error) if error.raw_os_error() == Some(libc::EINVAL)) {
            println!(
                "SKIP packets_that_are_summed_up: this kernel cannot run programs on packets that are summed up (before 6.16)"
            );
            return;
        }
        summed.unwrap();
    }
    assert_eq!(
        scene.flow_now().dirs.map(|way| way.packets),
        [1, 1],
        "both were forwarded"
    );
}

/// The part of `union bpf_attr` that BPF_PROG_TEST_RUN uses.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_sizes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    ctx_sizes: [u32; 2],
    ctx: [u64; 2],
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _pad: u32,
}

/// Runs `cut_in`; EBADMSG says that the sum is wrong afterwards.
fn run_summed(scene: &mut Scene, bytes: &[u8]) -> io::Result<()> {
    const BPF_PROG_TEST_RUN: libc::c_long = 10;
    const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 1 << 2;
    let mut attr = TestRunAttr {
        prog_fd: scene.programs.cut_in().fd().unwrap().as_fd().as_raw_fd() as u32,
        data_sizes: [bytes.len() as u32, 0],
        data: [bytes.as_ptr() as u64, 0],
        repeat: 1,
        flags: BPF_F_TEST_SKB_CHECKSUM_COMPLETE,
        ..TestRunAttr::default()
    };
    let size = size_of::<TestRunAttr>();
    // SAFETY: the attribute and the packet, which the kernel reads, live for the call and have the sizes that are
    // passed; there is nothing else that it writes to.
    match unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
