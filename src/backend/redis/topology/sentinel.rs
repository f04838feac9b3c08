//! The primary behind Sentinels: the answers of the Sentinels, and the primary that a majority names.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    io,
    time::Duration,
};

use redis::{
    Client, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    from_redis_value, pipe,
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::endpoint::{Address, Endpoint};
use crate::{
    backend::redis::{error::without_arguments, tls},
    lock::Lock,
};

/// After the first answer, the backend waits at most this long for the other Sentinels.
const ANSWER_WAIT: Duration = Duration::from_millis(300);

/// Several Sentinels, and the service name under which they monitor the primary.
pub(super) struct Sentinels {
    /// The Sentinels that the caller has named.
    pub(super) named: Vec<ConnectionInfo>,
    /// Other Sentinels that answer, which the named ones have reported.
    pub(super) discovered: Lock<Vec<ConnectionInfo>>,
    pub(super) service: String,
    /// How to connect to the primary. The Sentinels supply its address.
    pub(super) primary: Endpoint,
}

/// The primary by the answer of one Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The number of the configuration. Every failover has a higher one.
    pub(super) epoch: u64,
    pub(super) address: Address,
}

/// The answer of one Sentinel.
#[derive(Clone, Debug, Default)]
pub(super) struct SentinelAnswer {
    /// The identity of the Sentinel. None before Redis 6.2, or without the permission.
    pub(super) id: Option<String>,
    /// The primary, or `None` if the Sentinel considers it down.
    pub(super) candidate: Option<Candidate>,
    /// The identities and addresses of the other Sentinels that it considers up.
    pub(super) others: Vec<(String, Address)>,
}

impl Sentinels {
    /// Returns the servers that may be the primary, the most probable first. The caller verifies their roles.
    ///
    /// All Sentinels are queried at once, and one that hangs does not delay the others: the answers are enough if most Sentinels
    /// agree. Then no other server is the primary.
    pub(super) async fn resolve(&self) -> RedisResult<Vec<Endpoint>> {
        let known: Vec<ConnectionInfo> =
            self.named.iter().cloned().chain(self.discovered.lock().iter().cloned()).collect();
        let query = |sentinel: &ConnectionInfo| query_once(sentinel.clone(), self.service.clone());
        let mut queries: JoinSet<RedisResult<SentinelAnswer>> = known.iter().map(query).collect();
        let (mut answers, mut end) = (Vec::<SentinelAnswer>::new(), None);
        let mut failure: RedisError =
            (ErrorKind::MasterNameNotFoundBySentinel, "no Sentinel has a primary that is up").into();
        loop {
            let candidates = candidates(&answers);
            // One Sentinel may have several addresses.
            let repeated = answers.len() - candidates.len();
            if let Some(primary) = agreed(&candidates, known.len() - repeated) {
                return Ok(vec![self.primary.with_address(&primary.address)]);
            }
            let answer = match end {
                Some(end) => timeout_at(end, queries.join_next()).await,
                None => Ok(queries.join_next().await),
            };
            match answer {
                Ok(Some(Ok(Ok(answer)))) => {
                    answers.push(answer);
                    end.get_or_insert(Instant::now() + ANSWER_WAIT);
                }
                Ok(Some(Ok(Err(error)))) => failure = error,
                // The task has panicked, or the runtime is shutting down.
                Ok(Some(Err(error))) => failure = io::Error::other(error).into(),
                Ok(None) | Err(_) => break,
            }
        }
        let candidates = rank(&candidates(&answers));
        if candidates.is_empty() {
            return Err(failure);
        }
        Ok(candidates.iter().map(|candidate| self.primary.with_address(&candidate.address)).collect())
    }
}

