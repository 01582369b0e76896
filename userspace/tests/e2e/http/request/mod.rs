//! Listeners with `routing: request`.

mod ambiguous;
mod answers;
mod bodies;
mod heads;
mod host_limit;
mod hosts;
mod life;
mod paths;
mod policies;
mod pool;
mod refused;
mod repaired;
mod routes;
pub(crate) mod scene;
mod timeouts;
mod upgrades;
