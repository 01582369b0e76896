//! What texts say, and what is said of those that say nothing.

use proptest::prelude::*;
use signalbox_core::discovered::spi::{AppChange, MAX_REDACTED_BYTES, RoutingEvent, parse, redact};

/// The samples of the blog that explains the events, with the indentation that its pages have lost.
pub(crate) const SAMPLES: &str = "\
:action: :create_application
:app_name: phpha
:namespace: demo
:scalable: true
:ha: false
---
:action: :add_public_endpoint
:app_name: phpha
:namespace: demo
:gear_id: 542b72abafec2de3aa000009
:public_port_name: haproxy-1.4
:public_address: 172.16.4.200
:public_port: 50847
:protocols:
- http
- ws
:types:
- load_balancer
:mappings:
- frontend: ''
  backend: ''
- frontend: /health
  backend: /configuration/health
---
:action: :add_alias
:app_name: phpha
:namespace: demo
:alias: foo.example.com
---
:action: :add_ssl
:app_name: phpha
:namespace: demo
:alias: foo.example.com
:ssl: |
  -----BEGIN CERTIFICATE-----
  MIIB
  -----END CERTIFICATE-----
:private_key: |
  -----BEGIN PRIVATE KEY-----
  c2VjcmV0
  -----END PRIVATE KEY-----
:pass_phrase:
";