impl SentinelAnswer {
    /// Reads the replies to the commands of [`query`]. Only the first one is needed.
    fn read(replies: Vec<RedisResult<Value>>) -> RedisResult<Self> {
        let mut replies = replies.into_iter();
        let invalid =
            || RedisError::from((ErrorKind::UnexpectedReturnType, "invalid reply to SENTINEL MASTER"));
        let fields: HashMap<String, String> = from_redis_value(replies.next().ok_or_else(invalid)??)?;
        let mut optional = || replies.next().and_then(Result::ok);
        let current = optional().and_then(|address| from_redis_value(address).ok());
        let others =
            optional().and_then(|others| from_redis_value::<Vec<HashMap<String, String>>>(others).ok());
        let others = others.unwrap_or_default().iter().filter_map(other).collect();
        let id = optional().and_then(|id| from_redis_value(id).ok());
        Ok(Self { id, candidate: candidate(&fields, current).ok_or_else(invalid)?, others })
    }
}

/// Connects to a Sentinel, and queries it.
async fn query_once(sentinel: ConnectionInfo, service: String) -> RedisResult<SentinelAnswer> {
    tls::prepare(sentinel.addr());
    let connected = Client::open(sentinel)?.get_multiplexed_async_connection().await;
    query(&mut connected.map_err(without_arguments)?, &service).await
}

/// Queries a Sentinel for the primary and for the other Sentinels.
pub(super) async fn query(
    connection: &mut MultiplexedConnection,
    service: &str,
) -> RedisResult<SentinelAnswer> {
    let mut commands = pipe();
    // During a failover, only the second command names the new primary at once.
    for subcommand in ["MASTER", "GET-MASTER-ADDR-BY-NAME", "SENTINELS"] {
        commands.cmd("SENTINEL").arg(subcommand).arg(service);
    }
    commands.cmd("SENTINEL").arg("MYID");
    let replies = connection.req_packed_commands(&commands, 0, commands.len()).await?;
    SentinelAnswer::read(replies.into_iter().map(Value::extract_error).collect())
}

/// Parses the reply to `SENTINEL MASTER`. `current` is the address of the primary that a failover has promoted, or that of the same
/// server. Returns None if the reply is invalid, and `Some(None)` if the primary is down.
fn candidate(fields: &HashMap<String, String>, current: Option<Address>) -> Option<Option<Candidate>> {
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    let monitored = (fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?);
    let is_down = is_down(fields)? && current.as_ref().is_none_or(|current| *current == monitored);
    Some((!is_down).then(|| Candidate { epoch, address: current.unwrap_or(monitored) }))
}

fn is_down(fields: &HashMap<String, String>) -> Option<bool> {
    Some(fields.get("flags")?.split(',').any(|flag| ["s_down", "o_down"].contains(&flag)))
}

/// Parses an entry of the reply to `SENTINEL SENTINELS`. Returns None if it is invalid, or the Sentinel is down. Port 0 marks an address
/// at which another Sentinel is now.
fn other(fields: &HashMap<String, String>) -> Option<(String, Address)> {
    let address = (fields.get("ip")?.clone(), fields.get("port")?.parse().ok().filter(|port| *port != 0)?);
    (!is_down(fields)?).then_some((fields.get("runid")?.clone(), address))
}

/// Returns the candidates of different Sentinels.
pub(super) fn candidates<'a>(
    answers: impl IntoIterator<Item = &'a SentinelAnswer>,
) -> Vec<Option<Candidate>> {
    let mut ids = HashSet::new();
    let is_first = |answer: &&SentinelAnswer| answer.id.as_ref().is_none_or(|id| ids.insert(id.clone()));
    answers.into_iter().filter(is_first).map(|answer| answer.candidate.clone()).collect()
}

/// Returns the candidate that more than half of all known Sentinels name, if none names a newer one.
pub(super) fn agreed(answers: &[Option<Candidate>], known: usize) -> Option<&Candidate> {
    let newest =
        answers.iter().flatten().max_by_key(|candidate| (candidate.epoch, votes(answers, candidate)));
    newest.filter(|newest| votes(answers, newest) > known / 2)
}

/// Returns the candidates: first one that a majority of the answering Sentinels names, then by their epochs, the newest first.
fn rank(answers: &[Option<Candidate>]) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = answers.iter().flatten().cloned().collect();
    candidates.sort_by_key(|candidate| {
        let votes = votes(answers, candidate);
        Reverse((votes > answers.len() / 2, candidate.epoch, votes))
    });
    let mut ranked: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        if ranked.iter().all(|other| other.address != candidate.address) {
            ranked.push(candidate);
        }
    }
    ranked
}

