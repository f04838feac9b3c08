//! The arguments and replies of the scripts. `lua/README.md` is the contract; no file outside of this module knows it.

use std::sync::Arc;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::{
    keys::{KeyNames, Keys},
    tag::Tag,
};
use crate::{
    backend::{
        BackendError, Reason,
        tokens::{TokenOutcome, TokenPair, TokenSettlement},
    },
    check::{Check, Pair, Purpose, Receipt, Refund, RefundPair},
    decision::{Decision, PartialSource, Standing, Status, Statuses, WaitMicros},
    observe,
    policy::Policy,
};

pub(super) mod acquisition;
mod fields;
pub(super) mod hold;
mod loader;
pub(super) mod merged;
mod pair_fields;
mod parts;
mod periods;
mod types;

use acquisition::Acquisition;
use fields::Fields;
pub(super) use loader::{Script, Scripts};
use parts::TokenParts;
use periods::Periods;

/// The deadline of a call without one: the script always runs.
const NO_DEADLINE: [u8; 8] = [u8::MAX; 8];

/// The purpose of a reservation, and of a refund that settles a token.
const RESERVE: &str = "r";
const TOKEN: &str = "s";

/// The size of a generation in bytes.
const GENERATION_SIZE: usize = 7;

/// The sizes of a status and of a receipt in a reply.
const STATUS_SIZE: usize = 37;
const RECEIPT_SIZE: usize = 17;

/// The most pairs in one call of the refund script, so that it takes at most 1 ms of the server. Pairs are refunded independently.
pub(super) const REFUND_PAIRS: usize = 4;

/// Packed little-endian numbers. Those of two pairs need no allocation.
type Packed = SmallVec<[u8; 56]>;

/// The keys and arguments of one call.
#[derive(Clone, Default)]
pub(super) struct Call {
    keys: Keys,
    /// The deadline, and then the fields of each pair. In a check, the generation follows.
    pairs: Packed,
    /// `None` for a plain charge, a refund, a reset, and for the hold script.
    purpose: Option<&'static str>,
    /// The number of shadow pairs, which are the last ones. `None` if there are none, unless the purpose is to take units or to learn an
    /// answer.
    shadow_pairs: Option<usize>,
    /// The units to lease of each pair, 4 bytes each, or the most units to take, or the instants of an answer, or the overages of a token.
    /// `None` for any other purpose.
    units: Option<Vec<u8>>,
    /// The changes of each pair, for the hold script alone.
    changes: Vec<Vec<u8>>,
    /// The pairs whose fields depend on the server's clock. Those of a token are in `units`.
    periods: Periods,
    /// The instant, if the scripts have an injected clock.
    at_micros: Option<u64>,
}

