use std::process::Command;

use super::*;

/// Runs Debian's openssl and returns what it prints.
fn openssl(arguments: &str) -> Vec<u8> {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Encrypts a key with a command of openssl that reads the key from a file.
fn convert(key: &[u8], arguments: &str) -> Vec<u8> {
    static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("signalbox-tls-key-{}-{number}", std::process::id()));
    std::fs::write(&file, key).unwrap();
    let text = openssl(&format!("{arguments} -in {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    text
}

fn public(text: &[u8], pass_phrase: Option<&str>) -> Vec<u8> {
    let key = PrivateKey::from_pem(text, pass_phrase.map(str::as_bytes)).unwrap();
    key.signing_key().unwrap().public_key().unwrap().to_vec()
}

fn error(text: &[u8], pass_phrase: Option<&str>) -> KeyError {
    PrivateKey::from_pem(text, pass_phrase.map(str::as_bytes)).unwrap_err()
}

fn rsa() -> Vec<u8> {
    openssl("genrsa 2048")
}

fn ecdsa() -> Vec<u8> {
    openssl("ecparam -name prime256v1 -genkey")
}

#[test]
fn plain_keys_of_all_forms_are_read() {
    let pkcs8 = rsa();
    let pkcs1 = convert(&pkcs8, "rsa -traditional");
    assert!(pkcs1.starts_with(b"-----BEGIN RSA PRIVATE KEY-----"));
    assert_eq!(public(&pkcs1, None), public(&pkcs8, None));
    // With a section `EC PARAMETERS` before the key.
    let sec1 = ecdsa();
    assert!(sec1.starts_with(b"-----BEGIN EC PARAMETERS-----"));
    assert_eq!(
        public(&sec1, None),
        public(&convert(&sec1, "pkcs8 -topk8 -nocrypt"), None)
    );
    let ed25519 = openssl("genpkey -algorithm ed25519");
    assert_eq!(public(&ed25519, None).len(), 44);
}

#[test]
fn keys_in_the_traditional_encryption_are_opened() {
    let (rsa, ecdsa) = (rsa(), ecdsa());
    for cipher in ["aes128", "aes192", "aes256", "des3"] {
        let locked = convert(&rsa, &format!("rsa -traditional -{cipher} -passout pass:sesame"));
        assert!(
            String::from_utf8_lossy(&locked).contains("Proc-Type: 4,ENCRYPTED"),
            "{cipher}"
        );
        assert_eq!(public(&locked, Some("sesame")), public(&rsa, None), "{cipher}");
        assert_eq!(error(&locked, Some("simsim")), KeyError::WrongPassPhrase, "{cipher}");
        assert_eq!(error(&locked, None), KeyError::NoPassPhrase);
        let locked = convert(&ecdsa, &format!("ec -{cipher} -passout pass:sesame"));
        assert_eq!(public(&locked, Some("sesame")), public(&ecdsa, None), "{cipher}");
    }
}

#[test]
fn no_wrong_pass_phrase_opens_a_traditional_key() {
    let locked = convert(&ecdsa(), "ec -aes256 -passout pass:sesame");
    for number in 0..1000 {
        assert_eq!(error(&locked, Some(&number.to_string())), KeyError::WrongPassPhrase);
    }
}

#[test]
fn keys_in_pbes2_are_opened() {
    let rsa = rsa();
    for (cipher, prf) in [
        ("aes-128-cbc", "hmacWithSHA256"),
        ("aes-192-cbc", "hmacWithSHA512"),
        ("aes-256-cbc", "hmacWithSHA1"),
        ("des3", "hmacWithSHA256"),
    ] {
        let command = format!("pkcs8 -topk8 -v2 {cipher} -v2prf {prf} -passout pass:sesame");
        let locked = convert(&rsa, &command);
        assert!(locked.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY-----"));
        assert_eq!(public(&locked, Some("sesame")), public(&rsa, None), "{cipher} {prf}");
        assert_eq!(
            error(&locked, Some("simsim")),
            KeyError::WrongPassPhrase,
            "{cipher} {prf}"
        );
        assert_eq!(error(&locked, None), KeyError::NoPassPhrase);
    }
}

#[test]
fn an_unusable_private_key_is_refused_with_the_remedy() {
    let rsa = rsa();
    let pbes1 = convert(&rsa, "pkcs8 -topk8 -v1 PBE-SHA1-3DES -passout pass:sesame");
    let found = error(&pbes1, Some("sesame"));
    assert!(matches!(found, KeyError::UnsupportedEncryption(_)), "{found}");
    assert!(
        found.to_string().contains("openssl pkcs8 -topk8 -v2 aes-256-cbc"),
        "{found}"
    );
    assert_eq!(error(b"", None), KeyError::Missing);
    assert_eq!(error(&[rsa.clone(), rsa.clone()].concat(), None), KeyError::Several(2));
    let openssh = b"-----BEGIN OPENSSH PRIVATE KEY-----\naGVsbG8=\n-----END OPENSSH PRIVATE KEY-----\n";
    assert!(matches!(error(openssh, None), KeyError::UnsupportedKind(_)));
    assert!(matches!(
        error(&rsa[..rsa.len() / 2], None),
        KeyError::Pem(PemError::NoEnd { .. })
    ));
    let damaged = b"-----BEGIN PRIVATE KEY-----\nMAMCAQA=\n-----END PRIVATE KEY-----\n";
    let damaged = PrivateKey::from_pem(damaged, None).unwrap();
    assert_eq!(damaged.signing_key().err(), Some(KeyError::Unusable));
    let camellia = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: CAMELLIA-256-CBC,00112233445566778899AABBCCDDEEFF\n\naGVsbG8=\n-----END RSA PRIVATE KEY-----\n";
    assert_eq!(
        error(camellia.as_bytes(), Some("x")),
        KeyError::UnsupportedEncryption("CAMELLIA-256-CBC".to_owned())
    );
}

#[test]
fn debug_shows_nothing_of_a_key() {
    let key = PrivateKey::from_pem(&rsa(), None).unwrap();
    assert_eq!(format!("{key:?}"), "PrivateKey(Pkcs8)");
}