fn votes(answers: &[Option<Candidate>], candidate: &Candidate) -> usize {
    answers.iter().flatten().filter(|other| *other == candidate).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(answers: &[(u64, &str)]) -> Vec<Option<Candidate>> {
        let candidate = |(epoch, host): &(u64, &str)| {
            let address = ((*host).to_owned(), 6379);
            (!host.is_empty()).then_some(Candidate { epoch: *epoch, address })
        };
        answers.iter().map(candidate).collect()
    }

    fn ranked(named: &[(u64, &str)]) -> Vec<String> {
        rank(&answers(named)).into_iter().map(|candidate| candidate.address.0).collect()
    }

    #[test]
    fn majority_ranks_before_epoch() {
        assert_eq!(ranked(&[(3, "a"), (4, "b"), (4, "b")]), ["b", "a"]);
        assert_eq!(ranked(&[(9, "a"), (4, "b"), (4, "b")]), ["b", "a"]);
        assert_eq!(ranked(&[(3, "a"), (4, "b")]), ["b", "a"], "no majority: the newest");
        assert_eq!(ranked(&[(3, "a"), (4, "a"), (5, "b")]), ["b", "a"]);
        assert_eq!(ranked(&[(3, ""), (3, ""), (4, "b")]), ["b"], "a primary that is down is no candidate");
        assert_eq!(ranked(&[]), [""; 0]);
    }

    #[test]
    fn agreement_needs_majority_of_all_sentinels() {
        let is_agreed = |named: &[(u64, &str)], sentinels| agreed(&answers(named), sentinels).is_some();
        assert!(is_agreed(&[(1, "a")], 1));
        assert!(!is_agreed(&[(1, "a")], 2));
        assert!(is_agreed(&[(1, "a"), (1, "a")], 3));
        assert!(is_agreed(&[(2, "b"), (2, "b"), (2, "a")], 3), "two of three name b");
        assert!(!is_agreed(&[(1, "a"), (1, "a"), (2, "b")], 3), "another one is newer");
        assert!(!is_agreed(&[(1, ""), (1, "")], 3));
    }

    #[test]
    fn answers_of_one_sentinel_count_once() {
        let answer =
            |id: Option<&str>| SentinelAnswer { id: id.map(str::to_owned), ..SentinelAnswer::default() };
        let two = [answer(Some("a")), answer(Some("a")), answer(Some("b"))];
        assert_eq!(candidates(&two).len(), 2, "a has two addresses");
        assert_eq!(candidates(&[answer(None), answer(None)]).len(), 2, "Sentinels without an identity");
    }

    fn fields(fields: &[(&str, &str)]) -> HashMap<String, String> {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn promoted_replica_replaces_primary_that_is_down() {
        let primary =
            fields(&[("ip", "a"), ("port", "6379"), ("flags", "o_down,master"), ("config-epoch", "8")]);
        let [old, new] = ["a", "b"].map(|host| (host.to_owned(), 6379));
        assert_eq!(candidate(&primary, Some(old)), Some(None), "no replica is promoted yet");
        let expected = Candidate { epoch: 8, address: new.clone() };
        assert_eq!(candidate(&primary, Some(new)), Some(Some(expected)));
    }

    #[test]
    fn reply_of_sentinel_is_parsed() {
        let reply = |parts: &[(&str, &str)]| candidate(&fields(parts), None);
        let fields = [("ip", "10.0.0.1"), ("port", "6379"), ("flags", "master"), ("config-epoch", "7")];
        let expected = Candidate { epoch: 7, address: ("10.0.0.1".to_owned(), 6379) };
        assert_eq!(reply(&fields), Some(Some(expected)));
        assert_eq!(reply(&[fields[0], fields[1], ("flags", "s_down,master")]), Some(None));
        assert_eq!(reply(&fields[1..]), None);
        assert_eq!(reply(&[fields[0], ("port", "x"), fields[2]]), None);
    }
}
