//! The primary behind Sentinels.

use std::{cmp::Reverse, collections::HashMap, io, time::Duration};

use redis::{Client, ConnectionInfo, ErrorKind, RedisError, RedisResult, cmd};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::endpoint::{Address, Endpoint};
use crate::backend::redis::tls;

/// After the first answer, the backend waits at most this long for the other Sentinels.
const ANSWER_WAIT: Duration = Duration::from_millis(300);

/// Several Sentinels, and the service name under which they monitor the primary.
pub(super) struct Sentinels {
    sentinels: Vec<ConnectionInfo>,
    service: String,
    /// How to connect to the primary. The Sentinels supply its address.
    primary: Endpoint,
}

/// The primary by the answer of one Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    /// The number of the configuration. Every failover has a higher one.
    epoch: u64,
    address: Address,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<ConnectionInfo>, service: String, primary: Endpoint) -> Self {
        Self { sentinels, service, primary }
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Returns how to connect to the primary, without its current address.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.primary
    }

    /// Returns the servers that may be the primary, the most probable first. The caller verifies their roles.
    ///
    /// All Sentinels are queried at once, and one that hangs does not delay the others: the answers are enough if most Sentinels
    /// agree.
    pub(super) async fn resolve(&self) -> RedisResult<Vec<Endpoint>> {
        let query = |sentinel: &ConnectionInfo| query(sentinel.clone(), self.service.clone());
        let mut queries: JoinSet<RedisResult<Option<Candidate>>> = self.sentinels.iter().map(query).collect();
        let (mut answers, mut end) = (Vec::new(), None);
        let mut failure = RedisError::from((
            ErrorKind::MasterNameNotFoundBySentinel,
            "no Sentinel has a primary that is up",
        ));
        while !is_agreed(&answers, self.sentinels.len()) {
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
        let candidates = rank(&answers);
        if candidates.is_empty() {
            return Err(failure);
        }
        Ok(candidates.iter().map(|candidate| self.primary.with_address(&candidate.address)).collect())
    }
}

/// Queries a Sentinel for the primary. Returns None if the Sentinel considers it down.
async fn query(sentinel: ConnectionInfo, service: String) -> RedisResult<Option<Candidate>> {
    tls::prepare(sentinel.addr());
    let mut connection = Client::open(sentinel)?.get_multiplexed_async_connection().await?;
    let mut command = cmd("SENTINEL");
    command.arg("MASTER").arg(&service);
    candidate(&command.query_async(&mut connection).await?).ok_or_else(|| {
        RedisError::from((ErrorKind::UnexpectedReturnType, "invalid reply to SENTINEL MASTER"))
    })
}

/// Parses the reply to `SENTINEL MASTER`. Returns None if it is invalid, and `Some(None)` if the primary is down.
fn candidate(fields: &HashMap<String, String>) -> Option<Option<Candidate>> {
    let is_down = fields.get("flags")?.split(',').any(|flag| ["s_down", "o_down"].contains(&flag));
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    let address = (fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?);
    Some((!is_down).then_some(Candidate { epoch, address }))
}

/// Returns whether more than half of all Sentinels name the same candidate, and none names a newer one.
fn is_agreed(answers: &[Option<Candidate>], sentinels: usize) -> bool {
    let newest = answers.iter().flatten().max_by_key(|candidate| candidate.epoch);
    newest.is_some_and(|newest| votes(answers, newest) > sentinels / 2)
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
        let is_agreed = |named: &[(u64, &str)], sentinels| is_agreed(&answers(named), sentinels);
        assert!(is_agreed(&[(1, "a")], 1));
        assert!(!is_agreed(&[(1, "a")], 2));
        assert!(is_agreed(&[(1, "a"), (1, "a")], 3));
        assert!(!is_agreed(&[(1, "a"), (1, "a"), (2, "b")], 3), "another one is newer");
        assert!(!is_agreed(&[(1, ""), (1, "")], 3));
    }

    #[test]
    fn reply_of_sentinel_is_parsed() {
        let reply = |fields: &[(&str, &str)]| {
            candidate(&fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let fields = [("ip", "10.0.0.1"), ("port", "6379"), ("flags", "master"), ("config-epoch", "7")];
        let expected = Candidate { epoch: 7, address: ("10.0.0.1".to_owned(), 6379) };
        assert_eq!(reply(&fields), Some(Some(expected)));
        assert_eq!(reply(&[fields[0], fields[1], ("flags", "s_down,master")]), Some(None));
        assert_eq!(reply(&fields[1..]), None);
        assert_eq!(reply(&[fields[0], ("port", "x"), fields[2]]), None);
    }
}
