//! Asks the linker for types of functions, where the kernel calls one back.

fn main() {
    // `bpf_loop` takes only functions of known types (kernel/bpf/verifier.c, `check_ld_imm`).
    println!("cargo::rustc-link-arg-bin=kernel_peek=--btf");
    println!("cargo::rerun-if-changed=build.rs");
}
