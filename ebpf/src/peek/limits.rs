//! Limits of connections: counts and token buckets that programs and workers share.
//!
//! A count is raised first and lowered again where it is beyond its limit, so that there is never one connection too
//! many. A connection beyond a limit is passed up: its worker refuses it, or has it wait, as for any other.

use signalbox_common::{
    net::{atomic, tuple::is_v4},
    peek::abi::{COUNT_OF_ALL, LIMITS_OF_LISTENER, PeekConfig, PeekLimits, PeekReading, counted},
    sketch::{
        self, ROWS, excess,
        first_cell::{AT_ROUTE, CONNECTIONS, FULL_AT, TOKENS},
        use_period, use_token,
    },
};

use super::{
    maps::{PEEK_COUNTS, PEEK_LIMITS, PEEK_SKETCHES},
    settings::config,
};
use crate::{cut::skb::tick, packet_view::hide_from_compiler};

/// Sketch cells of a source.
type Cells = [u32; ROWS];
/// Tries to change a bucket that others change at the same moment.
const MAX_TRIES: u32 = 2;

/// Counts the connection in `reading` for a host, whose word is `count`, and for all limits that it is under. Leaves the
/// counts in `reading.counted`. 0: it is beyond a limit, and counts nowhere.
#[inline(never)]
pub fn admit(reading: &mut PeekReading, client: &[u32; 4], listener: u32, count: u32) -> u32 {
    reading.counted = 0;
    // Without userspace nobody gives counts back. A host without a word is being replaced.
    if config().is_none_or(|config| config.is_orphaned(tick())) || count == COUNT_OF_ALL {
        return u32::from(count != COUNT_OF_ALL);
    }
    let admitted = admit_to_host(reading, count).is_some() && try_admit(reading, client, listener).is_some();
    if !admitted {
        give_back(reading, count);
    }
    u32::from(admitted)
}

#[inline(always)]
fn admit_to_host(reading: &mut PeekReading, count: u32) -> Option<()> {
    let limit = reading.max_host_connections;
    // Nobody overtakes those that wait.
    if limit != 0 && read(reading.queue)? != 0 {
        return None;
    }
    let before = change(count, 1)?;
    reading.counted |= counted::BY_HOST;
    (limit == 0 || before < u64::from(limit)).then_some(())
}

#[inline(always)]
fn try_admit(reading: &mut PeekReading, client: &[u32; 4], listener: u32) -> Option<()> {
    let config = config()?;
    if config.in_all != 0 {
        let before = change(COUNT_OF_ALL, 1)?;
        reading.counted |= counted::IN_ALL;
        if before >= u64::from(config.in_all) {
            return None;
        }
    }
    if config.of_listeners != 0 {
        admit_to_listener(reading, client, listener)?;
    }
    reading.source = sketch::source(client);
    if config.of_source | config.per_second != 0 {
        admit_source(reading, config)?;
    }
    if reading.limits != 0 {
        admit_to_route(reading)?;
    }
    // Last, because a token is not given back.
    (config.per_second == 0 || take_token(&reading.cells[0], config.per_second) != 0).then_some(())
}

#[inline(always)]
fn admit_to_route(reading: &mut PeekReading) -> Option<()> {
    let limits = PEEK_LIMITS.get_ptr(&reading.route)?;
    // SAFETY: an element of the map, replaced as a whole.
    let limits = unsafe { &*limits };
    locate(limits.seed, &reading.source, &mut reading.cells[2]);
    if limits.concurrent != 0 {
        reading.counted |= counted::AT_ROUTE;
        if raise(&reading.cells[2], AT_ROUTE) >= u64::from(limits.concurrent) {
            return None;
        }
    }
    (limits.cost == 0 || take_period(&reading.cells[2], limits) != 0).then_some(())
}

#[inline(always)]
fn admit_source(reading: &mut PeekReading, config: &PeekConfig) -> Option<()> {
    locate(config.seed, &reading.source, &mut reading.cells[0]);
    if config.of_source != 0 {
        reading.counted |= counted::BY_SOURCE;
        if raise(&reading.cells[0], CONNECTIONS) >= u64::from(config.of_source) {
            return None;
        }
    }
    Some(())
}

#[inline(always)]
fn admit_to_listener(reading: &mut PeekReading, client: &[u32; 4], listener: u32) -> Option<()> {
    let Some(limits) = PEEK_LIMITS.get_ptr(&(LIMITS_OF_LISTENER | listener)) else {
        return Some(());
    };
    // SAFETY: as above.
    let limits = unsafe { &*limits };
    let bits = if is_v4(client) { limits.bits >> 8 } else { limits.bits };
    reading.source = sketch::prefix(client, bits & 0xff);
    locate(limits.seed, &reading.source, &mut reading.cells[1]);
    reading.counted |= counted::AT_LISTENER;
    (raise(&reading.cells[1], CONNECTIONS) < u64::from(limits.concurrent)).then_some(())
}

