//! The API's own description (OpenAPI 3.1), made from the same calls as its router, so that it is always up to date.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::header;
use axum::routing::{MethodFilter, get, on};
use serde_json::{Value, json};

use crate::control::Control;

/// Body of a request.
#[derive(Clone, Copy)]
pub(super) enum RequestKind {
    Nothing,
    /// JSON, with an example.
    Json(&'static str),
    /// Text of a configuration file.
    Configuration,
}

/// Body of an answer.
#[derive(Clone, Copy)]
pub(super) enum ResponseKind {
    Json,
    Text,
    /// Server-sent events.
    Events,
}

/// An operation of the API.
pub(super) struct Operation {
    /// Name of the operation in generated clients: unique, and the same in each version.
    pub id: &'static str,
    pub method: MethodFilter,
    pub path: &'static str,
    pub summary: &'static str,
    /// Names and meanings of the query's parameters. A required one ends in `!`.
    pub query: &'static [(&'static str, &'static str)],
    pub request: RequestKind,
    pub response: ResponseKind,
}

/// Makes a GET without parameters that answers JSON.
pub(super) const fn read(id: &'static str, path: &'static str, summary: &'static str) -> Operation {
    Operation {
        id,
        method: MethodFilter::GET,
        path,
        summary,
        query: &[],
        request: RequestKind::Nothing,
        response: ResponseKind::Json,
    }
}

/// Makes an operation that changes state.
pub(super) const fn change(
    id: &'static str,
    method: MethodFilter,
    path: &'static str,
    summary: &'static str,
    takes: RequestKind,
) -> Operation {
    Operation {
        id,
        method,
        path,
        summary,
        query: &[],
        request: takes,
        response: ResponseKind::Json,
    }
}

/// A router and its description.
#[derive(Default)]
pub(super) struct DescribedRouter {
    router: Router<Arc<Control>>,
    paths: BTreeMap<&'static str, BTreeMap<&'static str, Value>>,
}

impl DescribedRouter {
    /// Adds an operation.
    pub(super) fn with<H, T>(mut self, operation: &Operation, handler: H) -> Self
    where
        H: Handler<T, Arc<Control>>,
        T: 'static,
    {
        let described = describe(operation);
        self.paths
            .entry(operation.path)
            .or_default()
            .insert(method_name(operation.method), described);
        self.router = self.router.route(operation.path, on(operation.method, handler));
        self
    }

    /// Returns the router, with the description served at `path`.
    pub(super) fn finish(mut self, path: &'static str) -> Router<Arc<Control>> {
        let own = read("getDescription", path, "This description");
        self.paths.entry(path).or_default().insert("get", describe(&own));
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "signalbox",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "State for everybody who may reach it. Changes over the unix socket; over TCP with the token of admin.token_file.",
            },
            "paths": self.paths,
            "components": {
                "securitySchemes": {
                    "token": { "type": "http", "scheme": "bearer" },
                    "password": { "type": "http", "scheme": "basic" },
                },
                "schemas": {
                    "Problem": {
                        "description": "RFC 9457",
                        "type": "object",
                        "required": ["type", "title", "status", "detail"],
                        "properties": {
                            "type": { "type": "string" },
                            "title": { "type": "string" },
                            "status": { "type": "integer" },
                            "detail": { "type": "string", "description": "what is wrong, and how to fix it" },
                        },
                    },
                },
            },
        });
        let text: Arc<str> = document.to_string().into();
        let answer = move || {
            let text = String::from(&*text);
            async move { ([(header::CONTENT_TYPE, "application/json")], text) }
        };
        self.router.route(path, get(answer))
    }
}

fn method_name(method: MethodFilter) -> &'static str {
    match method {
        MethodFilter::POST => "post",
        MethodFilter::PUT => "put",
        MethodFilter::DELETE => "delete",
        _ => "get",
    }
}

fn describe(operation: &Operation) -> Value {
    let in_path = operation
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<_> = in_path
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    parameters.extend(operation.query.iter().map(|(name, meaning)| {
        let needed = name.ends_with('!');
        let name = name.trim_end_matches('!');
        json!({ "name": name, "in": "query", "required": needed, "description": meaning, "schema": { "type": "string" } })
    }));
    let kind = match operation.response {
        ResponseKind::Json => "application/json",
        ResponseKind::Text => "text/plain",
        ResponseKind::Events => "text/event-stream",
    };
    let problem = json!({
        "description": "It was refused; nothing has changed",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "2XX": { "description": "Done", "content": { kind: {} } },
            "4XX": problem,
        },
    });
    if operation.method != MethodFilter::GET {
        described["security"] = json!([{ "token": [] }, { "password": [] }]);
    }
    match operation.request {
        RequestKind::Nothing => {}
        RequestKind::Json(example) => {
            let example: Value = serde_json::from_str(example).unwrap_or_default();
            described["requestBody"] =
                json!({ "required": true, "content": { "application/json": { "example": example } } });
        }
        RequestKind::Configuration => {
            described["requestBody"] = json!({ "required": true, "content": { "application/yaml": {} } });
        }
    }
    described
}
