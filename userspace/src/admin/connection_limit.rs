//! Limits of connections to the admin API. One address gets at most half of the total, so that no address alone can
//! lock out all others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Limiter of the connections to one socket.
#[derive(Clone)]
pub(super) struct ConnectionLimiter(Arc<LimiterState>);

struct LimiterState {
    max: usize,
    open: Mutex<OpenConnections>,
    /// Callback for each connection that opens (true) or closes.
    count: Box<dyn Fn(bool) + Send + Sync>,
}

#[derive(Default)]
struct OpenConnections {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// Permit of one connection, given back on drop.
pub(super) struct ConnectionPermit {
    limiter: Arc<LimiterState>,
    source: Option<IpAddr>,
}

/// Limit that a connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitReached {
    Total,
    Source,
}

impl LimitReached {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Total => "max_connections",
            Self::Source => "max_per_source",
        }
    }
}

impl ConnectionLimiter {
    /// Makes a limiter of `max` concurrent connections. `count` is called for each that opens (true) or closes.
    pub(super) fn new(max: u32, count: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self(Arc::new(LimiterState {
            max: max as usize,
            open: Mutex::default(),
            count: Box::new(count),
        }))
    }

    /// Takes a permit for a connection from `source`. Connections to the unix socket have no source, and no limit per
    /// source.
    pub(super) fn acquire(&self, source: Option<IpAddr>) -> Result<ConnectionPermit, LimitReached> {
        let state = &self.0;
        let mut taken = state.open.lock();
        if taken.total >= state.max {
            return Err(LimitReached::Total);
        }
        if let Some(source) = source {
            let of_source = taken.by_source.entry(source).or_default();
            if *of_source >= state.max.div_ceil(2) {
                return Err(LimitReached::Source);
            }
            *of_source += 1;
        }
        taken.total += 1;
        (state.count)(true);
        Ok(ConnectionPermit {
            limiter: Arc::clone(state),
            source,
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.limiter.open.lock();
        taken.total -= 1;
        if let Some(source) = self.source
            && let Some(of_source) = taken.by_source.get_mut(&source)
        {
            *of_source -= 1;
            if *of_source == 0 {
                taken.by_source.remove(&source);
            }
        }
        (self.limiter.count)(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_gets_half_and_all_get_no_more_than_there_is() {
        let limiter = ConnectionLimiter::new(4, |_| {});
        let source = |n: u8| Some(IpAddr::from([10, 0, 0, n]));
        let first = [1, 1].map(|n| limiter.acquire(source(n)).ok().unwrap());
        assert_eq!(limiter.acquire(source(1)).err(), Some(LimitReached::Source));
        let others = [2, 3].map(|n| limiter.acquire(source(n)).ok().unwrap());
        assert_eq!(limiter.acquire(source(4)).err(), Some(LimitReached::Total));
        drop(first);
        assert!(limiter.acquire(source(1)).is_ok());
        drop(others);
        assert!(limiter.0.open.lock().by_source.is_empty());
    }
}
