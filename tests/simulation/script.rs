//! The contract between the crate and its scripts (`lua/README.md`): the arguments of a call, and the reply.

use std::time::Duration;

use tower_sliding_window::{
    Algorithm, Decision, PartitionKey, Policy, Wait,
    backend::{Check, Pair, Purpose},
    policy::Rate,
};

use super::record::Verdict;
use crate::support::key_name::KeyName;

/// A script call.
pub enum ScriptCall {
    /// A check with its deadline, in microseconds of the server's clock, and the generation of the pairs that begin empty.
    Check { check: Check, deadline: u64, generation: u64 },
    /// The runs of a merged call.
    Merged(Vec<Run>),
    /// The refunds of some pairs, with their deadline in microseconds of the server's clock.
    Refund { refunds: Vec<RefundOfPair>, deadline: u64 },
    /// A reset, with its deadline in microseconds of the server's clock.
    Reset { deadline: u64 },
}

/// Equal checks of a merged call.
pub struct Run {
    pub check: Check,
    /// In microseconds of the server's clock.
    pub deadlines: Vec<u64>,
    pub generation: u64,
}

/// The refund of one pair.
pub struct RefundOfPair {
    key: String,
    pub units: u32,
    window: u64,
    typed_parameter: u64,
    pub receipt: Receipt,
}

/// The receipt of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt {
    pub generation: u64,
    pub at: u64,
    pub ordinal: u32,
}

impl ScriptCall {
    /// Decodes a call: the number of keys, the keys and the arguments.
    pub fn decode(call: &[&[u8]]) -> Result<Self, String> {
        let (keys, arguments) = keys_and_arguments(call)?;
        let count = keys.len();
        match arguments {
            // The lengths of resets, refunds and checks never coincide.
            [reset] if reset.len() == 8 => Ok(Self::Reset { deadline: Fields(reset).take(8)? }),
            [refund] if refund.len() == 33 * count + 8 => Self::refund(&keys, refund),
            [check] if check.len() == 20 * count + 15 => Self::check(&keys, check, Purpose::Charge),
            [check, b"r"] => Self::check(&keys, check, Purpose::Reserve),
            [check, b"o"] => Self::check(&keys, check, Purpose::Overage),
            [check, b"p"] => Self::check(&keys, check, Purpose::Peek),
            [check, purpose, shadows] => {
                let purpose = match *purpose {
                    b"" => Purpose::Charge,
                    b"r" => Purpose::Reserve,
                    b"o" => Purpose::Overage,
                    b"p" => Purpose::Peek,
                    _ => return Err("the purpose".to_owned()),
                };
                let shadows: usize = text(shadows)?.parse().map_err(|_| "the number of shadow pairs")?;
                let enforced = count.checked_sub(shadows).ok_or("too many shadow pairs")?;
                let Self::Check { check, deadline, generation } = Self::check(&keys, check, purpose)? else {
                    return Err("not a check".to_owned());
                };
                let pairs = check.pairs().iter().enumerate();
                let pairs =
                    pairs.map(|(i, pair)| if i < enforced { pair.clone() } else { pair.clone().shadow() });
                let check = Check::new(pairs.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
                Ok(Self::Check { check: check.with_purpose(purpose), deadline, generation })
            }
            _ => Err(format!("{} arguments for {count} keys", arguments.len())),
        }
    }

    /// Decodes a call of the merged script.
    pub fn decode_merged(call: &[&[u8]]) -> Result<Self, String> {
        let (mut keys, arguments) = keys_and_arguments(call)?;
        let (runs, purpose) = match arguments {
            [runs] => (runs, Purpose::Charge),
            [runs, b"r"] => (runs, Purpose::Reserve),
            _ => return Err("the arguments of a merged call".to_owned()),
        };
        let (mut fields, mut decoded) = (Fields(runs), Vec::new());
        while !fields.0.is_empty() {
            let (pairs, checks) = (fields.take(1)? as usize, fields.take(1)? as usize);
            if keys.len() < pairs {
                return Err("too few keys".to_owned());
            }
            let rest = keys.split_off(pairs);
            let deadlines = (0..checks).map(|_| fields.take(8)).collect::<Result<Vec<_>, _>>()?;
            let pairs: Result<Vec<_>, String> = keys.iter().map(|key| fields.pair(key)).collect();
            keys = rest;
            let generation = fields.take(7)?;
            let check = Check::new(pairs?).map_err(|error| error.to_string())?.with_purpose(purpose);
            if checks == 0 || !deadlines.is_sorted() {
                return Err("the deadlines of a run".to_owned());
            }
            decoded.push(Run { check, deadlines, generation });
        }
        let checks: usize = decoded.iter().map(|run| run.deadlines.len()).sum();
        if !keys.is_empty() || !(2..=64).contains(&checks) {
            return Err(format!("a merged call of {checks} checks"));
        }
        Ok(Self::Merged(decoded))
    }

    fn check(keys: &[String], argument: &[u8], purpose: Purpose) -> Result<Self, String> {
        let mut fields = Fields(argument);
        let deadline = fields.take(8)?;
        let mut pairs = Vec::new();
        for key in keys {
            pairs.push(fields.pair(key)?);
        }
        let generation = fields.take(7)?;
        fields.end()?;
        let check = Check::new(pairs).map_err(|error| error.to_string())?.with_purpose(purpose);
        Ok(Self::Check { check, deadline, generation })
    }

    fn refund(keys: &[String], argument: &[u8]) -> Result<Self, String> {
        let mut fields = Fields(argument);
        let deadline = fields.take(8)?;
        let mut refunds = Vec::new();
        for key in keys {
            let (units, window, typed_parameter) = (fields.take(4)? as u32, fields.take(6)?, fields.take(6)?);
            let (generation, at) = (fields.take(7)?, fields.take(7)?);
            let receipt = Receipt { generation, at, ordinal: fields.take(3)? as u32 };
            refunds.push(RefundOfPair { key: key.clone(), units, window, typed_parameter, receipt });
        }
        fields.end()?;
        Ok(Self::Refund { refunds, deadline })
    }
}

impl RefundOfPair {
    /// Returns the name of the quota policy.
    pub fn policy(&self) -> Result<String, String> {
        let pair = pair(&self.key, 1, 0, self.window, self.typed_parameter)?;
        Ok(pair.policy.name().to_owned())
    }

