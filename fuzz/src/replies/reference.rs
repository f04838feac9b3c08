//! An independent reader of the reply to a check, as `lua/README.md` describes it.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Decision, Wait,
    backend::{Check, Pair, Purpose},
};

/// What the payload of a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    is_admitted: bool,
    /// For each pair that the script has decided, in the order of the check: its policy and its numbers.
    statuses: Vec<Numbers>,
    /// The generation, the instant and the ordinal of each pair; none unless it is an admitted reservation.
    receipts: Vec<(u64, u64, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Numbers {
    policy: String,
    remaining: u32,
    /// `None` is never.
    retry_micros: Option<u64>,
    next_micros: u64,
    reset_micros: u64,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number * 256 + u64::from(*byte))
}

impl Expected {
    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted
    }
}

/// Returns what a payload says, or `None` if it is malformed, or is not a decision.
pub(super) fn read(payload: &[u8], check: &Check) -> Option<Expected> {
    let is_reservation = matches!(check.purpose(), Purpose::Reserve | Purpose::Lease);
    let size = match check.purpose() {
        Purpose::Reserve => 54,
        Purpose::Lease => 58,
        _ => 37,
    };
    let pairs = check.pairs();
    if payload.len() != pairs.len() * size {
        return None;
    }
    let mut order: Vec<usize> = (0..pairs.len()).filter(|i| !pairs[*i].is_shadow).collect();
    order.extend((0..pairs.len()).filter(|i| pairs[*i].is_shadow));
    let mut is_admitted = true;
    let mut statuses = vec![None; pairs.len()];
    let mut receipts = vec![(0, 0, 0); pairs.len()];
    for (position, i) in order.into_iter().enumerate() {
        let part = &payload[position * size..(position + 1) * size];
        let (verdict, retry) = (part[8], number(&part[13..21]));
        let retry_micros = match verdict {
            0 => Some(0),
            1 if retry > 0 => Some(retry),
            2 => None,
            3 if pairs[i].is_shadow => Some(0),
            _ => return None,
        };
        is_admitted &= pairs[i].is_shadow || verdict == 0;
        if verdict != 3 {
            let (next, reset_micros) = (number(&part[21..29]), number(&part[29..37]));
            let next_micros = match used_parts(&pairs[i], part) {
                Some(used) => reset_micros.saturating_sub(used).saturating_add(next),
                None => next,
            };
            statuses[i] = Some(Numbers {
                policy: pairs[i].policy.name().to_owned(),
                remaining: number(&part[9..13]) as u32,
                retry_micros,
                next_micros,
                reset_micros,
            });
        }
        if is_reservation {
            receipts[i] = (number(&part[37..44]), number(&part[44..51]), number(&part[51..54]) as u32);
        }
    }
    if !is_reservation || !is_admitted {
        receipts.clear();
    }
    Some(Expected { is_admitted, statuses: statuses.into_iter().flatten().collect(), receipts })
}

/// The parts of a unit of the token bucket. One of them returns in a microsecond.
const PARTS: u64 = 6_000_000;

/// Returns the parts of a token bucket that have not returned, by its status: what remains of 10 units, and the parts that are missing to
/// one more unit. `None` for another policy.
fn used_parts(pair: &Pair, status: &[u8]) -> Option<u64> {
    let missing = number(&status[21..29]);
    let units = 10_u64.saturating_sub(number(&status[9..13]) + 1);
    let is_token_bucket = matches!(pair.policy.algorithm(), Algorithm::TokenBucket { .. });
    is_token_bucket.then(|| (units * PARTS).saturating_add(missing))
}

/// Returns what the reply to a merged call says about each check, in the order of the runs. `None` stands for a check without a
/// decision. Returns `None` if the reply is malformed.
pub(super) fn read_merged(payload: &[u8], runs: &[(Check, usize)]) -> Option<Vec<Option<Expected>>> {
    let mut rest = payload.get(8..)?;
    let mut take = |length: usize| {
        let (field, after) = rest.split_at_checked(length)?;
        rest = after;
        Some(field)
    };
    let mut outcomes = Vec::new();
    for (check, count) in runs {
        let pair_size = if check.purpose() == Purpose::Reserve { 54 } else { 37 };
        let size = pair_size * check.pairs().len();
        let [exceeded, admitted] = *take(2)? else { return None };
        let left = count.checked_sub(exceeded.into())?;
        outcomes.extend((0..exceeded).map(|_| None));
        if admitted >= 254 {
            if admitted == 255 {
                let length = number(take(2)?);
                str::from_utf8(take(length as usize)?).ok()?;
            }
            outcomes.extend((0..left).map(|_| None));
            continue;
        }
        let denied = left.checked_sub(admitted.into())?;
        let last = if admitted > 0 { take(size)?.to_vec() } else { Vec::new() };
        for later in (0..u32::from(admitted)).rev() {
            let mut statuses = last.clone();
            for (part, pair) in statuses.chunks_mut(pair_size).zip(check.pairs()) {
                for _ in 0..later {
                    if let Some(used) = used_parts(pair, part) {
                        let returned = used.min(u64::from(pair.cost) * PARTS);
                        let reset = number(&part[29..37]).saturating_sub(returned);
                        part[29..37].copy_from_slice(&reset.to_le_bytes());
                    }
                    let remaining = number(&part[9..13]) + u64::from(pair.cost);
                    let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
                    part[9..13].copy_from_slice(&remaining.to_le_bytes());
                }
            }
            outcomes.push(read(&statuses, check));
        }
        if denied > 0 {
            let statuses = take(size)?;
            outcomes.extend((0..denied).map(|_| read(statuses, check)));
        }
    }
    rest.is_empty().then_some(outcomes)
}

/// Returns what a decision of the crate says.
pub(super) fn expected(decision: &Decision) -> Expected {
    let micros = |wait: Duration| wait.as_micros() as u64;
    let statuses = decision.statuses().iter().map(|status| Numbers {
        policy: status.policy().name().to_owned(),
        remaining: status.remaining(),
        retry_micros: match status.retry_after() {
            Wait::For(wait) => Some(micros(wait)),
            _ => None,
        },
        next_micros: micros(status.next_after()),
        reset_micros: micros(status.reset_after()),
    });
    let receipts = decision.receipts().iter();
    Expected {
        is_admitted: decision.is_admitted(),
        statuses: statuses.collect(),
        receipts: receipts.map(|receipt| (receipt.generation, receipt.at_micros, receipt.ordinal)).collect(),
    }
}

/// Returns the payloads of all bulk strings that begin anywhere in what a server has sent. The client crate ignores white space around a
/// length.
pub(super) fn payloads(sent: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    let marks = sent.iter().flat_map(|bytes| (0..bytes.len()).map(move |at| &bytes[at..]));
    marks.filter_map(|bytes| {
        let line = bytes.strip_prefix(b"$")?;
        let end = line.windows(2).position(|end| end == b"\r\n")?;
        let length: usize = str::from_utf8(&line[..end]).ok()?.trim().parse().ok()?;
        line[end + 2..].get(..length)
    })
}
