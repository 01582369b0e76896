//! Who may have a connection to the admin API: so many in all, and of one address at most half of them, so that nobody
//! can lock out everybody else by itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The connections of one way in.
#[derive(Clone)]
pub(super) struct Seats(Arc<Room>);

struct Room {
    max: usize,
    taken: Mutex<Taken>,
    /// Told of each connection that comes and goes.
    count: Box<dyn Fn(bool) + Send + Sync>,
}

#[derive(Default)]
struct Taken {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// One connection's seat, free again when it is dropped.
pub(super) struct Seat {
    room: Arc<Room>,
    source: Option<IpAddr>,
}

/// Which limit a connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    All,
    Source,
}

impl Full {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::All => "max_connections",
            Self::Source => "max_per_source",
        }
    }
}

impl Seats {
    /// For `max` connections at once; `count` is told of each that comes (true) or goes.
    pub(super) fn new(max: u32, count: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Room {
            max: max as usize,
            taken: Mutex::default(),
            count: Box::new(count),
        }))
    }

    /// A seat for a connection from `source`; callers of the unix socket have none, and are one another's equals.
    pub(super) fn take(&self, source: Option<IpAddr>) -> Result<Seat, Full> {
        let room = &self.0;
        let mut taken = room.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.total >= room.max {
            return Err(Full::All);
        }
        if let Some(source) = source {
            let of_source = taken.by_source.entry(source).or_default();
            if *of_source >= room.max.div_ceil(2) {
                return Err(Full::Source);
            }
            *of_source += 1;
        }
        taken.total += 1;
        (room.count)(true);
        Ok(Seat {
            room: Arc::clone(room),
            source,
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.total -= 1;
        if let Some(source) = self.source
            && let Some(of_source) = taken.by_source.get_mut(&source)
        {
            *of_source -= 1;
            if *of_source == 0 {
                taken.by_source.remove(&source);
            }
        }
        (self.room.count)(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_gets_half_and_all_get_no_more_than_there_is() {
        let seats = Seats::new(4, |_| {});
        let source = |n: u8| Some(IpAddr::from([10, 0, 0, n]));
        let first = [1, 1].map(|n| seats.take(source(n)).ok().unwrap());
        assert_eq!(seats.take(source(1)).err(), Some(Full::Source));
        let others = [2, 3].map(|n| seats.take(source(n)).ok().unwrap());
        assert_eq!(seats.take(source(4)).err(), Some(Full::All));
        drop(first);
        assert!(seats.take(source(1)).is_ok());
        drop(others);
        assert!(seats.0.taken.lock().unwrap().by_source.is_empty());
    }
}