impl Call {
    /// Returns the call that decides a check. Each pair that begins empty gets this generation. The call has no deadline yet. The
    /// enforcing pairs come first, and then the shadow pairs. A pair in flight has the key and the fields of its acquisition before its
    /// own.
    pub(super) fn check(
        check: &Check,
        names: &KeyNames,
        generation: u64,
        acquisition: Option<Acquisition>,
        at_micros: Option<u64>,
    ) -> Arc<Self> {
        let acquisition = acquisition.unwrap_or_default();
        let (mut pairs, mut periods) = (Packed::from_slice(&NO_DEADLINE), Periods::default());
        for (i, Pair { policy, cost, .. }) in in_call_order(check) {
            if policy.properties().is_held {
                acquisition.push(&mut pairs, i, policy);
            }
            periods.note(pairs.len(), policy);
            pairs.extend_from_slice(&pair_fields::write(*cost, policy));
        }
        pairs.extend_from_slice(&generation.to_le_bytes()[..GENERATION_SIZE]);
        let purpose = match check.purpose() {
            Purpose::Charge => None,
            Purpose::Reserve => Some(RESERVE),
            Purpose::Peek => Some("p"),
            Purpose::Overage => Some("o"),
            Purpose::Lease => Some("l"),
            Purpose::LeaseAhead => Some("n"),
            Purpose::TakeUpTo(_) => Some("t"),
            Purpose::Debit => Some("d"),
            Purpose::LeaveAtMost { .. } => Some("a"),
        };
        let units = match check.purpose() {
            Purpose::Lease => Some(check.pairs().iter().flat_map(|pair| pair.lease.to_le_bytes()).collect()),
            Purpose::TakeUpTo(units) => Some(check.max_units(units).to_le_bytes().to_vec()),
            Purpose::LeaveAtMost { at_micros, holds_micros } => {
                let window = check.pairs().first().map_or(0, |pair| pair.policy.window_micros());
                let until = [holds_micros.min(window), window].map(|time| at_micros.saturating_add(time));
                Some([at_micros, until[0], until[1]].into_iter().flat_map(u64::to_le_bytes).collect())
            }
            _ => None,
        };
        let ordered = in_call_order(check).map(|(_, pair)| (&pair.key, &pair.policy));
        let mut keys = names.keys(check.namespace(), ordered, Some(acquisition.holder));
        if let (Purpose::LeaveAtMost { .. }, [pair]) = (check.purpose(), check.pairs()) {
            // That of the newest answer. No pair has such a key: no window begins with this mark.
            keys.push_marked(check.namespace(), names.tag(&pair.key), b"~", &pair.policy);
        }
        let shadows = check.pairs().iter().filter(|pair| pair.is_shadow);
        let shadow_pairs = shadows.map(|pair| 1 + usize::from(pair.policy.properties().is_held)).sum();
        let is_stated = shadow_pairs > 0 || matches!(purpose, Some("t" | "a"));
        let shadow_pairs = is_stated.then_some(shadow_pairs);
        Arc::new(Self { keys, pairs, purpose, shadow_pairs, units, changes: Vec::new(), periods, at_micros })
    }

    /// Returns the call that refunds units. It has no deadline yet.
    pub(super) fn refund(refund: &Refund, names: &KeyNames, at_micros: Option<u64>) -> Arc<Self> {
        let mut pairs = Packed::from_slice(&NO_DEADLINE);
        for RefundPair { policy, receipt, units, .. } in refund.pairs() {
            push_refund(&mut pairs, *units, policy, receipt);
        }
        let keys =
            names.keys(refund.namespace(), refund.pairs().iter().map(|pair| (&pair.key, &pair.policy)), None);
        Arc::new(Self { keys, pairs, at_micros, ..Self::default() })
    }

    /// Returns the call that settles the pairs of one partition key of a token, if no call for this part has done so. It has no deadline
    /// yet.
    pub(super) fn settle_token(
        token: &TokenSettlement,
        part: usize,
        pairs: &[TokenPair],
        generation: u64,
        at_micros: Option<u64>,
    ) -> Arc<Self> {
        let namespace = token.namespace.as_str();
        let tag = |pair: &TokenPair| Tag::from_half(pair.key_id);
        let (mut keys, mut refunds) = (Keys::default(), Packed::from_slice(&NO_DEADLINE));
        for pair in pairs.iter().filter(|pair| pair.used < pair.cost) {
            keys.push(namespace, tag(pair), &pair.policy);
            push_refund(&mut refunds, pair.cost - pair.used, &pair.policy, &pair.receipt);
        }
        let (mut overages, mut periods) =
            (Packed::from_slice(&token.expires_at.to_le_bytes()), Periods::default());
        for pair in pairs.iter().filter(|pair| pair.used > pair.cost) {
            keys.push(namespace, tag(pair), &pair.policy);
            periods.note(overages.len(), &pair.policy);
            overages.extend_from_slice(&pair_fields::write(pair.used - pair.cost, &pair.policy));
        }
        overages.extend_from_slice(&generation.to_le_bytes()[..GENERATION_SIZE]);
        if let Some(first) = pairs.first() {
            keys.push_token(namespace, tag(first), token.id, part);
        }
        let units = Some(overages.to_vec());
        let purpose = Some(TOKEN);
        Arc::new(Self { keys, pairs: refunds, purpose, units, periods, at_micros, ..Self::default() })
    }

    /// Returns the call that deletes the keys of the pairs of a check. It has no deadline yet.
    pub(super) fn reset(pairs: &Check, names: &KeyNames, at_micros: Option<u64>) -> Arc<Self> {
        let of_pairs = pairs.pairs().iter().map(|pair| (&pair.key, &pair.policy));
        let keys = names.keys(pairs.namespace(), of_pairs, None);
        Arc::new(Self { keys, pairs: Packed::from_slice(&NO_DEADLINE), at_micros, ..Self::default() })
    }

