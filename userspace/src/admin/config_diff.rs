//! Changes that a configuration would make.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use signalbox_api::problem::ConfigMistakes;
use signalbox_api::weights::DiffAnswer;
use signalbox_core::discovered::expose::effective_model;
use signalbox_core::discovered::merge::add_testers;
use signalbox_core::routing::diff::diff;

use super::problem::{not_shown, problem_with};
use super::reply::{ApiReply, answer};
use crate::config::{self, ConfigError};
use crate::control::Control;

/// `POST /api/v1/diff`: reports what a configuration would change.
pub(super) async fn diff_config(
    State(control): State<Arc<Control>>,
    body: String,
) -> ApiReply<DiffAnswer<ConfigError>> {
    let parsed = match config::parse(&body) {
        Ok(parsed) => parsed,
        Err(errors) => {
            let errors_text = errors.to_string();
            let errors = errors.iter().cloned().collect();
            return problem_with(
                StatusCode::UNPROCESSABLE_ENTITY,
                "The configuration is wrong",
                &errors_text,
                ConfigMistakes::<ConfigError> { errors },
            );
        }
    };
    let snapshot = control.shared.snapshot.load_full();
    let (mut after, _) = effective_model(
        &parsed.model,
        &snapshot.discovered,
        &snapshot.weights,
        &snapshot.exposure.ports,
    );
    add_testers(&mut after, &snapshot.testers);
    let changes = match diff(&snapshot.model, &after) {
        Ok(changes) => changes,
        Err(error) => return not_shown(&error),
    };
    // Weights set by operators override the file's weights of these routes.
    let overridden = parsed
        .model
        .routes
        .iter()
        .map(|route| route.hostname.to_string())
        .filter(|host| snapshot.weights.contains_key(host))
        .collect();
    answer(DiffAnswer {
        changes,
        warnings: parsed.warnings,
        weights_set_by_api: overridden,
    })
}
