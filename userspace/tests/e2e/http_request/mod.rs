//! Listeners with `routing: request`.

mod answers;
mod bodies;
mod hosts;
mod life;
mod refused;
mod routes;
mod scene;
mod timeouts;
