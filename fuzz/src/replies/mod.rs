//! Replies of a Redis server: any bytes, up to the decisions and the header fields.
//!
//! The first byte of the input is the operation and its conditions, and the second byte the pairs. The rest is what the server
//! answers: one chunk for each command, divided by the line `--`.
//!
//! The bit 128 of the first byte changes the operation: a check becomes several checks that share a call, and a limiter a lease
//! request.

use std::time::Duration;

use http::HeaderMap;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tower_sliding_window::{
    Algorithm, Decision, Limiter, PartitionKey, Policy, RedisBackend,
    answer::Dialect,
    backend::{Backend, Check, Pair, Purpose, Receipt, Refund},
    policy::Rate,
    redis::{Merging, RedisServers},
};

use reference::{Expected, payloads, read, read_merged};
use stream::{Handshake, Server};

mod reference;
mod stream;

pub(crate) const DICTIONARY: &[&[u8]] = &[
    b"\n--\n",
    b"\r\n",
    b"$37\r\n",
    b"$54\r\n",
    b"$74\r\n",
    b"$-1\r\n",
    b"$9223372036854775807\r\n",
    b"*1\r\n",
    b"*-1\r\n",
    b"*4294967296\r\n",
    b"%1\r\n",
    b"~1\r\n",
    b"|1\r\n",
    b">2\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"(123456789012345678901234567890\r\n",
    b",nan\r\n",
    b"#t\r\n",
    b"_\r\n",
    b":9223372036854775807\r\n",
    b":-1\r\n",
    b"$4\r\nfull\r\n",
    b"$8\r\n\xff\xff\xff\xff\xff\xff\xff\xff\r\n",
    b"-NOSCRIPT x\r\n",
    b"-MOVED 1 a:1\r\n",
    b"-ASK 1 :65536\r\n",
    b"-MOVED\r\n",
    b"-TRYAGAIN x\r\n",
    b"-READONLY x\r\n",
    b"-CROSSSLOT x\r\n",
    b"-CLUSTERDOWN x\r\n",
    b"-LOADING x\r\n",
    b"!10\r\nOOM denied\r\n",
    b"cluster_state:fail",
    b"redis_version:4.9",
];

/// The operation that uses a limiter.
const LIMITER: u8 = 7;

/// The conditions of an input, in the bits of its first byte.
#[derive(Clone, Copy)]
struct Conditions(u8);

impl Conditions {
    fn operation(self) -> u8 {
        self.0 & 7
    }

    /// The input is the payload of one bulk string.
    fn is_payload(self) -> bool {
        self.0 & 8 != 0
    }

    fn is_cluster(self) -> bool {
        self.0 & 16 != 0
    }

    fn handshake(self) -> Handshake {
        if self.0 & 32 != 0 { Handshake::Input } else { Handshake::Valid }
    }

    fn has_deadline(self) -> bool {
        self.0 & 64 != 0
    }

    /// The checks share a call.
    fn merges(self) -> bool {
        self.0 & 128 != 0 && self.operation() < 4
    }

    fn leases(self) -> bool {
        self.0 & 128 != 0 && self.operation() == LIMITER
    }

    fn deadline(self) -> Option<Instant> {
        self.has_deadline().then(|| Instant::now() + Duration::from_millis(100))
    }
}

pub(crate) fn run(data: &[u8]) {
    let [conditions, pairs, answer @ ..] = data else { return };
    let conditions = Conditions(*conditions);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        // Virtual time, which passes only while all tasks wait. A server may send a part of a reply and then nothing. A backend
        // waits for it until the caller gives up, and a limiter until its deadline.
        let hour = Duration::from_secs(3_600);
        let has_ended = timeout(hour, ask(conditions, *pairs, answer)).await.is_ok();
        let is_limiter = conditions.operation() == LIMITER && !conditions.leases();
        assert!(has_ended || !is_limiter, "a limiter waits for more than an hour");
    });
}