    /// Sets the deadline, in microseconds of the server's clock. A call that runs later changes nothing.
    pub(super) fn set_deadline(&mut self, micros: u64) {
        if let Some(deadline) = self.pairs.first_chunk_mut() {
            *deadline = micros.to_le_bytes();
        }
    }

    /// Sets the calendar periods to those around an estimate of the server's clock, in microseconds.
    pub(super) fn set_periods(&mut self, clock: impl Fn() -> u64) {
        let fields = match &mut self.units {
            Some(overages) if self.purpose == Some(TOKEN) => &mut overages[..],
            _ => &mut self.pairs[..],
        };
        self.periods.write(fields, || self.at_micros.unwrap_or_else(&clock));
    }

    /// Returns whether this is a reservation.
    fn reserves(&self) -> bool {
        self.purpose == Some(RESERVE)
    }

    /// Returns the slot of the first key.
    pub(super) fn slot(&self) -> u16 {
        self.keys.slot()
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        // Beside the keys: at most seven other arguments, of which three are short.
        let changes: usize = self.changes.iter().map(Vec::len).sum();
        let size = name.len() + script.len() + self.keys.size() + self.pairs.len() + changes + 32;
        let mut command = Cmd::with_capacity(self.keys.len() + self.changes.len() + 7, size);
        command.arg(name).arg(script).arg(self.keys.len());
        for key in self.keys.iter() {
            command.arg(key);
        }
        command.arg(&self.pairs[..]).arg(&self.changes).arg(self.purpose);
        // The number of shadow pairs is after the purpose, then the units, and the instant is the last argument.
        let is_last = self.shadow_pairs.is_none() && self.at_micros.is_none();
        if self.purpose.is_none() && !is_last {
            command.arg("");
        }
        command.arg(self.shadow_pairs);
        if self.shadow_pairs.is_none() && (self.at_micros.is_some() || self.units.is_some()) {
            command.arg("");
        }
        command.arg(&self.units).arg(self.at_micros);
        command
    }
}

/// Adds the fields of a pair of a refund.
fn push_refund(pairs: &mut Packed, units: u32, policy: &Policy, receipt: &Receipt) {
    pairs.extend_from_slice(&units.to_le_bytes());
    pairs.extend_from_slice(&policy.window_micros().to_le_bytes()[..6]);
    pairs.extend_from_slice(&types::typed_parameter(policy));
    // Generations have 56 bits, and instants are below 2^51 microseconds.
    pairs.extend_from_slice(&receipt.generation.to_le_bytes()[..GENERATION_SIZE]);
    pairs.extend_from_slice(&receipt.at_micros.to_le_bytes()[..7]);
    // A log holds at most 2^20 records.
    pairs.extend_from_slice(&receipt.ordinal.to_le_bytes()[..3]);
}

/// Returns the pairs of a check in the order of the script: first the enforcing pairs, then the shadow pairs. Each with its index in
/// the check.
fn in_call_order(check: &Check) -> impl Iterator<Item = (usize, &Pair)> {
    let of =
        |is_shadow| check.pairs().iter().enumerate().filter(move |(_, pair)| pair.is_shadow == is_shadow);
    of(false).chain(of(true))
}

/// Returns the clock reading in a reply.
pub(super) fn clock_reading(reply: &Value) -> Option<u64> {
    match reply {
        Value::BulkString(bytes) => bytes.first_chunk().map(|reading| u64::from_le_bytes(*reading)),
        Value::Int(micros) => u64::try_from(*micros).ok(),
        _ => None,
    }
}

/// Returns whether the deadline was exceeded, or the clock is outside of the calendar periods of the call. In these cases the script changed
/// nothing, and the reply is the clock reading alone.
pub(super) fn is_deadline_exceeded(reply: &Value) -> bool {
    matches!(reply, Value::BulkString(bytes) if bytes.len() == 8)
}

