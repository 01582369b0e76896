//! Requests and their answers.

use std::collections::HashMap;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::Api;
use super::store::{Selection, Store};
use super::stream::{self, Body, Spawn};

/// Request, as its path and query say.
struct Asked<'a> {
    /// `route.openshift.io/v1`; `v1` for the core.
    home: String,
    /// Name of the resource; `None` for the discovery of a group.
    plural: Option<&'a str>,
    selection: Selection,
    query: HashMap<String, String>,
}

pub(crate) async fn answer(api: &Api, request: &Request<Incoming>, spawn: &Spawn) -> Response<Body> {
    let Some(asked) = parse(request.uri()) else {
        return refusal(
            StatusCode::NOT_FOUND,
            "the server could not find the requested resource",
        );
    };
    // A held list waits here, and is answered by the objects at its release.
    let mut changed = api.changed.subscribe();
    loop {
        changed.mark_unchanged();
        let held = |store: &Store| {
            asked.plural.is_some_and(|plural| {
                let namespace = asked.selection.namespace.as_deref().unwrap_or_default();
                let place = format!("{plural}/{namespace}");
                store.moods.held.contains(plural) || store.moods.held.contains(place.as_str())
            })
        };
        if asked.query.contains_key("watch") || !held(&api.store.lock().unwrap()) {
            break;
        }
        if changed.changed().await.is_err() {
            break;
        }
    }
    let mut store = api.store.lock().unwrap();
    if let Some(refusal) = refused(&mut store, request, &asked) {
        return refusal;
    }
    let Some(plural) = asked.plural else {
        return discovery(&store, &asked.home);
    };
    if asked.query.contains_key("watch") {
        *store.watches.entry(plural.to_owned()).or_default() += 1;
        let from: u64 = asked.query["resourceVersion"].parse().unwrap();
        if from < store.horizon && !store.moods.gone_in_stream {
            return refusal(StatusCode::GONE, "too old resource version");
        }
        drop(store);
        let bookmarks = asked.query.contains_key("allowWatchBookmarks");
        let life = asked.query["timeoutSeconds"].parse().unwrap();
        return stream::watch(api, plural.to_owned(), asked.selection, from, bookmarks, life, spawn);
    }
    // A request for one object is for the list's version: it gets no page.
    if asked.query.get("limit").is_none_or(|limit| limit != "1") {
        *store.lists.entry(plural.to_owned()).or_default() += 1;
    }
    list(&mut store, plural, &asked)
}

fn list(store: &mut Store, plural: &str, asked: &Asked<'_>) -> Response<Body> {
    if store.moods.garbled_lists > 0 {
        store.moods.garbled_lists -= 1;
        return Response::new(Body::whole("{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{"));
    }
    let limit: usize = asked.query.get("limit").map_or(0, |limit| limit.parse().unwrap());
    let (mut items, version) = match asked.query.get("continue") {
        None => (store.select(plural, &asked.selection), store.version.to_string()),
        Some(token) if store.moods.forgets_pages || !store.pages.contains_key(token) => {
            let said = format!("The provided continue parameter is too old: {token}");
            return refusal(StatusCode::GONE, &said);
        }
        Some(token) => {
            let version = token.split('/').next().unwrap().to_owned();
            (store.pages.remove(token).unwrap(), version)
        }
    };
    let most = store.moods.page.unwrap_or(limit).min(limit);
    let mut metadata = json!({"resourceVersion": version});
    if most > 0 && items.len() > most {
        // The token has characters that a query has to escape.
        store.tokens += 1;
        let token = format!("{version}/{plural}+{} &=", store.tokens);
        store.pages.insert(token.clone(), items.split_off(most));
        metadata["continue"] = json!(token);
    }
    let items = if items.is_empty() {
        Value::Null
    } else {
        Value::Array(items)
    };
    Response::new(Body::whole(&json!({"metadata": metadata, "items": items}).to_string()))
}

