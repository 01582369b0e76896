//! The Kubernetes source against a real kube-apiserver with etcd, RBAC and bound tokens. Its program takes
//! ten minutes to build: `SIGNALBOX_KUBE_APISERVER` names it.

mod documented;
mod objects;
mod plane;
mod scene;

// The tests.
mod credentials;
mod outages;
mod past;
mod reads;