/// Returns a backend, and its server, which answers with the input.
fn backend(conditions: Conditions, answer: &[u8]) -> (RedisBackend, Server) {
    let chunks = if conditions.is_payload() {
        let payload = [format!("${}\r\n", answer.len()).as_bytes(), answer, b"\r\n"].concat();
        // The first check finds no other one in flight, and has a call of its own.
        let first = conditions.merges().then(|| b"$4\r\nfull\r\n".to_vec());
        first.into_iter().chain([payload]).collect()
    } else {
        chunks(answer)
    };
    let server = Server::new(conditions.handshake(), chunks);
    let of_backend = server.clone();
    let servers = if conditions.is_cluster() {
        let connect = move |_host, _port| std::future::ready(of_backend.connect());
        RedisServers::cluster_streams([("a", 1)], connect)
    } else {
        RedisServers::streams(move || std::future::ready(of_backend.connect()))
    };
    let merging = if conditions.merges() { Merging::On } else { Merging::default() };
    (RedisBackend::builder(servers).merging(merging).lazy().expect("servers"), server)
}

/// Divides the answer at the lines `--`.
fn chunks(answer: &[u8]) -> Vec<Vec<u8>> {
    const LINE: &[u8] = b"\n--\n";
    let (mut chunks, mut rest) = (Vec::new(), answer);
    while let Some(end) = rest.windows(LINE.len()).position(|line| line == LINE) {
        chunks.push(rest[..end].to_vec());
        rest = &rest[end + LINE.len()..];
    }
    chunks.push(rest.to_vec());
    chunks
}

/// Returns one to four pairs, by two bits for their number and one bit for each that is a shadow.
fn pairs(bits: u8) -> Vec<Pair> {
    let pair = |i: u8| {
        let algorithm = match i {
            1 => Algorithm::FixedWindow,
            2 => Algorithm::TokenBucket { rate: Rate::per_minute(10) },
            _ => Algorithm::SlidingLog,
        };
        let policy = Policy::new(["a", "b", "c", "d"][usize::from(i)], 10, Duration::from_secs(60));
        let policy = policy.and_then(|policy| policy.with_algorithm(algorithm)).expect("a valid policy");
        // In a cluster, other keys may be in other slots.
        let key = if bits & 64 != 0 { i } else { 0 };
        let pair = Pair::new(PartitionKey::new("user", [key]), policy, 2);
        if bits & (4 << i) != 0 { pair.shadow() } else { pair }
    };
    (0..=bits & 3).map(pair).collect()
}

async fn ask(conditions: Conditions, bits: u8, answer: &[u8]) {
    let (backend, server) = backend(conditions, answer);
    if conditions.merges() {
        return ask_merged(conditions, bits, backend, answer).await;
    }
    let check = Check::new(pairs(bits)).expect("different pairs");
    let purpose = match conditions.operation() {
        0 => Purpose::Charge,
        1 => Purpose::Reserve,
        2 => Purpose::Peek,
        3 => Purpose::Overage,
        4 => {
            let receipts = vec![Receipt::new(1, 2, 3); check.pairs().len()];
            let refund = Refund::new(&check, &receipts, &[0, 1, 0, 1]).expect("units to refund");
            let refund = refund.with_deadline(conditions.deadline());
            if let Ok(at) = backend.refund(&refund).await {
                assert!(has_number(&server.sent(), at), "no reply has the instant {at}");
            }
            return;
        }
        5 => return drop(backend.reset(&check.with_deadline(conditions.deadline())).await),
        6 => return drop(backend.verify().await),
        _ if conditions.leases() => Purpose::Lease,
        _ => return use_limiter(backend, &server, &check, answer).await,
    };
    let check = check.with_purpose(purpose).with_deadline(conditions.deadline());
    let outcome = backend.check(&check).await;
    if let Ok(decision) = &outcome {
        use_decision(decision);
    }
    // Also the answer CROSSSLOT leads to several calls.
    let slots = bits & 64 != 0 && (conditions.is_cluster() || !conditions.is_payload());
    let is_valid = conditions.handshake() == Handshake::Valid;
    match outcome.map(|decision| reference::expected(&decision)) {
        // Each slot has its own reply.
        Ok(decided) if slots => assert_has_admission(&decided, &server.sent(), &check),
        Ok(decided) if conditions.is_payload() => assert_eq!(Some(decided), read(answer, &check)),
        Ok(decided) => assert!(
            payloads(&server.sent()).any(|payload| read(payload, &check).as_ref() == Some(&decided)),
            "no reply has {decided:?}"
        ),
        Err(error) if conditions.is_payload() && is_valid && !slots => {
            assert_eq!(read(answer, &check), None, "{error:?}");
        }
        Err(_) => {}
    }
}

