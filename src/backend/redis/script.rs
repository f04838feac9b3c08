//! The script, and the only place that knows its keys, its arguments and its reply; `lua/README.md` is the contract.

use std::{fmt::Write, time::Duration};

use redis::{Cmd, Value, cmd};
use sha2::{Digest, Sha256};

use crate::{
    backend::{BackendError, Reason},
    check::{Check, Pair},
    decision::{Decision, Status, Wait},
};

/// Changes whenever the meaning of a stored value does.
const STORAGE_VERSION: &str = "1";

/// The parts of the script after its clock.
macro_rules! script_on {
    ($clock:literal) => {
        concat!(
            include_str!(concat!("../../../lua/", $clock)),
            include_str!("../../../lua/log.lua"),
            include_str!("../../../lua/check.lua"),
        )
    };
}

/// The script that decides a check.
pub(super) struct Script {
    text: &'static str,
    sha1: String,
}

impl Script {
    pub(super) fn new() -> Self {
        Self::of(script_on!("clock.lua"))
    }

    /// The same script, but for its clock: it takes its instant from the arguments.
    #[cfg(feature = "test-util")]
    pub(super) fn with_injected_clock() -> Self {
        Self::of(script_on!("clock_injected.lua"))
    }

    fn of(text: &'static str) -> Self {
        Self { text, sha1: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Runs the script by its hash, which a server knows once it has seen the text.
    pub(super) fn by_hash(&self, call: &Call) -> Cmd {
        call.command("EVALSHA", &self.sha1)
    }

    /// Runs the script by its text, which the server then knows.
    pub(super) fn by_text(&self, call: &Call) -> Cmd {
        call.command("EVAL", self.text)
    }
}

/// Keys and arguments of one check.
pub(super) struct Call {
    keys: Vec<String>,
    pairs: Vec<u8>,
    /// Only for the script whose clock is injected.
    at_micros: Option<u64>,
}

impl Call {
    pub(super) fn new(check: &Check, at_micros: Option<u64>) -> Self {
        let mut pairs = Vec::with_capacity(16 * check.pairs().len());
        for Pair { policy, cost, .. } in check.pairs() {
            pairs.extend_from_slice(&policy.quota().to_le_bytes());
            pairs.extend_from_slice(&cost.to_le_bytes());
            pairs.extend_from_slice(&policy.window_micros().to_le_bytes());
        }
        Self { keys: check.pairs().iter().map(|pair| key(check, pair)).collect(), pairs, at_micros }
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.pairs).arg(self.at_micros);
        command
    }
}

/// The key of a pair: `namespace:version:{hash}:policy:algorithm:window`.
///
/// The hash of the partition key stands between braces, so all keys of one partition live in one slot of a cluster. It
/// is of fixed length: nothing that a client sends can end the braces, choose a slot, or fill memory.
fn key(check: &Check, pair: &Pair) -> String {
    let digest = Sha256::digest(pair.key.as_bytes());
    let mut key = String::with_capacity(128);
    key.push_str(check.namespace());
    key.push(':');
    key.push_str(STORAGE_VERSION);
    key.push_str(":{");
    // Half of the digest: 128 bits.
    for byte in &digest[..16] {
        // Writing into a string never fails.
        let _ = write!(key, "{byte:02x}");
    }
    let _ = write!(key, "}}:{}:log:{}", pair.policy.name(), pair.policy.window_micros());
    key
}

/// Reads the script's reply.
pub(super) fn decision(check: &Check, reply: &Value) -> Result<Decision, BackendError> {
    const DECIDED: u8 = 1;
    const FULL: u8 = 2;

    let broken = || BackendError::new(Reason::BrokenReply);
    let Value::BulkString(bytes) = reply else { return Err(broken()) };
    let mut fields = Fields(bytes);
    let (outcome, at_micros) = (fields.u8().ok_or_else(broken)?, fields.u64().ok_or_else(broken)?);
    match outcome {
        DECIDED => {}
        FULL => return Err(BackendError::new(Reason::Full)),
        _ => return Err(broken()),
    }
    let statuses = check.pairs().iter().map(|pair| status(pair, &mut fields));
    let statuses: Vec<Status> = statuses.collect::<Option<_>>().ok_or_else(broken)?;
    if !fields.0.is_empty() {
        return Err(broken());
    }
    Ok(Decision::new(at_micros, statuses))
}

fn status(pair: &Pair, fields: &mut Fields<'_>) -> Option<Status> {
    let (verdict, remaining) = (fields.u8()?, fields.u32()?);
    let (retry, next, reset) = (fields.micros()?, fields.micros()?, fields.micros()?);
    let retry_after = match verdict {
        0 => Wait::ZERO,
        // A wait of zero would be an admission.
        1 if !retry.is_zero() => Wait::For(retry),
        2 => Wait::Never,
        _ => return None,
    };
    Some(Status::new(pair, remaining, retry_after, next, reset))
}

/// Little-endian numbers, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn micros(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::PartitionKey, policy::Policy};

    fn check() -> Check {
        let policy = Policy::new("burst", 10, Duration::from_secs(1)).unwrap();
        Check::new([Pair::new(PartitionKey::new("user", "}{alice"), policy, 1)]).unwrap()
    }

    #[test]
    fn a_key_is_made_of_what_makes_a_pair_and_no_client_can_write_a_brace_into_it() {
        let check = check();
        assert_eq!(
            key(&check, &check.pairs()[0]),
            "tsw:1:{2d4cfc522819a2c3c1ae8f168eac7df8}:burst:log:1000000"
        );
    }

    #[test]
    fn a_reply_that_is_none_is_broken() {
        let check = check();
        let mut whole = vec![1];
        whole.extend_from_slice(&7_u64.to_le_bytes());
        whole.push(0);
        whole.extend_from_slice(&9_u32.to_le_bytes());
        whole.extend_from_slice(&[0; 24]);
        let reason =
            |bytes: &[u8]| decision(&check, &Value::BulkString(bytes.to_vec())).map_err(|e| e.reason());

        let decided = reason(&whole).unwrap();
        assert_eq!((decided.at_micros(), decided.statuses()[0].remaining()), (7, 9));
        for length in 0..whole.len() {
            assert_eq!(reason(&whole[..length]), Err(Reason::BrokenReply), "{length} bytes");
        }
        whole.push(0);
        assert_eq!(reason(&whole), Err(Reason::BrokenReply));
        whole.pop();
        whole[9] = 3;
        assert_eq!(reason(&whole), Err(Reason::BrokenReply));
        whole[9] = 1;
        assert_eq!(reason(&whole), Err(Reason::BrokenReply));
        whole[0] = 2;
        assert_eq!(reason(&whole), Err(Reason::Full));
        whole[0] = 0;
        assert_eq!(reason(&whole), Err(Reason::BrokenReply));
        assert_eq!(decision(&check, &Value::Nil).unwrap_err().reason(), Reason::BrokenReply);
    }
}
