//! Reservations as tokens: text that another process settles.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    queue::SettlementQueue,
    reservation::{Charged, Reservation},
    settled::Settled,
    settling::DEADLINE,
};
use crate::{
    backend::tokens::{TokenOutcome, TokenPair, TokenSettlement, TokenStore},
    check::{MAX_PAIRS, Namespace, Receipt},
    cost::Costs,
    error::BackendError,
    guard::before,
    now_or_later::NowOrLater,
    policy::{Expiry, Policy},
};

/// The version of the format, the first byte of a token.
const VERSION: u8 = 1;

/// The sizes in bytes: of the version, the hashes of the namespace and of the secret, and the number; of what authenticates all this;
/// and of a pair. Their sum is a whole number of groups of three bytes, so each of them is four characters.
const HEAD: usize = 16;
const MAC: usize = 8;
const PAIR: usize = 48;

/// How many bytes of the name of a policy are in a token, so that an error can state it.
const NAME: usize = 7;

/// Why a reservation has no token, or why a token is not settled.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The text is no token, or it was changed after [`Reservation::into_token`](crate::Reservation::into_token) returned it.
    #[error("invalid token: the text is not from `Reservation::into_token`, or it was changed")]
    Invalid,
    /// The token is of a release with another format of tokens.
    #[error(
        "token of version {given}: this release reads version {known}; settle it with the release that made it"
    )]
    #[non_exhaustive]
    Version {
        /// The version of the token.
        given: u8,
        /// The version of this release.
        known: u8,
    },
    /// The token is of a limiter with another namespace.
    #[error("token of another namespace: this limiter has the namespace {namespace:?}")]
    #[non_exhaustive]
    Namespace {
        /// The namespace of this limiter.
        namespace: String,
    },
    /// The token is of a backend with another hash secret, or with one if this backend has none, or the reverse.
    #[error("token under another hash secret: both processes need the same one, or none")]
    Secret,
    /// The token contains a policy that this limiter does not have.
    #[error(
        "token of policy {policy:?}: this limiter has no policy of this name, type and window, or time in which a full capacity returns; its policies are {known:?}"
    )]
    #[non_exhaustive]
    UnknownPolicy {
        /// The name of the policy, or its first seven bytes.
        policy: String,
        /// The names of the policies of this limiter.
        known: Vec<String>,
    },
    /// The reservation has a policy [in flight](crate::Policy::in_flight): its units end with this process.
    #[error("reservation of policy {policy:?}: units in flight cannot become a token")]
    #[non_exhaustive]
    InFlight {
        /// The name of the policy.
        policy: String,
    },
    /// The reservation was settled, or has become a token.
    #[error("the reservation is settled already, or has become a token")]
    Settled,
    /// This [`MemoryBackend`](crate::MemoryBackend) did not make the token. It is of another memory, such as that of another process, or of
    /// another backend.
    #[error(
        "token of another store: this memory did not make it, and only the backend that did can settle it"
    )]
    OtherMemory,
    /// The backend has no tokens, or it may not have settled this one. It is safe to settle the token again.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Reservation {
    /// Converts the reservation to a token: one word of printable ASCII characters, for a queue of jobs. Another process with the same
    /// settings settles it with [`Limiter::settle_token`](crate::Limiter::settle_token). For this handle and its clones, the reservation
    /// is then settled: if they are dropped, nothing is refunded.
    ///
    /// The token has at most 32 characters, and 64 for each pair of a key and a policy. It contains the hash of the partition key that
    /// also names the key in Redis, the first seven bytes of the name of each policy, and the place of each charge.
    ///
    /// - **Authentication.** With a [hash secret](crate::guide::deployment#hash-secret), a token that was changed is an error.
    ///   Without a secret, a checksum finds accidents only: any holder of a token can change what it refunds, so keep tokens from
    ///   clients.
    /// - **Backends.** `RedisBackend` and [`MemoryBackend`](crate::MemoryBackend) have tokens, and so has `testing::FakeBackend`. A token of
    ///   a memory can only be settled in the process that has this memory; elsewhere, the error is [`TokenError::OtherMemory`].
    /// - **Without a charge in the store**, such as after an outage, a token has nothing to settle. A charge of the local fallback stands.
    /// - **[Leased units](crate::Policy::leased)** are settled at the place of their lease.
    ///
    /// # Errors
    ///
    /// Returns [`TokenError::Settled`] if the reservation was settled, [`TokenError::InFlight`] if it has a policy in flight, and
    /// [`TokenError::Backend`] if the backend has no tokens ([`Unsupported`](crate::backend::Reason::Unsupported)) or, for a memory, no
    /// room for one more ([`Full`](crate::backend::Reason::Full)). Then the handle is as before for its clones.
    pub fn into_token(self) -> Result<String, TokenError> {
        if let Some(pair) = self.0.check.pairs().iter().find(|pair| pair.policy.properties().is_held) {
            return Err(TokenError::InFlight { policy: pair.policy.name().to_owned() });
        }
        let store = self.0.queue.token_store()?;
        // A settlement by a clone waits until there is a token, or until it is certain that there is none.
        let mut is_settled = self.0.is_settled.lock();
        if *is_settled {
            return Err(TokenError::Settled);
        }
        let token = self.token(&*store)?;
        *is_settled = true;
        drop(is_settled);
        Ok(token)
    }

    fn token(&self, store: &dyn TokenStore) -> Result<String, BackendError> {
        let (check, decision) = (&self.0.check, &self.0.decision);
        let is_charged = matches!(self.0.charged, Charged::Store(_));
        let pairs = check.pairs().iter().zip(decision.receipts());
        let charged = pairs.filter(|(pair, receipt)| is_charged && !pair.is_uncharged(receipt));
        let (mut fields, mut expires_at, mut receipts) = (Vec::new(), 0, Vec::new());
        let pairs = charged.map(|(pair, receipt)| {
            // A pair without a charge expires as if it had one.
            let at = if receipt.at_micros == 0 { decision.at_micros() } else { receipt.at_micros };
            fields.extend(store.key_id(&pair.key));
            fields.extend_from_slice(&receipt.generation.to_le_bytes()[..7]);
            fields.extend_from_slice(&at.to_le_bytes()[..7]);
            fields.extend_from_slice(&receipt.ordinal.to_le_bytes()[..3]);
            fields.extend(pair.cost.to_le_bytes());
            fields.extend(policy_id(&pair.policy));
            expires_at = expires_at.max(leaves_at(&pair.policy, at));
            receipts.push(*receipt);
            pair.clone()
        });
        let charged = check.with_pairs(pairs.collect());
        let id = if expires_at == 0 { 0 } else { store.add_token(charged, receipts, expires_at)? };
        let head = head(store, check.scope());
        let mut token = [&head, &id.to_le_bytes()[..7], &fields].concat();
        token.extend(mac(store, &token));
        Ok(URL_SAFE_NO_PAD.encode(token))
    }
}