    /// Returns how many units are left of the charge of a pair, or an error if the receipt is of another pair.
    pub fn left(&self, of: &Pair) -> Result<u32, String> {
        let pair = pair(&self.key, of.policy.quota().unwrap(), 0, self.window, self.typed_parameter)?;
        if pair.key != of.key || pair.policy.name() != of.policy.name() {
            return Err("a receipt of another pair".to_owned());
        }
        of.cost.checked_sub(self.units).ok_or_else(|| "more than was charged".to_owned())
    }
}

/// Returns the keys and the arguments of a script call.
pub fn keys_and_arguments<'a, 'b>(call: &'a [&'b [u8]]) -> Result<(Vec<String>, &'a [&'b [u8]]), String> {
    let (count, rest) = call.split_first().ok_or("no number of keys")?;
    let count = text(count)?.parse().map_err(|_| "no number of keys")?;
    let (keys, arguments) = rest.split_at_checked(count).ok_or("too few keys")?;
    Ok((keys.iter().map(|key| text(key)).collect::<Result<Vec<_>, _>>()?, arguments))
}

/// Encodes the reply to a check. `receipts` are those of a reservation.
pub fn reply(decision: &Decision, reading: u64, receipts: Option<&[Receipt]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, status) in decision.statuses().iter().enumerate() {
        let (verdict, retry) = match status.retry_after() {
            Wait::For(Duration::ZERO) => (0, Duration::ZERO),
            Wait::For(wait) => (1, wait),
            _ => (2, Duration::ZERO),
        };
        bytes.extend(reading.to_le_bytes());
        bytes.push(verdict);
        bytes.extend(status.remaining().to_le_bytes());
        for wait in [retry, status.next_after(), status.reset_after()] {
            bytes.extend((wait.as_micros() as u64).to_le_bytes());
        }
        if let Some(receipts) = receipts {
            let Receipt { generation, at, ordinal } = receipts[i];
            bytes.extend(&generation.to_le_bytes()[..7]);
            bytes.extend(&at.to_le_bytes()[..7]);
            bytes.extend(&ordinal.to_le_bytes()[..3]);
        }
    }
    bytes
}

