//! Access to the bytes of a packet, in a BPF context or in memory.

use super::bounded_loop::{BoundedLoop, CountedLoop};

/// Reads and writes numbers in network byte order, checked against the packet's end.
///
/// `None` means that the packet ends before the last byte asked for.
pub trait Buffer {
    /// Loop over parts of the packet.
    type Loop: BoundedLoop;

    /// The byte at `at`.
    fn u8(&self, at: u32) -> Option<u8>;
    /// The 16-bit number at `at`.
    fn u16(&self, at: u32) -> Option<u16>;
    /// The 32-bit number at `at`.
    fn u32(&self, at: u32) -> Option<u32>;
    /// `N` consecutive numbers of 32 bits, from `at` on.
    #[inline(always)]
    fn words<const N: usize>(&self, at: u32) -> Option<[u32; N]> {
        let mut words = [0; N];
        let mut i = 0;
        while i < N {
            words[i] = self.u32(at + 4 * i as u32)?;
            i += 1;
        }
        Some(words)
    }
    /// Replaces the byte at `at`.
    fn set_u8(&mut self, at: u32, value: u8) -> Option<()>;
    /// Replaces the 16-bit number at `at`.
    fn set_u16(&mut self, at: u32, value: u16) -> Option<()>;
    /// Replaces the 32-bit number at `at`.
    fn set_u32(&mut self, at: u32, value: u32) -> Option<()>;

    /// Replaces `N` consecutive numbers of 32 bits, from `at` on.
    #[inline(always)]
    fn set_words<const N: usize>(&mut self, at: u32, words: [u32; N]) -> Option<()> {
        let mut i = 0;
        while i < N {
            self.set_u32(at + 4 * i as u32, words[i])?;
            i += 1;
        }
        Some(())
    }

    /// Returns `value` so that the kernel's verifier no longer knows its bounds. The verifier follows each value that
    /// an offset can have on each path through a loop; forgetting them lets it see that all paths are alike.
    #[inline(always)]
    fn hide_from_verifier(&self, value: u32) -> u32 {
        value
    }

    /// Returns `value` so that the compiler knows nothing of it and the kernel's verifier all that it knew. LLVM likes
    /// to turn a loop that counts up into one that counts down from a negated number, and to drop the bits of a mask
    /// that it can prove to be zero. Verifiers before Linux 6.17 do not track a negated register (`BPF_NEG`,
    /// kernel/bpf/verifier.c), and none of them can prove as much as LLVM.
    #[inline(always)]
    fn hide_from_compiler(&self, value: u32) -> u32 {
        value
    }
}

impl Buffer for [u8] {
    type Loop = CountedLoop;

    fn u8(&self, at: u32) -> Option<u8> {
        self.get(at as usize).copied()
    }

    fn u16(&self, at: u32) -> Option<u16> {
        let bytes = self.get(at as usize..)?.first_chunk()?;
        Some(u16::from_be_bytes(*bytes))
    }

    fn u32(&self, at: u32) -> Option<u32> {
        let bytes = self.get(at as usize..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }

    fn set_u8(&mut self, at: u32, value: u8) -> Option<()> {
        *self.get_mut(at as usize)? = value;
        Some(())
    }

    fn set_u16(&mut self, at: u32, value: u16) -> Option<()> {
        *self.get_mut(at as usize..)?.first_chunk_mut()? = value.to_be_bytes();
        Some(())
    }

    fn set_u32(&mut self, at: u32, value: u32) -> Option<()> {
        *self.get_mut(at as usize..)?.first_chunk_mut()? = value.to_be_bytes();
        Some(())
    }
}
