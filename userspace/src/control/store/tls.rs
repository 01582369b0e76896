//! TLS of the configuration, built before the configuration is applied, so that an error in a file refuses it.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use signalbox_core::model::tls::{
    BackendTls, CertificatePlace, ClientCertificates, ListenerTls, Termination, TlsSettings,
};
use signalbox_core::model::{Listener, Model};
use signalbox_core::routing::tls::offer::Http2Offer;
use signalbox_tls::certificate::Certificate;
use signalbox_tls::client::{HostConfig, backend_config};
use signalbox_tls::directory::{CertificateFiles, CertificateLoader, LoadReport, NamesFrom};
use signalbox_tls::resolver::CertificateResolver;
use signalbox_tls::server::{ClientAuth, ServerConfigs, ServerPolicy};
use signalbox_tls::store::SharedCertificates;
use signalbox_tls::tickets::TicketSecret;
use signalbox_tls::watch::{now, watch};
use tokio::task::JoinHandle;

use crate::control::cluster_certificates;
use crate::control::kept_certificates::KeptCertificates;
use crate::state::tls::{HostTls, Http2Offers, ListenerTlsState, TlsState};
use crate::state::{Shared, tls};
use crate::sys::private_directory;

/// Active TLS, and the watch of its certificate files.
pub(super) struct TlsSetup {
    pub(super) state: Arc<TlsState>,
    certificates: SharedCertificates,
    shared: Arc<Shared>,
    /// Places of certificates that are watched.
    places: Vec<CertificateFiles>,
    /// HTTP/2 rules, and their model.
    http2: Option<(Arc<Model>, Arc<Http2Offers>)>,
    watch: Option<JoinHandle<()>>,
}

/// TLS that is ready to be applied.
pub(super) struct PreparedTls {
    state: Arc<TlsState>,
    /// Current certificates, if they come from other places than the active ones.
    loaded: Option<(Vec<CertificateFiles>, CertificateLoader, LoadReport)>,
}

