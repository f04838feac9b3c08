//! An independent reader of the reply to a check, as `lua/README.md` describes it.

use std::time::Duration;

use tower_sliding_window::{
    Decision, Wait,
    backend::{Check, Purpose},
};

/// What the payload of a reply says.
#[derive(Debug, PartialEq, Eq)]
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
    let is_reservation = check.purpose() == Purpose::Reserve;
    let size = if is_reservation { 54 } else { 37 };
    let pairs = check.pairs();
    if payload.len() != pairs.len() * size {
        return None;
    }
    let mut order: Vec<usize> = (0..pairs.len()).filter(|i| !pairs[*i].is_shadow).collect();
    order.extend((0..pairs.len()).filter(|i| pairs[*i].is_shadow));
    let mut is_admitted = true;
    let mut statuses = vec![None; pairs.len()];
    let mut receipts = vec![(0, 0, 0); pairs.len()];
    for (place, i) in order.into_iter().enumerate() {
        let part = &payload[place * size..(place + 1) * size];
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
            statuses[i] = Some(Numbers {
                policy: pairs[i].policy.name().to_owned(),
                remaining: number(&part[9..13]) as u32,
                retry_micros,
                next_micros: number(&part[21..29]),
                reset_micros: number(&part[29..37]),
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

/// Returns what a decision of the crate says.
pub(super) fn of(decision: &Decision) -> Expected {
    let micros = |wait: Duration| wait.as_micros() as u64;
    let statuses = decision.statuses().iter().map(|status| Numbers {
        policy: status.policy().name().to_owned(),
        remaining: status.remaining(),
        retry_micros: match status.retry_after() {
            Wait::For(wait) => Some(micros(wait)),
            Wait::Never => None,
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
