//! The API's own description (OpenAPI 3.1), made from the same calls as its router, so that it is always up to date.
//! Schemas of answers and bodies are made from their types by a test, which writes `schemas.json`.

#[cfg(test)]
mod schemas;
mod type_schema;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::header;
use axum::routing::{MethodFilter, get, on};
use serde_json::{Value, json};
use signalbox_api::problem::Problem;

pub(super) use self::type_schema::{DescribedType, TypeSchema};
use super::reply::{Content, DescribedHandler, DescribedReply, EVENT_STREAM};
use crate::control::Control;

/// Schemas of the types, which the test `schemas` writes from them.
const SCHEMAS: &str = include_str!("schemas.json");

/// Body of a request.
#[derive(Clone, Copy)]
pub(super) enum RequestKind {
    Nothing,
    /// JSON, with an example.
    Json(TypeSchema, &'static str),
    /// Text of a configuration file.
    Configuration,
}

/// Makes the description of a JSON body of type `T`.
pub(super) const fn json_body<T: DescribedType>(example: &'static str) -> RequestKind {
    RequestKind::Json(TypeSchema::of::<T>(), example)
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
}

/// Makes a GET without parameters.
pub(super) const fn read(id: &'static str, path: &'static str, summary: &'static str) -> Operation {
    Operation {
        id,
        method: MethodFilter::GET,
        path,
        summary,
        query: &[],
        request: RequestKind::Nothing,
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
    }
}

/// A router and its description.
#[derive(Default)]
pub(super) struct DescribedRouter {
    router: Router<Arc<Control>>,
    paths: BTreeMap<&'static str, BTreeMap<&'static str, Value>>,
    #[cfg(test)]
    schemas: schemas::UsedSchemas,
}

impl DescribedRouter {
    /// Adds an operation.
    pub(super) fn with<H, T, A>(mut self, operation: &Operation, handler: H) -> Self
    where
        H: Handler<T, Arc<Control>> + DescribedHandler<A>,
        T: 'static,
    {
        let content = H::Reply::CONTENT;
        #[cfg(test)]
        self.schemas.add(content, operation.request);
        let described = describe(operation, content);
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
        self.paths
            .entry(path)
            .or_default()
            .insert("get", describe(&own, &[("application/json", None)]));
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
                "schemas": serde_json::from_str::<Value>(SCHEMAS).expect("a test has written the file"),
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

fn describe(operation: &Operation, content: &[Content]) -> Value {
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
    let content: BTreeMap<_, _> = content
        .iter()
        .map(|content| (content.0, described_content(content)))
        .collect();
    let problem = json!({
        "description": "It was refused; nothing has changed",
        "content": { "application/problem+json": { "schema": TypeSchema::of::<Problem>().reference() } },
    });
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "2XX": { "description": "Done", "content": content },
            "4XX": problem,
        },
    });
    if operation.method != MethodFilter::GET {
        described["security"] = json!([{ "token": [] }, { "password": [] }]);
    }
    match operation.request {
        RequestKind::Nothing => {}
        RequestKind::Json(schema, example) => {
            let example: Value = serde_json::from_str(example).unwrap_or_default();
            let body = json!({ "schema": schema.reference(), "example": example });
            described["requestBody"] = json!({ "required": true, "content": { "application/json": body } });
        }
        RequestKind::Configuration => {
            described["requestBody"] = json!({ "required": true, "content": { "application/yaml": {} } });
        }
    }
    described
}

/// Describes an answer. One in JSON also has the version of the API. Each event of a stream has its kind on a line
/// `event:`, and its data on a line `data:`.
fn described_content((kind, schema): &Content) -> Value {
    let Some(schema) = schema else { return json!({}) };
    let mut described = schema.reference();
    if *kind == EVENT_STREAM {
        // The name of `itemSchema` (OpenAPI 3.2) in documents of 3.1.
        return json!({ "schema": { "type": "string" }, "x-oai-itemSchema": described });
    }
    described["properties"] = json!({ "apiVersion": { "const": "v1" } });
    described["required"] = json!(["apiVersion"]);
    json!({ "schema": described })
}
