//! Object `steering`: `steer` (sk_lookup) gives new connections to the listeners, `sockmap_verdict` (sk_skb) carries
//! flows of tier `sockmap`. Loaded by `signalbox::kernel::Kernel`; ends with its process.
#![no_std]
#![no_main]

mod count;
mod object;
mod sockmap;
mod steer;

/// Whether counters are pinned. This object's programs end with the process, and their counts with them.
const OUTLIVES_PROCESS: bool = false;
