//! Messages of the rules for admin, datapath, timeouts and limits when broken.

use super::{bent, only_mistake, only_mistakes, plus};

#[test]
fn admin() {
    let listen = |to: &str| bent("listen: \"127.0.0.1:8089\"", &format!("listen: {to}"));
    only_mistakes(
        &listen,
        r"
            localhost:8089 | admin.listen | such as 127.0.0.1:8089, nor `none`
            127.0.0.1:0    | admin.listen | is neither an address with a port
            []             | admin.listen | expected a single value, found a list
        ",
    );
    let long = "x".repeat(108);
    only_mistake(
        &bent("/run/signalbox/admin.sock", &long),
        "admin.socket",
        "at most 107 bytes",
    );
    only_mistake(
        &bent("/run/signalbox/admin.sock", "''"),
        "admin.socket",
        "the value is empty",
    );
    only_mistake(&bent("socket:", "sokcet:"), "admin.sokcet", "did you mean `socket`?");
    only_mistake(
        &bent("socket:", "read: all, socket:"),
        "admin.read",
        "(allowed: open or token)",
    );
    only_mistake(
        &bent("socket:", "read: token, socket:"),
        "admin.read",
        "needs credentials that clients can show: give `token_file`",
    );
}

#[test]
fn reads_need_the_token_where_others_get_at_the_api() {
    for (admin, needs_token) in [
        ("listen: \"127.0.0.1:8089\", token_file: /t", false),
        ("listen: \"127.0.0.1:8089\", token_file: /t, read: token", true),
        ("listen: \"10.0.0.1:8089\"", true),
        ("listen: \"[::1]:8089\"", false),
        ("listen: \"0.0.0.0:8089\"", true),
        ("listen: \"10.0.0.1:8089\", token_file: /t", true),
        ("listen: \"0.0.0.0:8089\", token_file: /t, read: open", false),
        ("listen: \"10.0.0.1:8089\", tls: { cert: /c, key: /k }", true),
        (
            "listen: \"10.0.0.1:8089\", tls: { cert: /c, key: /k, client_ca: /a }",
            true,
        ),
    ] {
        let text = bent("listen: \"127.0.0.1:8089\"", admin);
        let model = crate::parse(&text).unwrap().model;
        assert_eq!(model.admin.reads_need_token, needs_token, "{admin}");
    }
}

#[test]
fn datapath_and_limits() {
    let tier = "`sokmap` is not a tier; did you mean `sockmap`? (allowed: auto, sockmap, splice or copy)";
    only_mistake(&plus("datapath: { tier: sokmap }"), "datapath.tier", tier);
    let cut = "`on` is not a setting of cut (allowed: auto or off)";
    only_mistake(&plus("datapath: { cut: on }"), "datapath.cut", cut);
    only_mistake(
        &bent("cluster: east }", "cluster: east, datapath: { tier: fast } }"),
        "listeners[2].datapath.tier",
        "a tier",
    );
    only_mistakes(
        &plus,
        r"
            datapath: auto                           | datapath                  | expected a mapping (`key: value`), found a single value
            limits: { max_connections: 0 }           | limits.max_connections    | from 1 to 4294967295
            limits: { per_source: { peeking: -1 } }  | limits.per_source.peeking | `-1` is not a whole number from 0 to 4294967295
            limits: { per_source: { peeking: '1' } } | limits.per_source.peeking | to 4294967295 without quotes
            limits: { handshakes: { per_worker: x }} | limits.handshakes.per_worker | `x` is not a whole number
            limits: { heads: { bytes: 1000 } }       | limits.heads.bytes        | from 4096 to 1048576
            limits: { heads: { fields: 1025 } }      | limits.heads.fields       | from 32 to 1024
            limits: { per_source: { peeking: 1.5 } } | limits.per_source.peeking | `1.5` is not a whole number
        ",
    );
}

#[test]
fn durations() {
    for (time, part) in [
        (
            "5",
            "`5` has no unit: write a whole number and ms, s, m or h, as in 250ms, 5s, 2m or 1h",
        ),
        ("0s", "`0s` is no duration: it must be more than 0"),
        ("5sec", "`5sec` is not a duration: write"),
        ("-5s", "`-5s` is not a duration: write"),
        ("1.5s", "`1.5s` is not a duration: write"),
        ("soon", "`soon` is not a duration: write"),
        ("8761h", "`8761h` is too long: at most 8760h (a year)"),
        ("99999999999999999999999h", "is too long"),
        ("18446744073709551615h", "is too long"),
        ("[5s]", "expected a single value, found a list"),
        ("", "the value is missing"),
    ] {
        only_mistake(&plus(&format!("timeouts: {{ idle: {time} }}")), "timeouts.idle", part);
    }
}
