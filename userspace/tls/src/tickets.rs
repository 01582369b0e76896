//! Session tickets (RFC 5077; RFC 8446, section 4.6.1) that every balancer with the same secret opens, also after a
//! restart.
//!
//! Time is cut into epochs of six hours since 1970. The key of an epoch is derived (HKDF, RFC 5869) from the secret,
//! the policy's label and the epoch's number, so nothing but the secret has to be shared. A ticket is: the name of its
//! key (16 bytes), a random nonce (12), and the session encrypted with AES-256-GCM. One key encrypts less than 2^32
//! tickets, up to which random nonces are safe (NIST SP 800-38D), as long as all balancers together do fewer than
//! 90 000 handshakes a second.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::ProducesTickets;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::provider::{aead, hkdf, rand};

/// Time for which one key encrypts.
pub const EPOCH_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Epochs after its own in which a ticket is still accepted.
const OLD_EPOCHS: u64 = 2;

/// Number of keys in use: the current one, old ones, and the next, which a balancer with a faster clock uses already.
const KEYS: usize = OLD_EPOCHS as usize + 2;

/// Time for which a ticket is accepted at least, which clients are told: one of an epoch's last second lives for two
/// more epochs.
pub const TICKET_TTL: Duration = Duration::from_secs(EPOCH_INTERVAL.as_secs() * OLD_EPOCHS);

const NAME_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const SALT: &[u8] = b"signalbox session tickets 1";

/// Secret that balancers share: 32 random bytes, zeroed when dropped.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct TicketSecret([u8; 32]);

impl TicketSecret {
    /// Takes a secret from where it is kept.
    #[must_use]
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// Makes a secret, for a balancer that shares none yet. `None`: the system gives no random numbers.
    #[must_use]
    pub fn random() -> Option<Self> {
        let mut secret = Self([0; 32]);
        rand::fill(&mut secret.0).ok()?;
        Some(secret)
    }

    /// The bytes, to be kept where only balancers read them.
    #[must_use]
    pub const fn reveal(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret")
    }
}

/// Clock of tickets: seconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Encrypts and decrypts the tickets of one policy. Tickets of another policy are as unknown as a stranger's.
pub struct Ticketer {
    extracted: hkdf::Prk,
    label: String,
    clock: Clock,
    keys: ArcSwap<EpochKeys>,
}

/// Keys of an epoch, of those before it, and of the next one.
struct EpochKeys {
    epoch: u64,
    /// From the next epoch's downwards.
    keys: [EpochKey; KEYS],
}

struct EpochKey {
    name: [u8; NAME_BYTES],
    key: aead::LessSafeKey,
}

impl Ticketer {
    /// Ticketer for the policy `label`: whatever differs in what a client must prove or may reach has another label.
    #[must_use]
    pub fn new(secret: &TicketSecret, label: &str, clock: Clock) -> Self {
        let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(&secret.0);
        let keys = epoch_keys(&extracted, label, epoch(&clock));
        Self {
            extracted,
            label: label.to_owned(),
            clock,
            keys: ArcSwap::from_pointee(keys),
        }
    }

    /// Keys of now. Those of the last look stay in use until the epoch is over; of two threads that both derive the
    /// new ones, either's are right.
    fn keys(&self) -> Arc<EpochKeys> {
        let now = epoch(&self.clock);
        let keys = self.keys.load_full();
        if keys.epoch == now {
            return keys;
        }
        let keys = Arc::new(epoch_keys(&self.extracted, &self.label, now));
        self.keys.store(Arc::clone(&keys));
        keys
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticketer({:?})", self.label)
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(TICKET_TTL.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let keys = self.keys();
        let EpochKey { name, key } = &keys.keys[1];
        let mut nonce = [0; aead::NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = Vec::with_capacity(NAME_BYTES + nonce.len() + plain.len() + aead::MAX_TAG_LEN);
        sealed.extend_from_slice(name);
        sealed.extend_from_slice(&nonce);
        let mut body = Zeroizing::new(Vec::with_capacity(plain.len() + aead::MAX_TAG_LEN));
        body.extend_from_slice(plain);
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, aead::Aad::from(name), &mut *body)
            .ok()?;
        sealed.extend_from_slice(&body);
        Some(sealed)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, body) = rest.split_first_chunk::<{ aead::NONCE_LEN }>()?;
        let keys = self.keys();
        // The name is no secret, so the comparison need not take constant time.
        let EpochKey { name, key } = keys.keys.iter().find(|key| key.name == *name)?;
        let nonce = aead::Nonce::assume_unique_for_key(*nonce);
        let mut body = body.to_vec();
        let plain = key.open_in_place(nonce, aead::Aad::from(name), &mut body).ok()?.len();
        body.truncate(plain);
        Some(body)
    }
}

fn epoch(clock: &Clock) -> u64 {
    clock() / EPOCH_INTERVAL.as_secs()
}

fn epoch_keys(extracted: &hkdf::Prk, label: &str, epoch: u64) -> EpochKeys {
    // Before the third epoch of 1970 there are no old ones; a key made twice does no harm.
    let key = |at: usize| epoch_key(extracted, label, (epoch + 1).saturating_sub(at as u64));
    EpochKeys {
        epoch,
        keys: std::array::from_fn(key),
    }
}

/// Length of what HKDF is asked for: the key's name, and the key.
struct Length;

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        NAME_BYTES + KEY_BYTES
    }
}

fn epoch_key(extracted: &hkdf::Prk, label: &str, epoch: u64) -> EpochKey {
    // The number has a fixed length and stands first, so no other label and number give the same bytes.
    let info = [&epoch.to_be_bytes()[..], label.as_bytes()];
    let mut derived = Zeroizing::new([0; NAME_BYTES + KEY_BYTES]);
    let expanded = extracted.expand(&info, Length);
    expanded
        .and_then(|material| material.fill(&mut *derived))
        .expect("HKDF gives up to 255 blocks");
    let (name, key) = derived.split_at(NAME_BYTES);
    let key = aead::UnboundKey::new(&aead::AES_256_GCM, key).expect("the key has the length of the algorithm's");
    EpochKey {
        name: std::array::from_fn(|at| name[at]),
        key: aead::LessSafeKey::new(key),
    }
}