/// Parses the reply to a check.
pub(super) fn decision(check: &Check, reply: &Value) -> Result<Decision, BackendError> {
    let broken = || BackendError::new(Reason::BrokenReply);
    let mut fields = fields_of(reply)?;
    let (count, mut at_micros) = (check.pairs().len(), 0);
    // The usual case: a status for each pair, in the order of the check.
    if check.purpose() == Purpose::Charge && check.pairs().iter().all(|pair| !pair.is_shadow) {
        let mut statuses = Statuses::with_capacity(count);
        for pair in check.pairs() {
            skip_acquisition(pair, &mut fields, 0).ok_or_else(broken)?;
            at_micros = fields.u64().ok_or_else(broken)?;
            statuses.push(status(pair, &mut fields).flatten().ok_or_else(broken)?);
        }
        let decided = || Decision::from_statuses(at_micros, statuses, Vec::new());
        return fields.0.is_empty().then(decided).ok_or_else(broken);
    }
    let taken = if let Purpose::TakeUpTo(_) | Purpose::LeaveAtMost { .. } = check.purpose() {
        let (rest, units) = fields.0.split_last_chunk().ok_or_else(broken)?;
        fields.0 = rest;
        let units = u32::from_le_bytes(*units);
        Some(match check.purpose() {
            Purpose::TakeUpTo(wanted) if units > wanted => return Err(broken()),
            Purpose::TakeUpTo(_) => check.times(units),
            _ => check.clone().costing(units),
        })
    } else {
        None
    };
    let check = taken.as_ref().unwrap_or(check);
    let is_lease = check.purpose() == Purpose::Lease;
    let has_receipts = is_lease || check.purpose().has_receipts();
    let mut receipts = vec![Receipt::NO_CHARGE; if has_receipts { count } else { 0 }];
    let (mut statuses, mut leases) = (vec![None; count], Vec::new());
    let receipt_size = if has_receipts { RECEIPT_SIZE } else { 0 };
    for (i, pair) in in_call_order(check) {
        skip_acquisition(pair, &mut fields, receipt_size).ok_or_else(broken)?;
        at_micros = fields.u64().ok_or_else(broken)?;
        statuses[i] = status(pair, &mut fields).ok_or_else(broken)?;
        if has_receipts {
            receipts[i] = receipt(&mut fields).ok_or_else(broken)?;
        }
        if is_lease {
            leases.push(fields.u32().ok_or_else(broken)?);
        }
    }
    if !fields.0.is_empty() {
        return Err(broken());
    }
    // A denied check charges nothing, so its receipts mean nothing.
    let denies = |status: &Status| !status.is_shadow() && !status.retry_after().is_zero();
    if statuses.iter().flatten().any(denies) {
        receipts.clear();
        leases.clear();
    }
    if is_lease {
        // No pair is a shadow, so each has a status.
        let statuses: Vec<Status> = statuses.into_iter().flatten().collect();
        return Ok(Decision::with_leases(at_micros, statuses, receipts, leases));
    }
    Ok(Decision::partial(PartialSource::Backend, at_micros, statuses, receipts, check))
}

/// Skips the status of the acquisition of a pair in flight, and its receipt. It means nothing. Returns `None` if the reply is broken.
fn skip_acquisition(pair: &Pair, fields: &mut Fields<'_>, receipt_size: usize) -> Option<()> {
    if pair.policy.properties().is_held {
        fields.bytes(STATUS_SIZE + receipt_size)?;
    }
    Some(())
}

/// Parses the reply to a refund or a reset: the clock reading, in microseconds.
pub(super) fn changed_at(reply: &Value) -> Result<u64, BackendError> {
    match reply {
        Value::Int(micros) => u64::try_from(*micros).map_err(|_| BackendError::new(Reason::BrokenReply)),
        _ if is_deadline_exceeded(reply) => Err(BackendError::new(Reason::DeadlineExceeded)),
        _ => Err(BackendError::new(Reason::BrokenReply)),
    }
}