fn only(text: &str) -> RoutingEvent {
    let mut events = parse(text).unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

#[track_caller]
fn wrong(text: &str, error: &str) {
    assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
}

#[test]
fn the_samples_of_the_blog() {
    let events = parse(SAMPLES).unwrap();
    assert!(events.iter().all(|event| event.app.to_string() == "demo/phpha"));
    assert_eq!(
        events[0].change,
        AppChange::Create {
            scalable: Some(true),
            ha: Some(false)
        }
    );
    let AppChange::AddEndpoint { addr: at, endpoint } = &events[1].change else {
        panic!("{:?}", events[1]);
    };
    assert_eq!(at.to_string(), "172.16.4.200:50847");
    assert_eq!(endpoint.gear.as_deref(), Some("542b72abafec2de3aa000009"));
    assert_eq!(endpoint.name.as_deref(), Some("haproxy-1.4"));
    assert_eq!(endpoint.protocols, ["http".to_owned(), "ws".to_owned()].into());
    assert_eq!(endpoint.types, ["load_balancer".to_owned()].into());
    assert_eq!(endpoint.mappings.len(), 2);
    assert_eq!(endpoint.mappings[1].frontend, "/health");
    assert_eq!(endpoint.mappings[1].backend, "/configuration/health");
    assert_eq!(events[2].change, AppChange::AddAlias("foo.example.com".into()));
    let AppChange::AddCertificate { alias, certificate } = &events[3].change else {
        panic!("{:?}", events[3]);
    };
    assert_eq!(alias, "foo.example.com");
    assert!(certificate.chain.contains("\nMIIB\n"), "{certificate:?}");
    assert!(
        certificate
            .private_key
            .as_ref()
            .unwrap()
            .reveal()
            .contains("\nc2VjcmV0\n")
    );
    assert_eq!(certificate.pass_phrase, None);
}

#[test]
fn plain_strings_and_what_old_rubies_wrote_mean_the_same() {
    let wanted = only(":action: :add_alias\n:app_name: a\n:namespace: n\n:alias: x.example\n");
    for text in [
        "{action: add_alias, app_name: a, namespace: n, alias: x.example}",
        r#"{"action": "add_alias", "app_name": "a", "namespace": "n", "alias": "X.Example."}"#,
        "--- \n:action: :add_alias\n:app_name: ! 'a'\n:namespace: !str n\n:alias: x.example\n:extra: {deep: [1, :two]}\n",
        "--- !ruby/hash:ActiveSupport::HashWithIndifferentAccess\naction: !ruby/sym add_alias\n:app_name: :a\n\
         :namespace: :\"n\"\n:alias: x.example\n...\n",
        "---\n:action: :add_alias\n:app_name: a\n:namespace: n\n:one: &1 x.example\n:alias: *1\n",
    ] {
        assert_eq!(only(text), wanted, "{text}");
    }
}

#[test]
fn deprecated_duplicates_do_nothing_and_their_elders_do() {
    let body = ":app_name: a\n:namespace: n\n:gear_id: g\n:public_address: 10.0.0.1\n:public_port: 80\n";
    for action in ["add_gear", "delete_gear", "remove_gear"] {
        let marked = format!(":action: :{action}\n{body}:deprecated: use something else\n");
        assert_eq!(only(&marked).change, AppChange::Duplicate);
        let bare = only(&format!(":action: :{action}\n{body}"));
        let instead = if action == "add_gear" {
            "add_public_endpoint"
        } else {
            "remove_public_endpoint"
        };
        assert_eq!(bare, only(&format!(":action: :{instead}\n{body}")));
    }
}

#[test]
fn an_error_names_document_line_and_what_was_expected() {
    let good = ":action: :delete_application\n:app_name: a\n:namespace: n\n";
    wrong("", "document 1, line 1: expected an event, found nothing");
    wrong(
        &format!("{good}---\n:action: :delete_application\n:app_name: a\n"),
        "document 2, line 5: `namespace`: expected a value, found nothing",
    );
    wrong(
        &format!("{good}---\n- 1\n"),
        "document 2, line 5: expected a mapping (`key: value`), found a list",
    );
    let endpoint = ":action: :add_public_endpoint\n:app_name: a\n:namespace: n\n:public_address: 10.0.0.1\n";
    for (line, error) in [
        (
            ":public_port: 0",
            "line 5: `public_port`: expected a port from 1 to 65535",
        ),
        (
            ":public_port: 80x",
            "line 5: `public_port`: expected a port from 1 to 65535",
        ),
        (
            ":public_port: 80\n:types: web",
            "line 6: `types`: expected a list, found a single value",
        ),
        (
            ":public_port: 80\n:types:\n- {}",
            "line 7: `types`: expected a word, found a mapping",
        ),
        (
            ":public_port: 80\n:gear_id: !binary aGk=",
            "line 6: `gear_id`: expected a single value, found binary data",
        ),
        (":public_port: 80\n:public_port: 80", "line 6: expected each key once"),
    ] {
        wrong(&format!("{endpoint}{line}\n"), &format!("document 1, {error}"));
    }
    let bad = endpoint.replace("10.0.0.1", "0.0.0.0");
    wrong(
        &bad,
        "document 1, line 4: `public_address`: expected the IP address of a machine",
    );
    wrong(
        ":action: :add_alias\n:app_name: a/b\n:namespace: n\n",
        "document 1, line 2: `app_name`: expected 1 to 63 letters, digits, `.`, `_` or `-`",
    );
    let error = parse(":action: :rotate\n:app_name: a\n:namespace: n\n")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("document 1, line 1: `action`: expected create_application, "),
        "{error}"
    );
    let error = parse(&format!("{good}---\n:a: [\n")).unwrap_err();
    assert_eq!(error.document, 2, "{error}");
}

#[test]
fn size_and_depth_are_bounded() {
    let deep = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    wrong(
        &deep(33),
        "document 1, line 1: lists and mappings are nested more than 32 deep here",
    );
    // There the parser gives up first.
    assert!(parse(&deep(100_000)).is_err());
    let mut bomb = ":a: &0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for step in 1..10 {
        let inner = vec![format!("*{}", step - 1); 10].join(", ");
        bomb.push_str(&format!(":b{step}: &{step} [{inner}]\n"));
    }
    let error = parse(&bomb).unwrap_err().to_string();
    assert!(error.contains("the text grows beyond a million values"), "{error}");
    let error = parse(&"a".repeat(5 << 20)).unwrap_err().to_string();
    assert!(error.contains("expected at most 4194304 bytes"), "{error}");
    wrong(
        "&1 [*1]",
        "document 1, line 1: this alias stands for something that contains it",
    );
}

