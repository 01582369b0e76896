//! The `signalbox` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    signalbox_tls::provider::install();
    signalbox::cli::main()
}
