//! What a store needs to settle reservations by their tokens.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

use crate::{
    check::{Check, Namespace, Receipt},
    error::BackendError,
    key::{HashSecret, PartitionKey},
    now_or_later::NowOrLater,
    policy::Policy,
};

/// Makes and settles the [tokens](crate::Reservation::into_token) of a backend of this crate: see
/// [`Backend::tokens`](crate::backend::Backend::tokens).
#[derive(Clone)]
pub struct Tokens(pub(crate) Arc<dyn TokenStore>);

impl Tokens {
    pub(crate) fn new(store: impl TokenStore + 'static) -> Self {
        Self(Arc::new(store))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// A store that settles tokens, each once: it remembers a settled token until the token has expired.
pub(crate) trait TokenStore: Send + Sync {
    /// Returns the secret that authenticates tokens.
    fn secret(&self) -> Option<&HashSecret> {
        None
    }

    /// Returns the identity of a partition key in a token. Zeros if the store keeps the charges of its tokens.
    fn key_id(&self, _key: &PartitionKey) -> [u8; 16] {
        [0; 16]
    }

    /// Makes a token of the pairs of a check known. Returns its number: a random number of 56 bits.
    ///
    /// # Errors
    ///
    /// Returns an error if the store has no room for it.
    fn add_token(&self, check: Check, receipts: Vec<Receipt>, expires_at: u64) -> Result<u64, BackendError>;

    /// Settles a token: the refunds and the overages of each partition key are one call, and are made once.
    fn settle_token(&self, token: TokenSettlement) -> NowOrLater<Result<TokenOutcome, BackendError>>;
}

/// The settlement of a token. It is safe to send it again.
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "a memory keeps the charges of its tokens"))]
pub(crate) struct TokenSettlement {
    pub(crate) namespace: Namespace,
    pub(crate) id: u64,
    /// From this instant of the store's clock on, nothing changes.
    pub(crate) expires_at: u64,
    /// After this instant, nothing changes.
    pub(crate) deadline: Instant,
    /// At least one.
    pub(crate) pairs: Vec<TokenPair>,
}

/// A charged pair of a token.
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "a memory keeps the charges of its tokens"))]
pub(crate) struct TokenPair {
    pub(crate) key_id: [u8; 16],
    pub(crate) policy: Policy,
    pub(crate) receipt: Receipt,
    pub(crate) cost: u32,
    /// The units that were used, which replace the cost.
    pub(crate) used: u32,
}

/// The result of the settlement of a token, from the least to the most that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TokenOutcome {
    /// The store, a memory, has not made it.
    OtherMemory,
    /// The token has expired.
    Expired,
    /// It was settled before.
    Already,
    /// It was settled now, at this instant.
    Settled(u64),
}