#[test]
fn a_redacted_event_has_no_secrets_and_a_limited_length() {
    let kept = redact(&SAMPLES.replace(":action: :add_ssl", ":action: :add_sls"));
    assert!(kept.contains(":action: :add_sls") && kept.contains("MIIB"), "{kept}");
    assert!(!kept.contains("c2VjcmV0") && kept.ends_with("from here on)"), "{kept}");
    for text in [
        "{\"PRIVATE_KEY\": \"s3cret\"",
        ":pass_phrase: s3cret",
        "-----BEGIN RSA PRIVATE KEY-----\ns3cret",
    ] {
        assert!(!redact(text).contains("s3cret"), "{text}");
    }
    assert_eq!(redact(&"é".repeat(MAX_REDACTED_BYTES)).len(), MAX_REDACTED_BYTES);
    let late = format!("{} private_key: s3cret", "x".repeat(MAX_REDACTED_BYTES));
    assert_eq!(redact(&late), "x".repeat(MAX_REDACTED_BYTES));
}

proptest! {
    /// Whatever comes, it is understood or refused; and what is kept of it never is more than was agreed.
    #[test]
    fn any_text_is_survived(text in r#"([:a-z_]{0,12}|[-:\[\]{}&*!|>'",#%@ \n]|\PC){0,60}"#) {
        let _ = parse(&text);
        prop_assert!(redact(&text).len() <= MAX_REDACTED_BYTES + 60);
    }

    /// A text cut short anywhere is refused, or means the beginning of what it meant.
    #[test]
    fn a_truncated_text_brings_nothing_new(cut in 0..SAMPLES.len()) {
        if let Ok(events) = parse(&SAMPLES[..cut]) {
            let whole = parse(SAMPLES).unwrap();
            let complete = events.len().saturating_sub(1);
            prop_assert_eq!(&events[..complete], &whole[..complete]);
        }
    }
}

#[test]
fn events_about_gears_and_applications_are_parsed_or_refused() {
    let of = |action: &str, more: &str| {
        let text = format!(":action: :{action}\n:app_name: a\n:namespace: n\n{more}");
        parse(&text)
            .map(|mut events| events.remove(0).change)
            .map_err(|error| error.to_string())
    };
    let gear = || Some("g1".to_owned());
    assert_eq!(of("stop_gear", ":gear_id: g1\n"), Ok(AppChange::Stop(gear())));
    assert_eq!(of("start_application", ""), Ok(AppChange::Start(None)));
    assert_eq!(of("rotate_in_gear", ":gear_id: g1\n"), Ok(AppChange::RotateIn(gear())));
    let out = AppChange::RotateOut {
        gear: None,
        timeout: Some(std::time::Duration::from_secs(120)),
        reason: "new  disk".into(),
    };
    assert_eq!(
        of("rotate_out_application", ":timeout: 120\n:reason: \"new\\n disk\"\n"),
        Ok(out)
    );
    let placed = AppChange::AddGeography {
        geography: "eu-west".into(),
        gear: gear(),
    };
    assert_eq!(of("add_geography", ":geography: eu-west\n:gear_id: g1\n"), Ok(placed));
    for (action, more, error) in [
        (
            "stop_gear",
            "",
            "document 1, line 1: `gear_id`: expected a value, found nothing",
        ),
        (
            "rotate_out_gear",
            ":gear_id: g\n:timeout: 2m\n",
            "document 1, line 5: `timeout`: expected whole seconds, 0 to 86400",
        ),
        (
            "add_geography",
            "",
            "document 1, line 1: `geography`: expected a value, found nothing",
        ),
    ] {
        assert_eq!(of(action, more), Err(error.to_owned()));
    }
    for unknown in [
        "stop",
        "restart_gear",
        "stop_host",
        "_application",
        "rotate_application",
    ] {
        let error = of(unknown, ":gear_id: g\n").unwrap_err();
        assert!(
            error.contains("`action`: expected create_application"),
            "{unknown}: {error}"
        );
    }
}
