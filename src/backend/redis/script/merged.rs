//! A merged call: several checks in one call of the merged script. `lua/README.md` is the contract.

use std::sync::Arc;

use redis::{RedisError, RedisResult, Value, parse_redis_value};
use smallvec::{SmallVec, smallvec};

use super::{
    Call, GENERATION_SIZE, NO_DEADLINE, RECEIPT_SIZE, STATUS_SIZE,
    fields::Fields,
    pair_fields::{PAIR_SIZE, PairFields},
    parts::TokenParts,
};
use crate::policy::{EqualChecks, RedisProperties};

pub(crate) mod server_time;

/// The offset of the numbers in a status, after the clock reading and the verdict.
const NUMBERS_OFFSET: usize = 9;
/// What stands for the number of admitted checks.
const FULL: u8 = 254;
const ERROR: u8 = 255;

/// A call that decides several checks of one kind and namespace.
pub(crate) struct Merged {
    pub(crate) call: Arc<Call>,
    runs: Vec<Run>,
}

/// Equal checks: the same keys, policies and costs.
struct Run {
    /// That of its checks.
    identity: u64,
    pairs: SmallVec<[RunPair; 1]>,
    /// The indices of the checks in the order of their deadlines, which is that of their execution.
    checks: SmallVec<[usize; 4]>,
}

/// A pair of equal checks.
struct RunPair {
    cost: u32,
    /// The most of equal checks in one run, at least 1.
    most: u32,
    parts: Option<TokenParts>,
}

/// The reply to each check of a merged call, as the check script would send it.
pub(crate) struct Replies {
    pub(crate) of_checks: Vec<RedisResult<Value>>,
    /// Whether the server has decided a check.
    pub(crate) has_decided: bool,
    /// Whether the server has charged a check.
    pub(crate) has_charged: bool,
}

impl Merged {
    /// Returns the call that decides these checks: 1 to 64, all of one purpose, without shadow pairs, and with deadlines that are
    /// set. Equal checks have the same number; others may have it, too. Equal checks become one run, in the position of the first of
    /// them, unless their statuses do not follow from each other.
    pub(crate) fn new(checks: &[(&Call, u64)]) -> Self {
        let call_of = |index: &usize| checks.get(*index).map(|(call, _)| *call);
        let mut runs: Vec<Run> = Vec::with_capacity(checks.len());
        for (index, (check, identity)) in checks.iter().enumerate() {
            let is_equal = |run: &&mut Run| {
                run.identity == *identity
                    && run.checks.first().and_then(call_of).is_some_and(|call| call.is_equal(check))
            };
            match runs.iter_mut().rev().find(is_equal).filter(|run| run.has_room()) {
                Some(run) => run.checks.push(index),
                None => {
                    let pairs = check.fields().chunks_exact(PAIR_SIZE).map(RunPair::from_fields).collect();
                    runs.push(Run { identity: *identity, pairs, checks: smallvec![index] });
                }
            }
        }
        let first = call_of(&0);
        let mut call = Call {
            purpose: first.and_then(|check| check.purpose),
            at_micros: first.and_then(|check| check.at_micros),
            ..Call::default()
        };
        call.reserve_for(checks.iter().map(|(check, _)| *check));
        for run in &mut runs {
            run.checks.sort_by_key(|index| call_of(index).map(Call::deadline));
            // A check whose deadline is exceeded may be sent again, with its generation. Deadlines are in ascending order, so the
            // generation of the last check is in no other call if a check of the run is decided.
            let Some(last) = run.checks.last().and_then(call_of) else { continue };
            call.keys.append(&last.keys);
            // Each is at most 64.
            call.pairs.extend_from_slice(&[last.keys.len() as u8, run.checks.len() as u8]);
            for check in run.checks.iter().filter_map(call_of) {
                call.pairs.extend_from_slice(&check.deadline().to_le_bytes());
            }
            call.pairs.extend_from_slice(last.fields());
            call.pairs.extend_from_slice(last.generation());
        }
        Self { call: Arc::new(call), runs }
    }

