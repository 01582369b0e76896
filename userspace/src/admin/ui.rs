//! The web UI under `/ui/`: pages embedded in the binary (`userspace/ui`), which read the API like any other client.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use rust_embed::RustEmbed;

use super::problem::problem;
use crate::control::Control;

/// The files, embedded in debug builds too: tests install those on other machines.
#[derive(RustEmbed)]
#[folder = "ui/"]
struct UiFiles;

/// Pages may run only their own scripts and styles, connect only to this address, and are never shown in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every file.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    // The browser asks each time, and gets 304 if it has this binary's file.
    (header::CACHE_CONTROL, "no-cache"),
    (header::VARY, "accept-encoding"),
];

/// Adds the pages to the API's router.
pub(super) fn add_pages(router: Router<Arc<Control>>) -> Router<Arc<Control>> {
    let to_start = get(async || Redirect::permanent("/ui/"));
    router
        .route("/", to_start.clone())
        .route("/ui", to_start)
        .route("/ui/", get(async |headers: HeaderMap| file("index.html", &headers)))
        .route(
            "/ui/{*path}",
            get(async |Path(path): Path<String>, headers: HeaderMap| file(&path, &headers)),
        )
}

fn file(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = UiFiles::get(path) else {
        let detail = format!("the UI has no file {path}; it begins at /ui/");
        return problem(StatusCode::NOT_FOUND, "No such file", &detail);
    };
    let tag: String = file
        .metadata
        .sha256_hash()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let takes_gzip = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|encodings| encodings.to_str().ok())
        .is_some_and(|encodings| encodings.split(',').any(is_gzip));
    // Each encoding of a file has a separate tag.
    let tag = format!("\"{tag}{}\"", if takes_gzip { "-gzip" } else { "" });
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    let mut response = if known.is_some_and(|known| known.split(',').any(|known| known.trim() == tag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else if takes_gzip {
        let how = [
            (header::CONTENT_TYPE, content_type(path)),
            (header::CONTENT_ENCODING, "gzip"),
        ];
        (how, compressed(&tag, &file.data)).into_response()
    } else {
        ([(header::CONTENT_TYPE, content_type(path))], file.data.into_owned()).into_response()
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Whether an item of `Accept-Encoding` allows gzip.
fn is_gzip(item: &str) -> bool {
    let (name, weight) = item.split_once(';').unwrap_or((item, ""));
    let refused = ["q=0", "q=0.0", "q=0.00", "q=0.000"];
    name.trim().eq_ignore_ascii_case("gzip") && !refused.contains(&weight.trim())
}

/// Compresses a file, each content only once.
fn compressed(tag: &str, data: &[u8]) -> Bytes {
    static FILES: OnceLock<Mutex<HashMap<String, Bytes>>> = OnceLock::new();
    let mut files = FILES.get_or_init(Mutex::default).lock();
    let made = || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory cannot fail.
        let _ = encoder.write_all(data);
        encoder.finish().unwrap_or_default().into()
    };
    files.entry(tag.to_owned()).or_insert_with(made).clone()
}

/// Returns the content type of a file by its extension.
fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ui_file_has_its_type_and_policy_and_is_resent_if_changed() {
        let page = file("index.html", &HeaderMap::new());
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(page.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(
            page.headers()[header::CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap()
                .contains("default-src 'none'")
        );
        let tag = page.headers()[header::ETAG].clone();
        let again = HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]);
        assert_eq!(file("index.html", &again).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(file("../Cargo.toml", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn all_that_a_page_loads_is_small() {
        let is_loaded = |path: &str| !path.ends_with("LICENSE") && !path.ends_with("SUMS");
        let mut sum = 0;
        for path in UiFiles::iter().filter(|path| is_loaded(path)) {
            let data = UiFiles::get(&path).unwrap().data;
            let sent = compressed(&path, &data);
            let mut back = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&sent[..]), &mut back).unwrap();
            assert!(back == *data, "{path}");
            sum += sent.len();
        }
        println!("{sum} bytes, compressed");
        assert!((20_000..=110_000).contains(&sum), "{sum} bytes, compressed");
    }

    #[test]
    fn files_are_compressed_for_those_who_take_that() {
        let asks = |encodings: &str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, encodings.parse().unwrap())]);
            file("app.js", &headers)
                .headers()
                .get(header::CONTENT_ENCODING)
                .cloned()
        };
        assert_eq!(asks("gzip, deflate, br").unwrap(), "gzip");
        assert_eq!(asks("br;q=1.0, gzip;q=0.8").unwrap(), "gzip");
        assert_eq!(asks("gzip;q=0"), None);
        assert_eq!(asks("br"), None);
    }

    #[test]
    fn pages_have_no_script_and_no_style_that_the_policy_refuses() {
        for path in UiFiles::iter().filter(|path| path.ends_with(".html")) {
            let text = String::from_utf8(UiFiles::get(&path).unwrap().data.into_owned()).unwrap();
            for inline in ["<style", " style=", " onclick=", "javascript:", "http://", "https://"] {
                assert!(!text.contains(inline), "{path} has {inline}");
            }
            let scripts = text.matches("<script").count();
            assert_eq!(
                scripts,
                text.matches("<script src=").count() + text.matches("<script type=\"module\" src=").count()
            );
        }
    }

    #[test]
    fn vendored_files_are_those_that_their_list_describes() {
        let list = String::from_utf8(UiFiles::get("vendor/SHA256SUMS").unwrap().data.into_owned()).unwrap();
        let listed: std::collections::BTreeMap<_, _> = list.lines().filter_map(|line| line.split_once("  ")).collect();
        let vendored: Vec<_> = UiFiles::iter().filter(|path| path.starts_with("vendor/")).collect();
        assert_eq!(vendored.len(), listed.len() + 1, "{vendored:?}");
        for (wanted, name) in listed {
            let file =
                UiFiles::get(&format!("vendor/{name}")).unwrap_or_else(|| panic!("{name} is listed, but not there"));
            let found: String = file
                .metadata
                .sha256_hash()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(found, wanted, "{name}");
        }
    }
}
