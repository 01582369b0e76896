//! Loops that the kernel's verifier accepts.

use super::hide::hidden;

/// State of a loop.
pub trait Round {
    /// Does a round. False ends the loop.
    fn round(&mut self) -> bool;
}

/// A way to loop. The implementations have different costs for the verifier; [`Buffer::Loop`](super::Buffer::Loop) says
/// which one a program can afford.
pub trait BoundedLoop {
    /// Repeats a round, at most `rounds` times.
    fn repeat<R: Round>(rounds: u32, state: &mut R);
}

/// A loop that counts. The verifier walks each round: as much work as there are rounds, on every kernel.
pub struct CountedLoop;

impl BoundedLoop for CountedLoop {
    #[inline(always)]
    fn repeat<R: Round>(rounds: u32, state: &mut R) {
        let mut done = 0;
        while done < rounds {
            done = hidden(done + 1);
            if !state.round() {
                break;
            }
        }
    }
}
