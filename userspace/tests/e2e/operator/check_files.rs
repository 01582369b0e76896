//! Files that a configuration names, as `signalbox check` sees them.

use crate::lab::signalbox::check;

/// A directory with files, removed at the end.
struct Files(std::path::PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Files {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("signalbox-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn openssl(&self, words: &str) {
        let mut command = std::process::Command::new("openssl");
        command.current_dir(&self.0).args(words.split_whitespace());
        let made = command.output().unwrap();
        assert!(made.status.success(), "{words}: {made:?}");
    }

    /// Makes a certificate `NAME.crt` and its key `NAME.key`, of version 1 or 3.
    fn make(&self, name: &str, version: u8) {
        let key = format!("-newkey rsa:2048 -nodes -keyout {name}.key -subj /CN={name}");
        if version == 3 {
            self.openssl(&format!("req -x509 {key} -days 2 -out {name}.crt"));
        } else {
            self.openssl(&format!("req {key} -out {name}.csr"));
            self.openssl(&format!(
                "x509 -req -in {name}.csr -signkey {name}.key -days 2 -out {name}.crt"
            ));
        }
    }

    /// Checks a configuration: exit status, and what is said.
    fn check(&self, text: &str) -> (Option<i32>, String) {
        let config = self.0.join("signalbox.yaml");
        std::fs::write(&config, text).unwrap();
        let output = check(&config);
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }
}

#[test]
fn check_reads_the_certificate_of_the_admin_api() {
    let files = Files::new("check-admin");
    files.make("old", 1);
    files.make("new", 3);
    let check = |cert: &str, key: &str, ca: &str| {
        let (cert, key, ca) = (files.path(cert), files.path(key), files.path(ca));
        files.check(&format!(
            "version: 1\nadmin:\n  listen: 127.0.0.1:8089\n  tls:\n    cert: {cert}\n    key: {key}\n    \
             client_ca: {ca}\nlisteners: [{{ name: web, protocol: http, listen: [\"10.1.0.1:80\"] }}]\nclusters: []\n"
        ))
    };
    let (code, said) = check("new.crt", "new.key", "new.crt");
    assert_eq!(code, Some(0), "{said}");
    let wrong = [
        (
            ["old.crt", "old.key", "new.crt"],
            ":5:11: admin.tls.cert: ",
            "is of X.509 version 1",
        ),
        (
            ["new.crt", "old.key", "new.crt"],
            ":6:10: admin.tls.key: ",
            "is not the private key of",
        ),
        (
            ["new.crt", "new.key", "old.key"],
            ":7:16: admin.tls.client_ca: ",
            "no certificate in it",
        ),
        (
            ["none.crt", "new.key", "new.crt"],
            ":5:11: admin.tls.cert: ",
            "none.crt",
        ),
    ];
    for ([cert, key, ca], place, why) in wrong {
        let (code, said) = check(cert, key, ca);
        assert!(code == Some(2) && said.contains(place) && said.contains(why), "{said}");
    }
}

#[test]
fn check_names_the_key_of_a_file_that_two_keys_name() {
    let files = Files::new("check-twice");
    files.make("a", 3);
    let (cert, key, none) = (files.path("a.crt"), files.path("a.key"), files.path("none.pem"));
    let text = |ca: &str, health: &str| {
        format!(
            "version: 1\nlisteners:\n  - name: web\n    protocol: https\n    termination: edge\n    \
             listen: [\"10.1.0.1:443\"]\n    client_certificates: {{ ca: {ca}, required: true }}\n\
             certificates:\n  - {{ cert: {cert}, key: {key}, default: true }}\nclusters:\n  - name: a\n    \
             health: {{ https: {{ ca: {health} }} }}\n    hosts: [{{ name: s, address: 10.2.0.2, http: 80, https: 443 }}]\n\
             routes: [{{ host: a.test, clusters: {{ a: 1 }} }}]\n"
        )
    };
    let (code, said) = files.check(&text(&cert, &cert));
    assert_eq!(code, Some(0), "{said}");
    // The key is no authority, although it is a good key.
    let (code, said) = files.check(&text(&key, &cert));
    let place = ":7:32: listeners[0].client_certificates.ca: ";
    assert!(code == Some(2) && said.contains(place), "{said}");
    let (code, said) = files.check(&text(&cert, &none));
    let place = ":12:28: clusters[0].health.https.ca: ";
    assert!(code == Some(2) && said.contains(place), "{said}");
}