impl TlsSetup {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            state: Arc::default(),
            certificates: Arc::clone(&shared.tls.certificates),
            shared,
            places: Vec::new(),
            http2: None,
            watch: None,
        }
    }

    /// Builds the configured TLS from the current files. `secret`: that of session tickets, if listeners issue them.
    pub(super) fn prepare(&mut self, model: &Model, secret: Option<&TicketSecret>) -> Result<PreparedTls, String> {
        if model.listeners.iter().any(|listener| listener.tls.is_some()) {
            make_directory(&KeptCertificates::of(model));
            for directory in cluster_certificates::directories(model) {
                if let Err(error) = private_directory(&directory) {
                    let path = directory.display();
                    tracing::warn!(%error, %path, "Certificates of a cluster cannot be used: their directory cannot be \
                                                   created.");
                }
            }
        }
        let places = certificate_files(model);
        let is_watched = places == self.places && self.watch.as_ref().is_some_and(|watch| !watch.is_finished());
        let loaded = if is_watched || (places.is_empty() && self.places.is_empty()) {
            None
        } else {
            let mut loader = CertificateLoader::new(places.clone());
            let report = loader.load(now());
            // A file in the configuration must be good now. Directories may contain files that cannot be used yet.
            let named: Vec<PathBuf> = places.iter().filter_map(certificate_file).collect();
            let is_named = |label: &str| named.iter().any(|path| path.as_os_str() == label);
            if let Some(error) = report.errors.iter().find(|error| is_named(&error.label)) {
                return Err(format!("certificate {error}"));
            }
            Some((places, loader, report))
        };
        let listeners = model.listeners.iter().filter_map(|listener| {
            let tls = listener.tls.as_ref()?;
            Some((listener.name.as_str(), tls))
        });
        let mut state = TlsState::default();
        for (name, tls) in listeners {
            let listener = self.listener(&model.tls, name, tls, secret)?;
            state.listeners.insert(name.to_owned(), listener);
        }
        if !state.listeners.is_empty() && has_reencryption(model) {
            let default = BackendTls::default();
            let others = backend_config(&default).ok();
            state.other_clusters = others.map(|config| HostTls::new(config, &default));
            let mut known: HashMap<&BackendKey, HostConfig> = HashMap::new();
            let keys: Vec<_> = model
                .clusters
                .iter()
                .map(|cluster| BackendKey(cluster.backend_tls.clone()))
                .collect();
            for (cluster, key) in model.clusters.iter().zip(&keys) {
                let config = match known.get(key) {
                    Some(config) => config.clone(),
                    None => {
                        let config =
                            backend_config(&key.0).map_err(|error| format!("cluster {}: {error}", cluster.name))?;
                        known.insert(key, config.clone());
                        config
                    }
                };
                let hosts = HostTls::new(config, &cluster.backend_tls);
                state.clusters.insert(cluster.name.clone(), hosts);
            }
        }
        Ok(PreparedTls {
            state: Arc::new(state),
            loaded,
        })
    }

    fn listener(
        &self,
        settings: &TlsSettings,
        name: &str,
        tls: &ListenerTls,
        secret: Option<&TicketSecret>,
    ) -> Result<ListenerTlsState, String> {
        let resolver = CertificateResolver::new(Arc::clone(&self.certificates), tls.has_strict_sni);
        let resolver = Arc::new(resolver);
        let tickets = secret.map(|secret| (secret, Arc::new(now) as _));
        let configs = ServerConfigs::new(&policy(settings, tls), Arc::clone(&resolver), tickets)
            .map_err(|error| format!("listener {name}: {error}"))?;
        Ok(ListenerTlsState { configs, resolver })
    }

    /// Returns where HTTP/2 is offered. The rules are made once per model, even with many snapshots.
    pub(super) fn http2_offers(&mut self, model: &Arc<Model>) -> Arc<Http2Offers> {
        match &self.http2 {
            Some((of, offers)) if Arc::ptr_eq(of, model) => Arc::clone(offers),
            _ => {
                let listeners = model.listeners.iter().filter(|listener| listener.tls.is_some());
                let rule = |listener: &Listener| (listener.name.clone(), Http2Offer::new(model, listener));
                let offers: Arc<Http2Offers> = Arc::new(listeners.map(rule).collect());
                self.http2 = Some((Arc::clone(model), Arc::clone(&offers)));
                offers
            }
        }
    }

    /// Applies prepared TLS. Returns the previous state.
    pub(super) fn commit(&mut self, prepared: PreparedTls) -> Arc<tls::TlsState> {
        if let Some((places, loader, report)) = prepared.loaded {
            if let Some(watch) = self.watch.take() {
                watch.abort();
            }
            self.certificates.store(Arc::new(report.store.clone()));
            self.places = places;
            if self.places.is_empty() {
                self.shared.tls.certificate_errors.store(Arc::default());
            } else {
                self.watch = Some(tokio::spawn(keep(loader, Arc::clone(&self.shared))));
            }
        }
        std::mem::replace(&mut self.state, prepared.state)
    }
}

/// Problems of a certificate that is used nevertheless.
pub(super) fn warnings_of(certificate: &Certificate, now: u64) -> impl Iterator<Item = String> {
    let warnings = certificate.warnings(now);
    warnings.map(|warning| format!("certificate {}: {warning}", certificate.label))
}

pub(super) fn policy(settings: &TlsSettings, tls: &ListenerTls) -> ServerPolicy {
    ServerPolicy {
        label: format!("{:?}", settings.profile),
        profile: settings.profile,
        groups: settings.groups.clone(),
        client_auth: match &tls.clients {
            None => ClientAuth::None,
            Some(ClientCertificates {
                ca, is_required: true, ..
            }) => ClientAuth::Required(ca.clone()),
            Some(ClientCertificates {
                ca, is_required: false, ..
            }) => ClientAuth::Optional(ca.clone()),
        },
    }
}

/// Settings by value, as the key of a table.
#[derive(PartialEq, Eq)]
struct BackendKey(BackendTls);

