//! Directories for certificates that are read from clusters. They are beside the store.

use std::fs;
use std::path::PathBuf;

use signalbox_core::model::Model;
use signalbox_core::model::kubernetes::KubernetesSource;

/// Directory that contains the clusters' directories.
const DIRECTORY: &str = "cluster-certificates";

/// Prefix of the clusters' directories, because a cluster may be named `..`.
const PREFIX: &str = "cluster-";

/// Directory of a cluster's certificates.
#[must_use]
pub(super) fn directory(model: &Model, cluster: &str) -> PathBuf {
    model.beside_store(DIRECTORY).join(format!("{PREFIX}{cluster}"))
}

/// Directories of all clusters from which certificates are read.
pub(super) fn directories(model: &Model) -> impl Iterator<Item = PathBuf> + '_ {
    let reads = |source: &KubernetesSource| source.certificates;
    let clusters = model.clusters.iter();
    clusters
        .filter(move |cluster| cluster.kubernetes.as_ref().is_some_and(reads))
        .map(|cluster| directory(model, &cluster.name))
}

/// Removes the keys of clusters from which certificates are no longer read.
pub(super) fn remove_others(model: &Model) {
    let wanted: Vec<PathBuf> = directories(model).collect();
    let Ok(entries) = fs::read_dir(model.beside_store(DIRECTORY)) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if wanted.contains(&path) {
            continue;
        }
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::error!(%error, path = %path.display(), "Certificates that are no longer used cannot be removed: remove them.");
        }
    }
}