/// The costs of the checks that start at the same time. All after the first one share a call, in which those of an equal cost are a run.
const MERGED_COSTS: [u32; 5] = [2, 3, 2, 3, 3];

/// Returns a check that may share a call. Shadow pairs and several slots never do.
fn merged_check(conditions: Conditions, bits: u8, cost: u32) -> Check {
    let purpose = if conditions.operation() == 1 { Purpose::Reserve } else { Purpose::Charge };
    let pairs = pairs(bits & 3).into_iter().map(|pair| Pair::new(pair.key, pair.policy, cost));
    Check::new(pairs.collect::<Vec<_>>()).expect("different pairs").with_purpose(purpose)
}

/// Decides several checks of the same pairs in one call.
async fn ask_merged(conditions: Conditions, bits: u8, backend: RedisBackend, answer: &[u8]) {
    let check = |cost| merged_check(conditions, bits, cost);
    let mut checks = JoinSet::new();
    for (i, cost) in MERGED_COSTS.into_iter().enumerate() {
        let (backend, check) = (backend.clone(), check(cost).with_deadline(conditions.deadline()));
        checks.spawn(async move { (i, backend.check(&check).await) });
    }
    let mut outcomes = checks.join_all().await;
    outcomes.sort_by_key(|(i, _)| *i);
    let mut decided = Vec::new();
    for (_, outcome) in outcomes.into_iter().skip(1) {
        if let Ok(decision) = &outcome {
            use_decision(decision);
        }
        decided.push(outcome.ok().map(|decision| reference::expected(&decision)));
    }
    if conditions.is_payload() && conditions.handshake() == Handshake::Valid {
        // In the order of the first check of each run.
        let expected = read_merged(answer, &[(check(3), 3), (check(2), 1)]);
        let expected =
            expected.map_or_else(|| vec![None; 4], |of| [0, 3, 1, 2].map(|i| of[i].clone()).into());
        assert_eq!(decided, expected);
    }
}

/// Returns whether a reply is this number. The client crate ignores white space around it.
fn has_number(sent: &[Vec<u8>], value: u64) -> bool {
    let sent = sent.concat();
    let starts = (0..sent.len()).filter(|at| sent[*at] == b':').map(|at| &sent[at + 1..]);
    let mut numbers = starts.filter_map(|line| {
        let end = line.windows(2).position(|end| end == b"\r\n")?;
        str::from_utf8(&line[..end]).ok()?.trim().parse::<i64>().ok()
    });
    numbers.any(|number| u64::try_from(number) == Ok(value))
}

/// Asserts that each enforcing pair of an admission is in a reply that admits. The reply of a slot has some of the pairs.
fn assert_has_admission(decided: &Expected, sent: &[Vec<u8>], check: &Check) {
    if !decided.is_admitted() {
        return;
    }
    let payloads: Vec<&[u8]> = payloads(sent).collect();
    let pairs = check.pairs();
    for (i, _) in pairs.iter().enumerate().filter(|(_, pair)| !pair.is_shadow) {
        let is_admitted = (0..1 << pairs.len()).filter(|slot| slot & (1 << i) != 0).any(|slot| {
            let of_slot = pairs.iter().enumerate().filter(|(j, _)| slot & (1 << j) != 0);
            let of_slot: Vec<Pair> = of_slot.map(|(_, pair)| pair.clone()).collect();
            let part = Check::new(of_slot).expect("different pairs").with_purpose(check.purpose());
            payloads.iter().any(|payload| read(payload, &part).is_some_and(|read| read.is_admitted()))
        });
        assert!(is_admitted, "no reply admits pair {i}");
    }
}

