//! Selection of routes by labels.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use signalbox_api::routing::RoutesAnswer;
use signalbox_core::model::labels::Selector;

use super::problem::problem;
use super::reply::{ApiReply, answer};
use super::views;
use crate::control::Control;

/// Query that selects routes.
#[derive(Deserialize)]
pub(super) struct RoutesQuery {
    selector: Option<String>,
}

/// `GET /api/v1/routes`.
pub(super) async fn routes(
    State(control): State<Arc<Control>>,
    Query(wanted): Query<RoutesQuery>,
) -> ApiReply<RoutesAnswer> {
    let selector = wanted.selector.as_deref().map(parse_selector);
    match selector.transpose() {
        Ok(selector) => answer(views::routes(&control, selector.as_ref())),
        Err(why) => problem(StatusCode::BAD_REQUEST, "The selector is not understood", &why),
    }
}

/// Parses a label selector. The error describes the mistake.
pub(super) fn parse_selector(text: &str) -> Result<Selector, String> {
    Selector::parse(text).map_err(|error| {
        format!(
            "{text:?} is not a label selector, such as app=shop,tier!=batch or \"zone in (a, b),!internal\": {error}"
        )
    })
}