impl SettlementQueue {
    /// Returns the store of tokens, or an error if the backend has none.
    fn token_store(&self) -> Result<Arc<dyn TokenStore>, BackendError> {
        self.tokens.clone().ok_or_else(BackendError::unsupported)
    }

    /// Settles a token of this namespace with these policies.
    pub(crate) async fn settle_token(
        &self,
        token: &str,
        namespace: &Namespace,
        policies: &[Policy],
        used: &Costs,
    ) -> Result<Settled, TokenError> {
        let store = self.token_store()?;
        let token = parse(&*store, token, namespace, policies, used)?;
        self.events.unknown_policies(used, token.pairs.iter().map(|pair| &pair.policy));
        if token.pairs.is_empty() {
            return Ok(Settled::Uncharged);
        }
        let deadline = token.deadline;
        let outcome = match store.settle_token(token) {
            NowOrLater::Later(outcome) => before(deadline, outcome).await,
            // It needs no timer.
            outcome => outcome.await,
        };
        Ok(match outcome? {
            TokenOutcome::Settled(at_micros) => self.settled(Ok(at_micros)),
            TokenOutcome::Already => Settled::Already,
            TokenOutcome::Expired => Settled::Expired,
            TokenOutcome::OtherMemory => return Err(TokenError::OtherMemory),
        })
    }
}