/// Uses all methods of a limiter, one after the other. What the server has not admitted is not admitted.
async fn use_limiter(backend: RedisBackend, server: &Server, check: &Check, answer: &[u8]) {
    let builder = Limiter::builder(backend).policy(check.pairs()[0].policy.clone());
    let builder =
        check.pairs()[1..].iter().fold(builder, |builder, pair| builder.policy(pair.policy.clone()));
    let limiter = builder.build().expect("a limiter");
    let key = || PartitionKey::new("user", "a");
    let mut admitted = 0;
    if let Ok(reservation) = limiter.reserve((key(), 2)).await {
        admitted += 1;
        if let Some(decision) = reservation.decision() {
            use_decision(decision);
        }
        // It is sent in the background, and `drain` waits for it.
        drop(reservation.settle(if answer.len().is_multiple_of(2) { 0 } else { 7 }));
    }
    for purpose in [Purpose::Charge, Purpose::Peek, Purpose::Charge] {
        let outcome = match purpose {
            Purpose::Peek => limiter.peek(key()).await,
            _ => limiter.check(key()).await,
        };
        if let Ok(decision) = outcome {
            admitted += usize::from(decision.is_admitted());
            use_decision(&decision);
        }
    }
    admitted += usize::from(limiter.wait(key(), Duration::from_secs(5)).await.is_ok());
    drop(limiter.reset(key()).await);
    drop(limiter.admit(key()).await.map(|_| admitted += 1));
    limiter.drain().await;
    let (stats, denied) = (limiter.stats(), limiter.most_denied(8));
    assert_eq!(stats.lost_settlements, limiter.lost_settlements(), "{denied:?}");
    let admits = |payload: &[u8]| {
        // A limiter has no shadow pairs.
        let enforced: Vec<Pair> =
            check.pairs().iter().map(|pair| Pair::new(pair.key.clone(), pair.policy.clone(), 1)).collect();
        [Purpose::Charge, Purpose::Reserve].into_iter().any(|purpose| {
            let check = Check::new(enforced.clone()).expect("different pairs").with_purpose(purpose);
            read(payload, &check).is_some_and(|read| read.is_admitted())
        })
    };
    if admitted > 0 {
        assert!(payloads(&server.sent()).any(admits), "{admitted} admissions, and no reply admits");
    }
}

/// Uses everything that a layer does with a decision.
fn use_decision(decision: &Decision) {
    for dialect in [Dialect::Draft11, Dialect::XRateLimitByPolicy] {
        let mut headers = HeaderMap::new();
        dialect.add_fields(decision, &mut headers);
    }
    for status in decision.statuses() {
        assert!((0.0..=1.0).contains(&status.usage_fraction()));
    }
    assert!(!format!("{decision:?}").is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload that is malformed for the crate and for the reference would compare nothing.
    #[test]
    fn corpus_has_well_formed_merged_replies() {
        for (name, decisions) in [
            ("merged_admits_all", 4),
            ("merged_admits_some_of_two_pairs", 4),
            ("merged_reserves", 2),
            ("merged_full_and_error", 0),
            ("merged_in_cluster", 4),
        ] {
            let corpus = crate::driver::corpus("replies").unwrap();
            let (_, input) = corpus.iter().find(|(file, _)| file.ends_with(name)).expect(name);
            let (conditions, bits, payload) = (Conditions(input[0]), input[1], &input[2..]);
            let check = |cost| merged_check(conditions, bits, cost);
            let outcomes = read_merged(payload, &[(check(3), 3), (check(2), 1)]).expect(name);
            assert_eq!(outcomes.iter().flatten().count(), decisions, "{name}");
        }
    }
}
