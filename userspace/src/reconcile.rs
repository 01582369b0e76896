//! Threads that keep the kernel's maps as the current snapshot requires, each off the path of connections: layer-4
//! services and the shield, the tables of the kernel peek, and the flow table's garbage collection.

pub mod flow_gc;
pub mod kernel_peek;
pub mod l4;
mod wakeups;