    /// Parses the reply to the call. Returns `None` if the reply is broken.
    pub(crate) fn replies(&self, reply: &Value) -> Option<Replies> {
        let Value::BulkString(bytes) = reply else { return None };
        let (clock, rest) = bytes.split_first_chunk::<8>()?;
        let status_size = STATUS_SIZE + if self.call.reserves() { RECEIPT_SIZE } else { 0 };
        let checks = self.runs.iter().map(|run| run.checks.len()).sum();
        let mut of_checks: Vec<Option<RedisResult<Value>>> = vec![None; checks];
        let (mut has_decided, mut has_charged) = (false, false);
        let mut fields = Fields(rest);
        for run in &self.runs {
            let mut reply_to = |checks: &[usize], reply: RedisResult<Vec<u8>>| {
                let Some((last, others)) = checks.split_last() else { return Some(()) };
                let reply = reply.map(Value::BulkString);
                for check in others {
                    *of_checks.get_mut(*check)? = Some(reply.clone());
                }
                *of_checks.get_mut(*last)? = Some(reply);
                Some(())
            };
            let (exceeded, admitted) = (fields.u8()?, fields.u8()?);
            let (exceeded, decided) = run.checks.split_at_checked(exceeded.into())?;
            if !exceeded.is_empty() {
                reply_to(exceeded, Ok(clock.to_vec()))?;
            }
            match admitted {
                FULL => {
                    reply_to(decided, Ok(b"full".to_vec()))?;
                    has_decided = true;
                }
                ERROR => {
                    let length = fields.uint::<2>()? as usize;
                    reply_to(decided, Err(error(fields.bytes(length)?)?))?;
                }
                _ => {
                    let size = status_size * run.pairs.len();
                    let (admitted, denied) = decided.split_at_checked(admitted.into())?;
                    if let Some((first, others)) = admitted.split_first() {
                        // The statuses are those of the last one. Each check before it has seen one charge less.
                        let mut statuses = fields.bytes(size)?.to_vec();
                        for check in others.iter().rev() {
                            reply_to(&[*check], Ok(statuses.clone()))?;
                            run.uncharge(&mut statuses, status_size);
                        }
                        reply_to(&[*first], Ok(statuses))?;
                        has_charged |= run.pairs.iter().any(|pair| pair.cost > 0);
                    }
                    if !denied.is_empty() {
                        reply_to(denied, Ok(fields.bytes(size)?.to_vec()))?;
                    }
                    has_decided |= !decided.is_empty();
                }
            }
        }
        let of_checks = of_checks.into_iter().collect::<Option<_>>()?;
        fields.0.is_empty().then_some(Replies { of_checks, has_decided, has_charged })
    }
}

impl Run {
    /// Returns whether one more check joins the run.
    fn has_room(&self) -> bool {
        self.pairs.iter().all(|pair| self.checks.len() < pair.most as usize)
    }

    /// Changes the statuses of a check to those of the check before it.
    fn uncharge(&self, statuses: &mut [u8], status_size: usize) {
        for (status, pair) in statuses.chunks_exact_mut(status_size).zip(&self.pairs) {
            pair.uncharge(status);
        }
    }
}

impl RunPair {
    fn from_fields(pair: &[u8]) -> Self {
        let PairFields { quota, cost, window, redis_type, parameter } = PairFields::read(pair);
        let most = redis_type.map_or(1, |redis_type| most_in_run(redis_type, cost));
        let parts =
            redis_type.and_then(|redis_type| TokenParts::of_type(redis_type, quota, window, parameter));
        Self { cost, most, parts }
    }

