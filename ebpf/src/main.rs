//! The eBPF programs of signalbox. Thin: parse, look up, verdict, count. The decisions stand in `signalbox-common`,
//! where host tests run them too.
//!
//! Built by `cargo xtask build-ebpf`; loaded by `signalbox::kernel`.
#![no_std]
#![no_main]
// For one compiler barrier, in `cut::skb`; aya-ebpf uses the same feature.
#![feature(asm_experimental_arch)]

mod bare_tx;
mod clock;
mod count;
mod cut;
mod impair;
mod l4;
mod parts;
mod shield;
mod sockmap;
mod steer;

/// License of the object: the kernel requires it of programs that call a helper such as `bpf_tcp_gen_syncookie`.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier admits no program that can reach this.
    loop {}
}
