//! Errors in the files that a configuration names, for `signalbox check`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use signalbox_core::model::shield::PrefixLists;
use signalbox_core::model::{Model, Probe};
use signalbox_tls::client::{backend_config, host_verifier};
use signalbox_tls::directory::CertificateLoader;
use signalbox_tls::resolver::CertificateResolver;
use signalbox_tls::server::ServerConfigs;
use signalbox_tls::store::SharedCertificates;
use signalbox_tls::watch::now;

use super::tls::{certificate_files, has_reencryption, policy, warnings_of};
use crate::state::error_pages::ErrorPages;

/// Error in a file that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// Key that names the file, or a section with this key: `listeners[0].client_certificates.ca`, `certificates`.
    /// Empty: any key.
    pub key: String,
    /// The file, and what is wrong with it.
    pub message: String,
}

impl FileProblem {
    /// Problem with a file under a key.
    pub fn new(key: impl Into<String>, message: impl ToString) -> Self {
        Self {
            key: key.into(),
            message: message.to_string(),
        }
    }
}

/// Errors in the files of a configuration, at this moment: those that refuse it, and those that do not. The files of
/// `admin.tls` are the admin API's to check.
#[must_use]
pub fn file_problems(model: &Model) -> (Vec<FileProblem>, Vec<String>) {
    let pages = ErrorPages::load(&model.pages).err();
    let mut problems: Vec<_> = pages
        .map(|error| FileProblem::new("pages", error))
        .into_iter()
        .collect();
    problems.extend(missing_files(model));
    let now = now();
    let report = CertificateLoader::new(certificate_files(model)).load(now);
    let warnings = report.store.certificates().iter().flat_map(|one| warnings_of(one, now));
    problems.extend(
        report
            .errors
            .iter()
            .map(|error| FileProblem::new("certificates", error)),
    );
    problems.extend(of_listeners(model));
    problems.extend(of_clusters(model));
    (problems, warnings.collect())
}

fn of_listeners(model: &Model) -> impl Iterator<Item = FileProblem> {
    let resolver = Arc::new(CertificateResolver::new(SharedCertificates::default(), false));
    model.listeners.iter().enumerate().filter_map(move |(at, listener)| {
        let policy = policy(&model.tls, listener.tls.as_ref()?);
        let error = ServerConfigs::new(&policy, Arc::clone(&resolver), None).err()?;
        let key = format!("listeners[{at}].client_certificates");
        Some(FileProblem::new(key, format!("listener {}: {error}", listener.name)))
    })
}

fn of_clusters(model: &Model) -> impl Iterator<Item = FileProblem> {
    let is_reencrypted = has_reencryption(model);
    model.clusters.iter().enumerate().flat_map(move |(at, cluster)| {
        let backend = is_reencrypted
            .then(|| backend_config(&cluster.backend_tls).err())
            .flatten();
        let backend = backend.map(|error| ("backend_tls", error));
        let health = match &cluster.health.probe {
            Probe::Http(http) => http.tls.as_ref().and_then(|tls| tls.ca.as_deref()),
            _ => None,
        };
        let health = health
            .and_then(|ca| host_verifier(ca).err())
            .map(|error| ("health", error));
        backend.into_iter().chain(health).map(move |(key, error)| {
            let key = format!("clusters[{at}].{key}");
            FileProblem::new(key, format!("cluster {}: {error}", cluster.name))
        })
    })
}

/// Missing files that are not read here. Only the user who runs signalbox may be able to read some.
fn missing_files(model: &Model) -> impl Iterator<Item = FileProblem> {
    let of_lists = |lists: &PrefixLists| [lists.deny_files.clone(), lists.allow_files.clone()].concat();
    let listeners = model.listeners.iter().filter_map(|listener| listener.shield.as_ref());
    let services = model.services.iter().filter_map(|service| service.shield.as_ref());
    let own = listeners.chain(services).flat_map(|policy| of_lists(&policy.lists));
    let shield = of_lists(&model.shield.lists).into_iter().chain(own);
    let shield: BTreeSet<_> = shield.filter(|path| is_missing(path)).collect();
    let balancers = model.balancers.iter().enumerate().flat_map(|(at, other)| {
        let files = [&other.ca, &other.token_file].into_iter().flatten();
        let files = files.chain(other.identity.iter().flat_map(|(cert, key)| [cert, key]));
        files.map(move |path| (format!("balancers[{at}]"), path.clone()))
    });
    let token = model.admin.token_file.clone();
    let token = token.map(|path| ("admin.token_file".to_owned(), path));
    let others = balancers.chain(token).filter(|(_, path)| is_missing(path));
    let all: Vec<(String, PathBuf)> = others
        .chain(shield.into_iter().map(|path| (String::new(), path)))
        .collect();
    all.into_iter()
        .map(|(key, path)| FileProblem::new(key, format!("{} is not there", path.display())))
}

fn is_missing(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}
