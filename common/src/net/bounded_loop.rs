//! Loops that the kernel's verifier accepts.

use super::hide::hidden;

/// A loop of at most the number of rounds that it is begun with: `begin`, then rounds while `next` returns true, then
/// `end`, also where the rounds ended early.
///
/// The implementations have different costs for the verifier; [`Buffer::Loop`](super::Buffer::Loop) says which one a
/// program can afford.
pub trait BoundedLoop {
    /// A loop that has not begun. It must not move: the verifier knows a loop of the kernel's by its place.
    const NEW: Self;

    /// Begins a loop of at most `rounds` rounds.
    fn begin(&mut self, rounds: u32);

    /// Begins the next round; false where there is none.
    fn next(&mut self) -> bool;

    /// Ends the loop. The verifier refuses a program that does not.
    fn end(&mut self);
}

/// A loop that counts. The verifier walks each round: as much work as there are rounds, on every kernel.
pub struct CountedLoop {
    rounds: u32,
    done: u32,
}

impl BoundedLoop for CountedLoop {
    const NEW: Self = Self { rounds: 0, done: 0 };

    #[inline(always)]
    fn begin(&mut self, rounds: u32) {
        (self.rounds, self.done) = (rounds, 0);
    }

    #[inline(always)]
    fn next(&mut self) -> bool {
        if self.done >= self.rounds {
            return false;
        }
        self.done = hidden(self.done + 1);
        true
    }

    #[inline(always)]
    fn end(&mut self) {}
}