/// Decides the checks of a merged call one after another. Returns the reply without the reading of the clock.
pub fn merged_reply(
    runs: &[Run],
    mut decide: impl FnMut(&Run, u64) -> Result<(Verdict, Vec<u8>), String>,
) -> Result<Vec<u8>, String> {
    let mut reply = Vec::new();
    for run in runs {
        let (mut exceeded, mut admitted, mut last_admitted, mut denied) = (0, 0, Vec::new(), Vec::new());
        for deadline in &run.deadlines {
            let (verdict, statuses) = decide(run, *deadline)?;
            match verdict {
                Verdict::DeadlineExceeded => exceeded += 1,
                Verdict::Denied => denied = statuses,
                Verdict::Charged | Verdict::Overage => (admitted, last_admitted) = (admitted + 1, statuses),
            }
        }
        reply.extend([exceeded, admitted]);
        reply.extend([last_admitted, denied].concat());
    }
    Ok(reply)
}

/// Returns the pair that a key names, and checks that the arguments state the same window and algorithm.
fn pair(key: &str, quota: u32, cost: u32, window: u64, typed_parameter: u64) -> Result<Pair, String> {
    let name =
        KeyName::parse(key).filter(|name| name.version == 2).ok_or_else(|| format!("the key {key}"))?;
    // The type is above the 45 bits of its parameter.
    let algorithm = match (typed_parameter >> 45, typed_parameter % (1 << 45)) {
        (0, 0) => Algorithm::SlidingLog,
        (1, precision) => Algorithm::SlidingBuckets { precision: Duration::from_micros(precision) },
        (2, 0) => Algorithm::SlidingCounter,
        (3, 0) => Algorithm::FixedWindow,
        // The window is the number of parts of a unit, and the parameter the number that returns in a microsecond.
        (4, returned) => {
            Algorithm::TokenBucket { rate: Rate::new(returned as u32, Duration::from_micros(window)) }
        }
        _ => return Err(format!("the type and its parameter: {typed_parameter}")),
    };
    let window = Duration::from_micros(window);
    let states_type = match algorithm {
        Algorithm::TokenBucket { .. } => name.window.is_none(),
        algorithm => (name.window, name.algorithm) == (Some(window), algorithm),
    };
    if !states_type {
        return Err(format!("the key {key} for a window of {window:?} and {algorithm:?}"));
    }
    let policy = Policy::new(&name.policy, quota, window).and_then(|policy| policy.with_algorithm(algorithm));
    let key = PartitionKey::new("hash", name.hash.to_be_bytes());
    Ok(Pair::new(key, policy.map_err(|error| error.to_string())?, cost))
}

pub fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
}

/// A reader of consecutive little-endian numbers.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn pair(&mut self, key: &str) -> Result<Pair, String> {
        let (quota, cost) = (self.take(4)?, self.take(4)?);
        let (window, typed_parameter) = (self.take(6)?, self.take(6)?);
        pair(key, quota as u32, cost as u32, window, typed_parameter)
    }

    fn take(&mut self, bytes: usize) -> Result<u64, String> {
        let (field, rest) = self.0.split_at_checked(bytes).ok_or("the argument is too short")?;
        self.0 = rest;
        Ok(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn end(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err("the argument is too long".to_owned()) }
    }
}
