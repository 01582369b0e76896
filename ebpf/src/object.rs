//! Parts that each object needs: the license, and a panic handler that no program reaches.

/// License of the object: the kernel requires it of programs that call a helper such as `bpf_tcp_gen_syncookie`.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier admits no program that can reach this.
    loop {}
}