impl std::hash::Hash for BackendKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let BackendTls {
            ca,
            name,
            is_verified,
            identity,
            alpn,
        } = &self.0;
        (ca, name, is_verified, identity, alpn).hash(state);
    }
}

/// Keeps the certificates up to date with their files, and reports errors in them.
async fn keep(loader: CertificateLoader, shared: Arc<Shared>) {
    let mut told = BTreeSet::new();
    let report = |found: &LoadReport| {
        let (now, certificates) = (now(), found.store.certificates());
        let warnings: BTreeSet<_> = certificates.iter().flat_map(|one| warnings_of(one, now)).collect();
        for warning in warnings.difference(&told) {
            tracing::warn!(warning, "A certificate is used although it has a fault.");
        }
        told = warnings;
        for error in &found.errors {
            tracing::error!(%error, "A certificate cannot be used: the previous one stays active, if there was one.");
        }
        tracing::info!(
            certificates = found.store.certificates().len(),
            names = found.store.names(),
            errors = found.errors.len(),
            "Certificates read."
        );
        let errors = found.errors.iter().map(ToString::to_string).collect();
        shared.tls.certificate_errors.store(Arc::new(errors));
    };
    if let Err(error) = watch(loader, Arc::clone(&shared.tls.certificates), report).await {
        tracing::error!(%error, "Certificate files are no longer watched: reload the configuration to watch them again.");
    }
}

/// Places of all certificates: those of the configuration, and the directories filled by routing events and the API.
/// None if no listener needs them.
pub(super) fn certificate_files(model: &Model) -> Vec<CertificateFiles> {
    if model.listeners.iter().all(|listener| listener.tls.is_none()) {
        return Vec::new();
    }
    let of_events = model
        .routing_events
        .as_ref()
        .and_then(|events| events.certificates.clone());
    let of_events = of_events.map(|path| CertificateFiles::Directory {
        path,
        // The owner of one alias must not answer for others, even if the certificate has their names.
        names: NamesFrom::FileName,
    });
    let kept = KeptCertificates::of(model);
    // `signalbox check` may run without such a directory, or as a user who may not read it.
    let of_api = std::fs::read_dir(kept.path())
        .is_ok()
        .then(|| CertificateFiles::Directory {
            path: kept.path().to_owned(),
            names: NamesFrom::Certificate,
        });
    let of_clusters = cluster_certificates::directories(model).filter(|path| path.is_dir());
    let of_clusters = of_clusters.map(|path| CertificateFiles::Directory {
        path,
        names: NamesFrom::FileName,
    });
    let configured = model.tls.certificates.iter().map(files);
    configured.chain(of_events).chain(of_clusters).chain(of_api).collect()
}

/// Makes the directory for certificates that arrive by API. Without it, there are none.
fn make_directory(kept: &KeptCertificates) {
    if let Err(error) = kept.make() {
        let path = kept.path().display().to_string();
        tracing::warn!(%error, path, "Certificates cannot be set by API: their directory cannot be created.");
    }
}

fn files(place: &CertificatePlace) -> CertificateFiles {
    match place.clone() {
        CertificatePlace::Files {
            cert,
            key,
            pass,
            is_default,
        } => CertificateFiles::Pair {
            cert,
            key,
            pass,
            is_default,
        },
        CertificatePlace::Directory(path) => CertificateFiles::Directory {
            path,
            names: NamesFrom::Certificate,
        },
    }
}

fn certificate_file(place: &CertificateFiles) -> Option<PathBuf> {
    match place {
        CertificateFiles::Pair { cert, .. } => Some(cert.clone()),
        CertificateFiles::Directory { .. } => None,
    }
}

pub(super) fn has_reencryption(model: &Model) -> bool {
    let of_listeners = model.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let of_routes = model.routes.iter().filter_map(|route| route.tls.as_ref()?.termination);
    let mut all = of_listeners.map(|tls| tls.termination).chain(of_routes);
    // Clusters whose certificates are read may get names with re-encryption later.
    all.any(|termination| termination == Termination::Reencrypt)
        || cluster_certificates::directories(model).next().is_some()
}