/// Parses the reply to the settlement of a token.
pub(super) fn token_outcome(reply: &Value) -> Result<TokenOutcome, BackendError> {
    match reply {
        Value::BulkString(bytes) if bytes == b"full" => Err(BackendError::new(Reason::Full)),
        Value::BulkString(bytes) if bytes.len() == 9 && bytes.ends_with(b"s") => Ok(TokenOutcome::Already),
        Value::BulkString(bytes) if bytes.len() == 9 && bytes.ends_with(b"e") => Ok(TokenOutcome::Expired),
        _ => changed_at(reply).map(TokenOutcome::Settled),
    }
}

fn receipt(fields: &mut Fields<'_>) -> Option<Receipt> {
    Some(Receipt {
        generation: fields.uint::<GENERATION_SIZE>()?,
        at_micros: fields.uint::<7>()?,
        ordinal: fields.uint::<3>()? as u32,
    })
}

/// Added to the verdict of a pair whose calendar period begins earlier than the counted one.
const EARLIER_PERIOD: u8 = 16;

/// Parses a status, or `Some(None)` if the script could not decide a shadow pair. Returns `None` if the reply is broken.
fn status(pair: &Pair, fields: &mut Fields<'_>) -> Option<Option<Status>> {
    let (mut verdict, remaining) = (fields.u8()?, fields.u32()?);
    if verdict >= EARLIER_PERIOD && pair.policy.properties().period_letter.is_some() {
        verdict -= EARLIER_PERIOD;
        observe::earlier_period(&pair.policy);
    }
    let (retry, mut next_after, reset_after) = (fields.u64()?, fields.u64()?, fields.u64()?);
    if let Some(parts) = TokenParts::of_policy(&pair.policy) {
        next_after = parts.next_after(remaining, next_after, reset_after);
    }
    let retry_after = match verdict {
        0 => WaitMicros::ZERO,
        // A denial with a wait of zero would be an admission.
        1 if retry > 0 => WaitMicros::new(retry),
        4 if pair.policy.properties().is_held => WaitMicros::UNKNOWN,
        2 => WaitMicros::NEVER,
        3 if pair.is_shadow => return Some(None),
        _ => return None,
    };
    Some(Some(Status::of_pair(
        pair.borrowed(),
        &Standing { remaining, retry_after, next_after, reset_after },
    )))
}

/// Returns the reader of a reply, or an error if the script has changed nothing.
fn fields_of(reply: &Value) -> Result<Fields<'_>, BackendError> {
    let reason = match reply {
        Value::BulkString(bytes) if bytes == b"full" => Reason::Full,
        _ if is_deadline_exceeded(reply) => Reason::DeadlineExceeded,
        Value::BulkString(bytes) => return Ok(Fields(bytes)),
        _ => Reason::BrokenReply,
    };
    Err(BackendError::new(reason))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{key::PartitionKey, policy::Policy};

    fn check() -> Check {
        let policy = Policy::new("burst", 10, Duration::from_secs(1)).unwrap();
        Check::new([Pair::new(PartitionKey::new("user", "}{alice"), policy, 1)]).unwrap()
    }

    #[test]
    fn invalid_reply_is_a_broken_reply() {
        let check = check();
        let mut whole = Vec::new();
        whole.extend_from_slice(&7_u64.to_le_bytes());
        whole.push(0);
        whole.extend_from_slice(&9_u32.to_le_bytes());
        whole.extend_from_slice(&[0; 24]);
        let reason =
            |bytes: &[u8]| decision(&check, &Value::BulkString(bytes.to_vec())).map_err(|e| e.reason());

        let decided = reason(&whole).unwrap();
        assert_eq!((decided.at_micros(), decided.statuses()[0].remaining()), (7, 9));
        for length in 0..whole.len() {
            let expected = if length == 8 { Reason::DeadlineExceeded } else { Reason::BrokenReply };
            assert_eq!(reason(&whole[..length]), Err(expected), "{length} bytes");
        }
        whole.push(0);
        assert_eq!(reason(&whole), Err(Reason::BrokenReply));
        whole.pop();
        whole[8] = 3;
        assert_eq!(reason(&whole), Err(Reason::BrokenReply));
        whole[8] = 1;
        assert_eq!(reason(&whole), Err(Reason::BrokenReply));
        assert_eq!(reason(b"full"), Err(Reason::Full));
        assert_eq!(decision(&check, &Value::Nil).unwrap_err().reason(), Reason::BrokenReply);
    }
}