/// Takes back the counts of the connection in `reading`.
#[inline(never)]
pub fn give_back(reading: &mut PeekReading, count: u32) {
    let counted = reading.counted;
    if counted & counted::BY_HOST != 0 {
        change(count, -1);
    }
    if counted & counted::IN_ALL != 0 {
        change(COUNT_OF_ALL, -1);
    }
    if counted & counted::BY_SOURCE != 0 {
        lower(&reading.cells[0], CONNECTIONS);
    }
    if counted & counted::AT_LISTENER != 0 {
        lower(&reading.cells[1], CONNECTIONS);
    }
    if counted & counted::AT_ROUTE != 0 {
        lower(&reading.cells[2], AT_ROUTE);
    }
    reading.counted = 0;
}

/// Reads a word of `PEEK_COUNTS`.
#[inline(always)]
pub fn read(word: u32) -> Option<u64> {
    // SAFETY: an aligned element, which others change at the same time.
    Some(unsafe { PEEK_COUNTS.get_ptr(word)?.read_volatile() })
}

/// Adds to a word of `PEEK_COUNTS`. Returns what it was before.
#[inline(always)]
pub fn change(word: u32, more: i64) -> Option<u64> {
    let word = PEEK_COUNTS.get_ptr_mut(word)?;
    // SAFETY: an element of the array, changed atomically.
    Some(atomic::fetch_add(unsafe { &mut *word }, more as u64))
}

/// Finds the cells of a source.
#[inline(never)]
fn locate(seed: u64, source: &[u32; 4], cells: &mut Cells) {
    cells[0] = sketch::cell(0, seed, source);
    cells[1] = sketch::cell(1, seed, source);
    cells[2] = sketch::cell(2, seed, source);
}

/// Element of a sketch.
#[inline(always)]
fn element(sketch: u32, cell: u32) -> Option<&'static mut u64> {
    // SAFETY: an element of the array, which is changed atomically.
    PEEK_SKETCHES
        .get_ptr_mut(sketch + cell)
        .map(|element| unsafe { &mut *element })
}

/// Reads an element that others change at the same time, once.
#[inline(always)]
fn current(element: &u64) -> u64 {
    // SAFETY: aligned, whole.
    unsafe { core::ptr::from_ref(element).read_volatile() }
}

/// Counts one more in a source's cells. Returns the count before.
#[inline(never)]
fn raise(cells: &Cells, sketch: u32) -> u64 {
    let mut least = u64::MAX;
    let mut row = 0;
    while row < ROWS {
        if let Some(element) = element(sketch, cells[row]) {
            let before = atomic::fetch_add(element, 1);
            least = if before < least { before } else { least };
        }
        row += 1;
    }
    least
}

/// Counts one less in a source's cells.
#[inline(always)]
fn lower(cells: &Cells, sketch: u32) {
    let mut row = 0;
    while row < ROWS {
        if let Some(element) = element(sketch, cells[row]) {
            atomic::add(element, u64::MAX);
        }
        row += 1;
    }
}

/// Takes a token of a source; 0 where the buckets of all rows are empty.
#[inline(never)]
fn take_token(cells: &Cells, rate: u32) -> u32 {
    // SAFETY: reads a clock.
    let now = (unsafe { aya_ebpf::helpers::bpf_ktime_get_ns() } / 1_000_000) as u32;
    let mut granted = 0;
    let mut row = 0;
    while row < ROWS {
        if let Some(bucket) = element(TOKENS, cells[row]) {
            let mut tries = 0;
            while tries < MAX_TRIES {
                tries += 1;
                let old = current(bucket);
                let Some(next) = use_token(old, now, rate) else { break };
                if atomic::exchange_long(bucket, old, next) {
                    granted = 1;
                    break;
                }
            }
        }
        row += 1;
    }
    granted
}

/// Takes a connection's time of a source's bucket at a route; 0 where it is empty.
#[inline(never)]
fn take_period(cells: &Cells, limits: &PeekLimits) -> u32 {
    // SAFETY: reads a clock.
    let now = unsafe { aya_ebpf::helpers::bpf_ktime_get_ns() };
    let mut least = u64::MAX;
    let mut raised = 0;
    let mut row = 0;
    while row < ROWS {
        if let Some(bucket) = element(FULL_AT, cells[row]) {
            let mut tries = 0;
            while tries < MAX_TRIES {
                tries += 1;
                let old = current(bucket);
                let next = use_period(old, now, limits.cost);
                if atomic::exchange_long(bucket, old, next) {
                    least = if next < least { next } else { least };
                    raised |= 1 << row;
                    break;
                }
            }
        }
        row += 1;
    }
    if least != u64::MAX && excess(least, now, limits.most) == 0 {
        return 1;
    }
    let mut row = 0;
    while row < ROWS {
        if raised & 1 << row != 0
            && let Some(bucket) = element(FULL_AT, cells[row])
        {
            // Older verifiers do not follow a negation.
            let nothing = u64::from(hide_from_compiler(0));
            atomic::add(bucket, nothing.wrapping_sub(limits.cost));
        }
        row += 1;
    }
    0
}
