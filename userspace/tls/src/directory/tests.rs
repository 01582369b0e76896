use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::fixtures::{Authority, Issued};
use crate::keys::KeyError;

/// Directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("signalbox-tls-directory-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn issue(&self, name: &str, issued: &Issued) {
        self.write(&format!("{name}.crt"), &issued.cert);
        self.write(&format!("{name}.key"), &issued.key);
    }

    fn loader(&self, names: NamesFrom) -> CertificateLoader {
        let path = self.0.clone();
        CertificateLoader::new(vec![CertificateFiles::Directory { path, names }])
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn names(report: &LoadReport) -> Vec<String> {
    let names = report.store.certificates().iter().flat_map(|one| &one.names);
    names.map(ToString::to_string).collect()
}

fn now() -> u64 {
    crate::watch::now()
}

#[test]
fn pairs_combined_files_and_pass_phrases_are_read() {
    let (place, root) = (Place::new(), Authority::root("root"));
    place.issue("a", &root.ecdsa(&["a.test"]));
    let both = root.ecdsa(&["b.test"]);
    place.write("b.pem", &[both.cert, both.key].concat());
    let locked = root.ecdsa(&["c.test"]);
    place.issue("c", &locked);
    let key = place.0.join("c.key");
    let mut openssl = std::process::Command::new("openssl");
    openssl
        .args([
            "pkcs8",
            "-topk8",
            "-v2",
            "aes-256-cbc",
            "-passout",
            "pass:open sesame",
            "-in",
        ])
        .arg(&key);
    place.write("c.key", &String::from_utf8(openssl.output().unwrap().stdout).unwrap());
    place.write("c.pass", "open sesame\n");
    place.write("notes.txt", "no certificate");
    let mut loader = place.loader(NamesFrom::Certificate);
    let report = loader.load(now());
    assert_eq!(report.errors, []);
    assert_eq!(names(&report), ["a.test", "b.test", "c.test"]);
    assert!(report.is_changed);
    assert!(!loader.load(now()).is_changed);
    assert!(!loader.load(now() + 100).is_changed);
}

#[test]
fn a_wrong_or_partial_file_leaves_the_last_good_certificate() {
    let (place, root) = (Place::new(), Authority::root("root"));
    place.issue("a", &root.ecdsa(&["a.test"]));
    let mut loader = place.loader(NamesFrom::Certificate);
    let first = loader.load(now()).store.certificates()[0].clone();
    let new = root.ecdsa(&["a.test", "new.test"]);
    for (name, text) in [("a.crt", &new.cert[..100]), ("a.crt", ""), ("a.crt", &new.cert)] {
        place.write(name, text);
        let report = loader.load(now());
        assert!(Arc::ptr_eq(&report.store.certificates()[0], &first), "{text}");
        assert_eq!(report.errors.len(), 1);
        assert!(report.errors[0].label.ends_with("a.crt"));
        assert!(report.is_changed);
    }
    fs::remove_file(place.0.join("a.key")).unwrap();
    let report = loader.load(now());
    assert!(matches!(&report.errors[0].fault, CertificateFault::File { path, .. } if path.ends_with("a.key")));
    assert_eq!(names(&report), ["a.test"]);
    place.write("a.key", &new.key);
    let report = loader.load(now());
    assert_eq!(
        (names(&report), report.errors),
        (vec!["a.test".to_owned(), "new.test".to_owned()], Vec::new())
    );
    fs::remove_file(place.0.join("a.crt")).unwrap();
    let report = loader.load(now());
    assert_eq!(
        (names(&report).len(), report.errors.len(), report.is_changed),
        (0, 0, true)
    );
}

#[test]
fn one_bad_certificate_leaves_the_others() {
    let (place, root) = (Place::new(), Authority::root("root"));
    place.issue("a", &root.ecdsa(&["a.test"]));
    let good = root.ecdsa(&["b.test"]);
    place.write("b.crt", &good.cert);
    place.write("b.key", "");
    let report = place.loader(NamesFrom::Certificate).load(now());
    assert_eq!(names(&report), ["a.test"]);
    assert_eq!(report.errors[0].fault, KeyError::Missing.into());
}

#[test]
fn files_of_routing_events_answer_for_their_alias_alone() {
    let (place, root) = (Place::new(), Authority::root("root"));
    place.issue("ns+app/www.a.test", &root.ecdsa(&["www.a.test", "victim.test"]));
    place.issue("ns+app/%2A.b.test", &root.ecdsa(&["*.b.test"]));
    place.issue("ns+app/%FF", &root.ecdsa(&["c.test"]));
    place.write("ns+app/www.a.test.key%new", "half");
    let mut loader = place.loader(NamesFrom::FileName);
    let report = loader.load(now());
    assert_eq!(names(&report), ["*.b.test", "www.a.test"]);
    assert!(matches!(report.errors[0].fault, CertificateFault::FileName { .. }));
    fs::remove_dir_all(place.0.join("ns+app")).unwrap();
    assert_eq!(names(&loader.load(now())).len(), 0);
}

#[test]
fn an_unreadable_directory_is_reported_and_certificates_stay() {
    let (place, root) = (Place::new(), Authority::root("root"));
    place.issue("a", &root.ecdsa(&["a.test"]));
    let mut loader = place.loader(NamesFrom::Certificate);
    assert_eq!(names(&loader.load(now())), ["a.test"]);
    let away = place.0.with_extension("away");
    fs::rename(&place.0, &away).unwrap();
    let report = loader.load(now());
    assert_eq!((names(&report), report.errors.len()), (vec!["a.test".to_owned()], 1));
    fs::rename(&away, &place.0).unwrap();
    let report = loader.load(now());
    assert_eq!((names(&report), report.errors.len()), (vec!["a.test".to_owned()], 0));
}

#[test]
fn a_pair_may_be_the_default() {
    let (place, root) = (Place::new(), Authority::root("root"));
    place.issue("a", &root.ecdsa(&["a.test"]));
    let pair = CertificateFiles::Pair {
        cert: place.0.join("a.crt"),
        key: place.0.join("a.key"),
        pass: None,
        is_default: true,
    };
    let mut loader = CertificateLoader::new(vec![pair.clone()]);
    assert_eq!(loader.load(now()).store.defaults().count(), 1);
    assert_eq!(loader.watched(), [(place.0.clone(), false)]);
    // And stays it if its directory is read, too.
    let (path, names) = (place.0.clone(), NamesFrom::Certificate);
    let mut loader = CertificateLoader::new(vec![CertificateFiles::Directory { path, names }, pair]);
    for _ in 0..2 {
        let store = loader.load(now()).store;
        assert_eq!((store.defaults().count(), store.certificates().len()), (1, 1));
    }
}

#[tokio::test]
async fn files_are_read_again_when_they_change() {
    use std::time::Duration;

    let (place, root) = (Place::new(), Authority::root("root"));
    place.issue("a", &root.ecdsa(&["a.test"]));
    let shared = crate::store::SharedCertificates::default();
    let watch = crate::watch::watch(place.loader(NamesFrom::Certificate), Arc::clone(&shared), |_| {});
    let watch = tokio::spawn(watch);
    let until = async |count: usize| {
        while shared.load().names() != count {
            assert!(!watch.is_finished());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let changes = async {
        until(1).await;
        place.issue("b", &root.ecdsa(&["b.test"]));
        until(2).await;
        place.issue("ns+app/c", &root.ecdsa(&["c.test", "d.test"]));
        until(4).await;
        fs::remove_file(place.0.join("a.crt")).unwrap();
        until(3).await;
        // Written anew beside it and renamed over it.
        place.issue("z", &root.ecdsa(&["b.test", "e.test", "f.test"]));
        until(5).await;
        fs::rename(place.0.join("z.key"), place.0.join("b.key")).unwrap();
        fs::rename(place.0.join("z.crt"), place.0.join("b.crt")).unwrap();
        while shared.load().certificates().len() != 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(shared.load().names(), 5);
    };
    tokio::time::timeout(Duration::from_secs(60), changes).await.unwrap();
    watch.abort();
}