fn refused(store: &mut Store, request: &Request<Incoming>, asked: &Asked<'_>) -> Option<Response<Body>> {
    if store.moods.failures > 0 {
        store.moods.failures -= 1;
        return Some(refusal(StatusCode::INTERNAL_SERVER_ERROR, "etcdserver: leader changed"));
    }
    if store.moods.starting > 0 {
        store.moods.starting -= 1;
        return Some(refusal(StatusCode::FORBIDDEN, "not yet ready to handle request"));
    }
    let sent = request
        .headers()
        .get("authorization")
        .map(|value| value.to_str().unwrap());
    if let Some(token) = store.moods.token
        && sent != Some(&format!("Bearer {token}"))
    {
        return Some(refusal(StatusCode::UNAUTHORIZED, "Unauthorized"));
    }
    // Rights are checked before existence, as by a real one: a client without the right does not learn that an object
    // is missing.
    if let Some(plural) = asked.plural {
        let place = asked
            .selection
            .namespace
            .as_ref()
            .map(|namespace| format!("{plural}/{namespace}"));
        let forbidden = &store.moods.forbidden;
        if forbidden.contains(plural) || place.is_some_and(|place| forbidden.contains(place.as_str())) {
            let said = format!("{plural} is forbidden: User \"balancer\" cannot list resource");
            return Some(refusal(StatusCode::FORBIDDEN, &said));
        }
    }
    let group = asked.home.split('/').next().unwrap_or_default();
    let whole = format!("{}/{}", asked.home, asked.plural.unwrap_or_default());
    let missing = &store.moods.missing;
    let missing = missing.contains(group) || missing.contains(asked.home.as_str()) || missing.contains(whole.as_str());
    missing.then(|| {
        refusal(
            StatusCode::NOT_FOUND,
            "the server could not find the requested resource",
        )
    })
}

fn discovery(store: &Store, home: &str) -> Response<Body> {
    let of = [
        ("route.openshift.io/v1", "routes"),
        ("networking.k8s.io/v1", "ingresses"),
        ("gateway.networking.k8s.io/v1", "tlsroutes"),
        ("gateway.networking.k8s.io/v1", "httproutes"),
        ("v1", "pods"),
        ("v1", "nodes"),
        ("v1", "namespaces"),
        ("v1", "secrets"),
        ("networking.k8s.io/v1", "ingressclasses"),
        ("gateway.networking.k8s.io/v1", "gateways"),
    ];
    let has = |plural: &str| !store.moods.missing.contains(format!("{home}/{plural}").as_str());
    let names: Vec<_> = of.iter().filter(|(at, plural)| *at == home && has(plural)).collect();
    if names.is_empty() {
        return refusal(
            StatusCode::NOT_FOUND,
            "the server could not find the requested resource",
        );
    }
    let resources: Vec<_> = names.iter().map(|(_, plural)| json!({"name": plural})).collect();
    Response::new(Body::whole(
        &json!({"kind": "APIResourceList", "resources": resources}).to_string(),
    ))
}

fn refusal(status: StatusCode, message: &str) -> Response<Body> {
    let body = json!({"kind": "Status", "status": "Failure", "message": message, "code": status.as_u16()});
    let mut response = Response::new(Body::whole(&body.to_string()));
    *response.status_mut() = status;
    response
}

fn parse(uri: &hyper::Uri) -> Option<Asked<'_>> {
    let parts: Vec<&str> = uri.path().split('/').skip(1).collect();
    let (home, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ((*version).to_owned(), rest),
        ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
        _ => return None,
    };
    let (namespace, plural) = match rest {
        [] => (None, None),
        [plural] => (None, Some(*plural)),
        ["namespaces", namespace, plural] => (Some((*namespace).to_owned()), Some(*plural)),
        _ => return None,
    };
    // Only the newest versions are there, as in a new cluster.
    if plural.is_some() && !matches!(home.rsplit('/').next(), Some("v1")) {
        return None;
    }
    let pairs = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    let query: HashMap<String, String> = pairs.map(|(key, value)| (key.to_owned(), unescaped(value))).collect();
    let labels = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let labels = labels.split(',').filter_map(|one| one.split_once('='));
    Some(Asked {
        home,
        plural,
        selection: Selection {
            namespace,
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        },
        query,
    })
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}
