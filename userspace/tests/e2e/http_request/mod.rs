//! Listeners with `routing: request`.

mod answers;
mod bodies;
mod hosts;
mod life;
mod paths;
mod policies;
mod refused;
mod routes;
pub(crate) mod scene;
mod timeouts;
