//! Fields about a client's certificate, beside those of the HAProxy in OpenShift's router.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::DnType;

use super::clients::{ROUTE, showing};
use super::scene::{HTTPS, body, certificate, certificates, shake_hands};
use crate::http::request::scene::WebHost;
use crate::lab::{Lab, Proc, SOON, Signalbox, eventually, lab_test};

/// Address of HAProxy, beside the balancer.
const BESIDE: &str = "10.1.0.1:444";

/// Fields that the router sets, with HAProxy's words for their values.
const FIELDS: [(&str, &str); 9] = [
    ("X-SSL", "%[ssl_fc]"),
    ("X-SSL-Client-Verify", "%[ssl_c_verify]"),
    ("X-SSL-Client-SHA1", "%{+Q}[ssl_c_sha1,hex]"),
    ("X-SSL-Client-DN", "%{+Q}[ssl_c_s_dn]"),
    ("X-SSL-Client-CN", "%{+Q}[ssl_c_s_dn(cn)]"),
    ("X-SSL-Issuer", "%{+Q}[ssl_c_i_dn]"),
    ("X-SSL-Client-NotBefore", "%{+Q}[ssl_c_notbefore]"),
    ("X-SSL-Client-NotAfter", "%{+Q}[ssl_c_notafter]"),
    ("X-SSL-Client-DER", "%{+Q}[ssl_c_der,base64]"),
];

/// Certificate of a client with such a subject, with its key.
fn client(lab: &Lab, name: &str, subject: &[(DnType, &str)]) -> PathBuf {
    let mut params = rcgen::CertificateParams::new([]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, value) in subject {
        params.distinguished_name.push(kind.clone(), *value);
    }
    // HAProxy knows years of this century alone.
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2026, 1, 2), rcgen::date_time_ymd(2059, 1, 2));
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let file = lab.dir().join(format!("{name}.pem"));
    std::fs::write(&file, certificate + &key.serialize_pem()).unwrap();
    file
}

fn haproxy(lab: &Lab, pem: &Path, authorities: &Path) -> Proc {
    let fields = FIELDS.map(|(name, value)| format!("  http-request set-header {name} {value}\n"));
    let text = format!(
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
         listen a\n  bind {BESIDE} ssl crt {} ca-file {} verify optional\n{}  server east-1 10.2.0.2:80\n",
        pem.display(),
        authorities.display(),
        fields.concat(),
    );
    let file = lab.dir().join("beside.cfg");
    std::fs::write(&file, text).unwrap();
    let mut command = lab.lb.command("haproxy");
    command.arg("-db").arg("-f").arg(file);
    let proc = Proc::spawn("haproxy", command, lab.dir());
    let is_up = || lab.lb.run(|| std::net::TcpStream::connect(BESIDE).is_ok());
    assert!(eventually(SOON, is_up), "{}", proc.log());
    proc
}

#[lab_test]
fn fields_of_a_certificate_are_those_of_the_router() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let custom = |oid: &[u64]| DnType::CustomDnType(oid.to_vec());
    let subjects: [&[(DnType, &str)]; 3] = [
        &[
            (DnType::OrganizationName, "Example, Inc.; \"a\" <b> + c\\ #"),
            (DnType::CommonName, "svc\r\nX-Admin: 50%\u{7f}\u{e4}"),
            (DnType::OrganizationalUnitName, "unit"),
        ],
        &[
            (DnType::CommonName, "svc"),
            (custom(&[1, 2, 840, 113_549, 1, 9, 1]), "a@b.test"),
            (custom(&[2, 5, 4, 5]), "7"),
            (custom(&[2, 5, 4, 9]), "street"),
            (custom(&[0, 9, 2342, 19_200_300, 100, 1, 1]), "user"),
            (custom(&[1, 2, 3, 4]), "own"),
        ],
        &[(DnType::OrganizationName, "nameless")],
    ];
    let mut files = Vec::new();
    for (at, subject) in subjects.iter().enumerate() {
        files.push(client(&lab, &format!("client-{at}"), subject));
    }
    let authorities = lab.dir().join("authorities.pem");
    let all: String = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    std::fs::write(&authorities, all).unwrap();
    let listener = format!(
        ", termination: edge, client_certificates: {{ ca: {}, fields: x-ssl }}",
        authorities.display()
    );
    let sb = Signalbox::start(&lab, &body(&listener, &certificates(&pem), &[("east-1", "")], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let _haproxy = haproxy(&lab, &pem, &authorities);
    for file in &files {
        let told = |at: &str| {
            let settings = Arc::new(showing(&lab, file));
            let mut client = shake_hands(lab.client.connect(at), "a.test", settings).unwrap();
            client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
            assert_eq!(client.answer("GET").status, 200);
            let head = east.take().remove(0);
            let fields = head.lines().filter_map(|line| line.split_once(": "));
            let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
            let mut fields: Vec<_> = fields.filter(|(name, _)| name.starts_with("x-")).collect();
            fields.retain(|(name, _)| !name.starts_with("x-forwarded-"));
            fields.sort_unstable();
            fields
        };
        let (ours, theirs) = (told(HTTPS), told(BESIDE));
        assert_eq!(ours.len(), FIELDS.len(), "{ours:?}");
        assert_eq!(ours, theirs);
    }
}
