//! `signalbox certificates`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use hyper::Method;
use serde_json::json;
use signalbox_api::sources::{CertificateChange, CertificatesAnswer};

use super::show::{TableArgs, emit, print, print_text, rows};
use super::{OutputFormat, client};
use signalbox_sources::client::percent_encoded;

/// Changes of the certificates that have come by API.
#[derive(Subcommand)]
pub(super) enum CertificateCommand {
    /// Set a certificate, which is kept over restarts. It replaces the one that was set under the same name.
    Put {
        /// Name under which the certificate is kept, to replace or remove it later; the hostname, for example.
        name: String,
        /// PEM file with the certificate and its intermediates; it may also hold the key.
        #[arg(long, value_name = "FILE")]
        cert: PathBuf,
        /// PEM file with the private key.
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// File with the pass phrase of the key.
        #[arg(long, value_name = "FILE")]
        pass: Option<PathBuf>,
    },
    /// Remove a certificate that was set with `put`.
    Remove { name: String },
}

pub(super) fn run(what: Option<CertificateCommand>, args: &TableArgs) -> anyhow::Result<ExitCode> {
    let (socket, output) = (&args.show.socket, args.show.output);
    let path = |name: &str| format!("/api/v1/certificates/{}", percent_encoded(name));
    let answer = match what {
        None => return list(args),
        Some(CertificateCommand::Put { name, cert, key, pass }) => {
            let phrase = pass.as_deref().map(read).transpose()?;
            let body = json!({
                "certificate": read(&cert)?,
                "key": key.as_deref().map(read).transpose()?,
                "pass_phrase": phrase.as_deref().map(|phrase| phrase.trim_end_matches(['\r', '\n'])),
            });
            client::change(socket, &Method::PUT, &path(&name), Some(&body))?
        }
        Some(CertificateCommand::Remove { name }) => client::change(socket, &Method::DELETE, &path(&name), None)?,
    };
    let change: CertificateChange = client::decode(answer.clone())?;
    if output != OutputFormat::Table {
        emit(&answer, output)?;
    } else if change.removed.is_some() {
        print_text("removed")?;
    } else if change.in_force {
        print_text("in force")?;
    } else {
        print_text("kept, but not active: no listener has `protocol: https`, or the file has not been read yet")?;
    }
    for warning in change.warnings.iter().flatten() {
        eprintln!("warning: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the active certificates, and below them the unusable files.
fn list(args: &TableArgs) -> anyhow::Result<ExitCode> {
    print("/api/v1/certificates", args, |answer: &CertificatesAnswer, form| {
        let errors = answer.errors.iter().map(|error| format!("cannot be used: {error}"));
        form.with_notes(rows(&answer.certificates, form), errors)
    })
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}