    /// Changes the status of a check to that of the check before it. A status that is too short stays.
    fn uncharge(&self, status: &mut [u8]) -> Option<()> {
        let (remaining, rest) = status.get_mut(NUMBERS_OFFSET..)?.split_first_chunk_mut()?;
        let (_retry_after, rest) = rest.split_first_chunk_mut::<8>()?;
        let (next_after, rest) = rest.split_first_chunk_mut()?;
        let reset_after = rest.first_chunk_mut()?;
        let of_last = u32::from_le_bytes(*remaining);
        if let Some(parts) = &self.parts {
            let [missing, reset] = [*next_after, *reset_after].map(u64::from_le_bytes);
            *reset_after = parts.reset_before(of_last, missing, reset, self.cost).to_le_bytes();
        }
        *remaining = of_last.saturating_add(self.cost).to_le_bytes();
        Some(())
    }
}

impl Call {
    /// Reserves the memory for all checks of a merged call. Equal ones take less.
    fn reserve_for<'a>(&mut self, checks: impl Iterator<Item = &'a Self> + Clone) {
        // Two numbers are before the pairs of a run.
        self.pairs.reserve(checks.clone().map(|check| 2 + check.pairs.len()).sum());
        self.keys.reserve_for(checks.map(|check| &check.keys));
    }

    /// Returns the fields of the pairs of a check.
    fn fields(&self) -> &[u8] {
        let end = self.pairs.len().saturating_sub(GENERATION_SIZE);
        self.pairs.get(NO_DEADLINE.len()..end).unwrap_or_default()
    }

    /// Returns whether another check has the same keys, policies and costs.
    fn is_equal(&self, other: &Self) -> bool {
        self.keys == other.keys && self.fields() == other.fields()
    }

    /// Returns the deadline of a check, in microseconds of the server's clock.
    fn deadline(&self) -> u64 {
        Fields(&self.pairs).u64().unwrap_or_default()
    }

    fn generation(&self) -> &[u8] {
        let start = self.pairs.len().saturating_sub(GENERATION_SIZE);
        self.pairs.get(start..).unwrap_or_default()
    }
}

/// Returns the most of equal checks in one run, by the type of a pair and its cost: one, unless their statuses follow from each other. The sum of
/// the costs fits into the arguments, in which a cost has 32 bits.
fn most_in_run(redis_type: &RedisProperties, cost: u32) -> u32 {
    match redis_type.equal_checks {
        EqualChecks::Different => 1,
        EqualChecks::Remaining | EqualChecks::Parts => u32::MAX.checked_div(cost).unwrap_or(u32::MAX),
    }
}

/// Returns the error of one check. Its text is that of an error reply.
fn error(text: &[u8]) -> Option<RedisError> {
    let line: Vec<u8> = text.iter().map(|byte| if byte.is_ascii_control() { b' ' } else { *byte }).collect();
    parse_redis_value(&[b"-", &line[..], b"\r\n"].concat()).ok()?.extract_error().err()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        backend::redis::keys::KeyNames,
        check::{Check, Pair},
        key::PartitionKey,
        policy::Policy,
    };

    /// A check whose deadline is exceeded may be sent again, with its generation. The last one is not, if one is decided.
    #[test]
    fn run_takes_generation_of_its_last_check() {
        let policy = Policy::new("burst", 10, Duration::from_secs(1)).unwrap();
        let check = Check::new([Pair::new(PartitionKey::new("user", "alice"), policy, 1)]).unwrap();
        let mut calls =
            [1, 2, 3].map(|generation| Call::check(&check, &KeyNames::default(), generation, None, None));
        for (call, deadline) in calls.iter_mut().zip([200, 300, 100]) {
            Arc::make_mut(call).set_deadline(deadline);
        }
        let merged = Merged::new(&calls.each_ref().map(|call| (&**call, 7)));
        assert_eq!(merged.runs.iter().map(|run| run.checks.to_vec()).collect::<Vec<_>>(), [[2, 0, 1]]);
        assert_eq!(merged.call.generation(), calls[1].generation());
    }
}
