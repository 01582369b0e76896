//! Schemas of the API's types in a file. `SIGNALBOX_WRITE_SCHEMAS=1` writes it again.

use std::path::PathBuf;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use signalbox_api::changes::ChangeEvent;
use signalbox_api::ha::Condition;
use signalbox_api::live::{Hello, SampleChange};
use signalbox_api::problem::Problem;
use signalbox_api::streams::{ChangesEvent, ChangesNotice, ConditionEvent, LiveEvent};
use tower::ServiceExt as _;

use super::{Content, RequestKind, TypeSchema};
use crate::admin::api::{described, router, shapes};
use crate::admin::reply::EVENT_STREAM;

/// Schemas that operations refer to.
pub(super) struct UsedSchemas {
    answers: SchemaGenerator,
    bodies: SchemaGenerator,
}

impl Default for UsedSchemas {
    fn default() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        settings
            .transforms
            .push(Box::new(RecursiveTransform(remove_vain_defaults)));
        let mut answers = settings.clone().for_serialize().into_generator();
        add(&mut answers, TypeSchema::of::<Problem>());
        Self {
            answers,
            bodies: settings.for_deserialize().into_generator(),
        }
    }
}

/// Removes the default values of fields that are always there.
fn remove_vain_defaults(schema: &mut Schema) {
    let required = schema.get("required").cloned().unwrap_or_default();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let (Some(required), Some(properties)) = (required.as_array(), properties) else {
        return;
    };
    for name in required.iter().filter_map(Value::as_str) {
        if let Some(Value::Object(field)) = properties.get_mut(name) {
            field.remove("default");
        }
    }
}

fn add(generator: &mut SchemaGenerator, schema: TypeSchema) {
    assert_eq!((schema.add)(generator), schema.name());
}

impl UsedSchemas {
    pub(super) fn add(&mut self, content: &[Content], request: RequestKind) {
        content
            .iter()
            .filter_map(|(_, schema)| *schema)
            .for_each(|schema| add(&mut self.answers, schema));
        if let RequestKind::Json(schema, _) = request {
            add(&mut self.bodies, schema);
        }
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.answers.take_definitions(true);
        for (name, schema) in self.bodies.take_definitions(true) {
            let is_same = all.get(&name).is_none_or(|known| *known == schema);
            assert!(is_same, "{name} differs between answers and bodies");
            all.insert(name, schema);
        }
        // The library numbers types of one name.
        let numbered = |name: &&String| name.ends_with(|last: char| last.is_ascii_digit());
        assert_eq!(all.keys().find(numbered), None, "another type has the name");
        all
    }
}

#[test]
fn the_file_has_the_schemas_of_the_types() {
    let text = format!("{:#}\n", Value::Object(described().schemas.definitions()));
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/admin/schemas.json");
    if std::env::var_os("SIGNALBOX_WRITE_SCHEMAS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        text == written,
        "{} is not what the types say: SIGNALBOX_WRITE_SCHEMAS=1 writes it",
        file.display()
    );
}

async fn get(router: &Router, path: &str) -> (bool, Value) {
    let request = Request::get(format!("/api/v1/{path}")).body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let is_success = answer.status().is_success();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (is_success, serde_json::from_slice(&body).unwrap())
}

/// Calls a function with each value of a tree that a key has.
fn for_each_value<'v>(tree: &'v Value, key: &str, visit: &mut impl FnMut(&'v Value)) {
    match tree {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            if name == key {
                visit(value);
            }
            for_each_value(value, key, visit);
        }),
        Value::Array(items) => items.iter().for_each(|item| for_each_value(item, key, visit)),
        _ => {}
    }
}

fn assert_valid(document: &Value, schema: &Value, value: &Value, what: &str) {
    assert!(schema["$ref"].is_string(), "{what} has no schema");
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<_> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{what}: {errors:#?}");
}

#[tokio::test]
async fn json_has_a_schema_and_examples_follow_it() {
    let (_, document) = get(&router(shapes::control()), "openapi.json").await;
    for_each_value(&document, "$ref", &mut |reference| {
        let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    });
    let mut paths = document["paths"].clone();
    paths.as_object_mut().unwrap().remove("/api/v1/openapi.json");
    for_each_value(&paths, "application/json", &mut |content| {
        assert!(content["schema"]["$ref"].is_string(), "{content}");
        if let Some(example) = content.get("example") {
            assert_valid(&document, &content["schema"], example, &content.to_string());
        }
    });
    for_each_value(&paths, EVENT_STREAM, &mut |content| {
        assert!(content["x-oai-itemSchema"]["$ref"].is_string(), "{content}");
    });
}

#[tokio::test]
async fn events_of_streams_follow_their_schemas() {
    let (_, document) = get(&router(shapes::control()), "openapi.json").await;
    let change = ChangeEvent::Learnt {
        source: "api".into(),
        cluster: "east".into(),
    };
    for (schema, event) in [
        (TypeSchema::of::<LiveEvent>(), json!(LiveEvent::Hello(Hello::default()))),
        (
            TypeSchema::of::<LiveEvent>(),
            json!(LiveEvent::Sample(SampleChange::default())),
        ),
        (TypeSchema::of::<LiveEvent>(), json!(LiveEvent::Missed(3))),
        (TypeSchema::of::<ChangesEvent>(), json!(ChangesNotice::Missed(3))),
        (TypeSchema::of::<ChangesEvent>(), json!(change)),
        (
            TypeSchema::of::<ConditionEvent>(),
            json!(ConditionEvent::Condition(Condition::default())),
        ),
    ] {
        assert_valid(&document, &schema.reference(), &event, schema.name());
    }
}

#[tokio::test]
async fn answers_follow_their_schemas() {
    let router = router(shapes::control());
    let (_, document) = get(&router, "openapi.json").await;
    for path in shapes::PATHS {
        let (is_success, answer) = get(&router, path).await;
        let asked = format!("/api/v1/{}", path.split('?').next().unwrap());
        let content = if is_success {
            &operation(&document, &asked)["get"]["responses"]["2XX"]["content"]["application/json"]
        } else {
            &json!({ "schema": TypeSchema::of::<Problem>().reference() })
        };
        assert_valid(&document, &content["schema"], &answer, path);
    }
}

/// Returns the operations of the path that this one is an example of.
fn operation<'d>(document: &'d Value, asked: &str) -> &'d Value {
    let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
    let matches = |pattern: &str| {
        let (pattern, asked) = (parts(pattern), parts(asked));
        let is_part = |(pattern, part): (&String, &String)| pattern == part || pattern.starts_with('{');
        pattern.len() == asked.len() && pattern.iter().zip(&asked).all(is_part)
    };
    let paths = document["paths"].as_object().unwrap();
    let found = paths.iter().find(|(pattern, _)| *pattern == asked);
    let found = found.or_else(|| paths.iter().find(|(pattern, _)| matches(pattern)));
    found.unwrap_or_else(|| panic!("{asked} is not described")).1
}