/// Returns the settlement of a token by the amount used.
fn parse(
    store: &dyn TokenStore,
    token: &str,
    namespace: &Namespace,
    policies: &[Policy],
    used: &Costs,
) -> Result<TokenSettlement, TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| TokenError::Invalid)?;
    match bytes.first() {
        Some(&VERSION) => {}
        Some(&given) if bytes.len() >= HEAD + MAC => {
            return Err(TokenError::Version { given, known: VERSION });
        }
        _ => return Err(TokenError::Invalid),
    }
    let (token, given_mac) = bytes.split_last_chunk::<MAC>().ok_or(TokenError::Invalid)?;
    let (given_head, fields) = token.split_first_chunk::<HEAD>().ok_or(TokenError::Invalid)?;
    let (fields, rest) = fields.as_chunks::<PAIR>();
    if !rest.is_empty() || fields.len() > MAX_PAIRS {
        return Err(TokenError::Invalid);
    }
    let head = head(store, namespace);
    if given_head[5..9] != head[5..] {
        return Err(TokenError::Secret);
    }
    // All bytes are compared, so that the time does not depend on how many are equal.
    if given_mac.iter().zip(mac(store, token)).fold(0, |differs, (a, b)| differs | (a ^ b)) != 0 {
        return Err(TokenError::Invalid);
    }
    if given_head[1..5] != head[1..5] {
        return Err(TokenError::Namespace { namespace: namespace.as_str().to_owned() });
    }
    let (mut pairs, mut expires_at) = (Vec::new(), 0);
    for fields in fields {
        let given = &fields[37..];
        let policy = policies.iter().find(|policy| policy_id(policy) == *given).ok_or_else(|| {
            let name = String::from_utf8_lossy(&given[4..]).trim_end_matches('\0').to_owned();
            let known = policies.iter().map(|policy| policy.name().to_owned()).collect();
            TokenError::UnknownPolicy { policy: name, known }
        })?;
        let (generation, at_micros) = (number(&fields[16..23]), number(&fields[23..30]));
        let receipt = Receipt { generation, at_micros, ordinal: number(&fields[30..33]) as u32 };
        let cost = number(&fields[33..37]) as u32;
        let used = used.amount(policy.name()).unwrap_or(cost);
        let key_id = fields.first_chunk().copied().unwrap_or_default();
        pairs.push(TokenPair { key_id, policy: policy.clone(), receipt, cost, used });
        expires_at = expires_at.max(leaves_at(policy, at_micros));
    }
    let (id, deadline) = (number(&given_head[9..]), Instant::now() + DEADLINE);
    Ok(TokenSettlement { namespace: namespace.clone(), id, expires_at, deadline, pairs })
}

/// Returns what a token begins with: the version, and four bytes of the hash of the namespace and of that of the secret.
fn head(store: &dyn TokenStore, namespace: &Namespace) -> [u8; 9] {
    let [a, b, c, d, ..] = digest(namespace.as_str().as_bytes());
    let [e, f, g, h, ..] = store.secret().map_or([0; 32], |secret| secret.hash_text(b"secret of tokens"));
    [VERSION, a, b, c, d, e, f, g, h]
}

/// Returns what authenticates the bytes of a token. Without a secret, it is a checksum.
fn mac(store: &dyn TokenStore, token: &[u8]) -> [u8; MAC] {
    let hash = match store.secret() {
        Some(secret) => secret.hash_text(&[b"token", token].concat()),
        None => digest(token),
    };
    hash.first_chunk().copied().unwrap_or_default()
}

/// Returns the identity of a policy in a token: four bytes of the hash of what distinguishes its usage, and the begin of its name.
fn policy_id(policy: &Policy) -> [u8; 11] {
    let mut id = [0; 4 + NAME];
    // How long a settled token is remembered depends on the window, also on that of a token bucket.
    let [number, window, bucket] = policy.usage_id();
    let usage = [number, window, bucket, policy.window_micros()].map(u64::to_le_bytes).concat();
    id[..4].copy_from_slice(&digest(&[&usage, policy.name().as_bytes()].concat())[..4]);
    id[4..].iter_mut().zip(policy.name().bytes()).for_each(|(byte, name)| *byte = name);
    id
}

/// Returns an instant at which a charge of this instant has left.
fn leaves_at(policy: &Policy, at_micros: u64) -> u64 {
    let properties = policy.properties();
    let windows = if properties.expiry == Expiry::Gradual { 2 } else { 1 };
    at_micros.saturating_add(windows * properties.window_micros)
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
