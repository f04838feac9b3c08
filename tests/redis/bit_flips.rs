//! Damaged values: one bit of a stored value is flipped. What the scripts detect is a foreign value. No flipped bit stops the
//! server, gives an invalid reply, or leads to a write before an error.
//!
//! A stored value has no checksum. So a flipped bit in an instant or in a count of units may change a decision. `lua/README.md`
//! states what the scripts detect.

use std::{collections::BTreeMap, time::Duration};

use redis::cmd;
use tokio::time::timeout;
use tower_sliding_window::{
    Decision, Policy, RedisBackend,
    backend::{Backend, BackendError, Purpose, Reason},
    testing::ManualClock,
};

use super::{
    admin::Admin,
    layout::{PLAIN_TOKENS_SIZE, SHORT_SIZE},
    rig::{Random, Reserved, check, every_form, reserve, with_manual_clock},
};
use crate::support::server::{Engine, Server};

/// Flipped bits for each algorithm and engine. `BIT_FLIPS` sets another number.
const FLIPS: u64 = 250;

const WINDOW: Duration = Duration::from_secs(60);

/// A field of the stored layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    Generation,
    /// An instant: of the last charge, of the newest or oldest record, of a record, or at which a token bucket expires.
    Instant,
    /// A start, a total, the usage of a calendar window, or the usage and the parts of a unit of a token bucket.
    Units,
    /// The number of records in front of the blocks.
    Front,
    /// The number of records.
    Count,
    /// The tree: the number of the first block, how many blocks may have a tag, and the units of those that cover the first one.
    Tree,
    /// The check of a short tail.
    Check,
}

/// What a flipped bit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    /// The reply is the same.
    None,
    Detected,
    /// Another decision with the same verdict.
    OtherNumbers,
    Denies,
    Admits,
}

/// A stored value and its expiry, as a command restores it.
struct Stored {
    key: String,
    dump: Vec<u8>,
}

impl Stored {
    fn of(admin: &mut Admin) -> Self {
        let key = admin.only_key();
        let dump = admin.query(&["DUMP", &key]);
        Self { key, dump }
    }

    fn restore(&self, admin: &mut Admin) {
        cmd("RESTORE")
            .arg(&self.key)
            .arg(7_200_000)
            .arg(&self.dump)
            .arg("REPLACE")
            .exec(&mut admin.0)
            .unwrap();
    }

    /// Flips a random bit, and returns its field.
    fn flip(&self, admin: &mut Admin, random: &mut Random) -> (Field, String) {
        let is_string = admin.query::<String>(&["TYPE", &self.key]) == "string";
        let (element, length) = if is_string {
            (0, 1)
        } else {
            let length: u64 = admin.query(&["LLEN", &self.key]);
            // The tail, which every call reads, as often as all blocks together.
            (if random.below(2) == 0 { length - 1 } else { random.below(length) }, length)
        };
        let index = element.to_string();
        let read: &[&str] = if is_string { &["GET", &self.key] } else { &["LINDEX", &self.key, &index] };
        let mut value: Vec<u8> = admin.query(read);
        let bit = random.below(8 * value.len() as u64) as usize;
        value[bit / 8] ^= 1 << (bit % 8);
        let mut write = if is_string { cmd("SET") } else { cmd("LSET") };
        write.arg(&self.key);
        if is_string {
            write.arg(&value).arg("KEEPTTL")
        } else {
            write.arg(index).arg(&value)
        };
        write.exec(&mut admin.0).unwrap();
        // The last instant, the usage, the parts of a unit and the instant at which the key expires.
        let is_plain = is_string && value.len() == PLAIN_TOKENS_SIZE;
        // The generation, the last instant, the usage and the check.
        let is_single = !is_string && element == length - 1 && value.len() == SHORT_SIZE;
        let is_header = is_string || is_single || element == length - 1 && bit / 8 < 42;
        let tree = !is_string && !is_single && element == length - 1 && (value.len() - 42) % 12 == 1;
        let field = match bit / 8 {
            0..7 | 20.. if is_plain => Field::Instant,
            _ if is_plain => Field::Units,
            byte if tree && byte >= value.len() - 13 => Field::Tree,
            // A tag.
            96.. if element < length - 1 => Field::Units,
            0..7 if is_header => Field::Generation,
            7..14 if is_header && (is_string || is_single) => Field::Instant,
            7..28 if is_header && !is_string && !is_single => Field::Instant,
            19.. if is_single => Field::Check,
            38 if is_header => Field::Front,
            39.. if is_header => Field::Count,
            _ if is_header => Field::Units,
            byte if (if element == length - 1 { byte - 42 } else { byte }) % 12 < 7 => Field::Instant,
            _ => Field::Units,
        };
        (field, format!("bit {bit} of element {element}"))
    }
}

/// Charges of several costs, some of which were refunded: at once, or in the middle of the log, by tags. The oldest are about to
/// leave the window.
async fn charge(backend: &RedisBackend, clock: &ManualClock, policies: &[Policy]) -> Vec<Reserved> {
    let mut charges = Vec::new();
    for i in 0..90_u64 {
        let charge = reserve(backend, policies, 1 + i as u32 % 2).await;
        if i % 7 == 5 {
            backend.refund(&charge.refund(0)).await.unwrap();
        }
        charges.push(charge);
        clock.advance(Duration::from_millis(560 * (i % 3)));
    }
    for charge in charges.iter().skip(2).step_by(7) {
        backend.refund(&charge.refund(0)).await.unwrap();
    }
    charges
}

/// Makes charges with receipts, and returns them. For a purpose without receipts, replaces them in the store by charges of this purpose.
async fn charge_for(
    admin: &mut Admin,
    backend: &RedisBackend,
    clock: &ManualClock,
    policies: &[Policy],
    purpose: Purpose,
) -> Vec<Reserved> {
    let charges = charge(backend, clock, policies).await;
    if purpose == Purpose::Charge {
        admin.query::<()>(&["FLUSHALL"]);
        for cost in [90, 7] {
            assert!(
                backend.check(&check(policies, cost, purpose)).await.unwrap().is_admitted(),
                "a charge fits"
            );
            clock.advance(Duration::from_millis(560));
        }
        let key = admin.only_key();
        assert_eq!(admin.query::<usize>(&["STRLEN", &key]), PLAIN_TOKENS_SIZE, "the form without receipts");
    }
    charges
}

/// Returns what a check says, without its clock reading.
fn said(outcome: &Result<Decision, BackendError>) -> Result<String, Reason> {
    match outcome {
        Ok(decision) => Ok(format!("{:?}", decision.statuses())),
        Err(error) => Err(error.reason()),
    }
}

fn effect(whole: &Result<Decision, BackendError>, damaged: &Result<Decision, BackendError>) -> Effect {
    let (Ok(before), Ok(after)) = (whole, damaged) else { return Effect::Detected };
    match (before.is_admitted(), after.is_admitted()) {
        _ if said(whole) == said(damaged) => Effect::None,
        (false, true) => Effect::Admits,
        (true, false) => Effect::Denies,
        _ => Effect::OtherNumbers,
    }
}

/// Returns a reply within a time in which no script may still run.
async fn answered<T>(reply: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), reply).await.expect("a script runs forever")
}

fn assert_detected(error: &BackendError, what: &str) {
    assert!(matches!(error.reason(), Reason::ForeignValue | Reason::Full), "{what}: {error:?}");
}

#[tokio::test]
async fn flipped_bit_gives_decision_or_error() {
    let flips = std::env::var("BIT_FLIPS").map_or(FLIPS, |number| number.parse().unwrap());
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        for (policy, form) in every_form(150, WINDOW) {
            let (backend, clock) = with_manual_clock(&server).await;
            admin.query::<()>(&["FLUSHALL"]);
            let policies = [policy];
            let charges = charge_for(&mut admin, &backend, &clock, &policies, form).await;
            let (stored, filled) = (Stored::of(&mut admin), clock.now_micros());
            let mut effects: BTreeMap<(Field, Effect), u32> = BTreeMap::new();
            let mut random = Random(7);
            for _ in 0..flips {
                // At most two windows later: nothing is used then.
                clock.set_micros(filled + random.below(2 * WINDOW.as_micros() as u64) * random.below(2));
                let purposes = [Purpose::Charge, Purpose::Reserve, Purpose::Peek, Purpose::Overage];
                let purpose = purposes[random.below(4) as usize];
                let cost = [0, 1, 5, 60, 151][random.below(5) as usize];
                let check = check(&policies, cost, purpose);

                stored.restore(&mut admin);
                let whole = answered(backend.check(&check)).await;
                stored.restore(&mut admin);
                let (field, what) = stored.flip(&mut admin, &mut random);
                let before = admin.value_and_expiry(&stored.key);
                let damaged = answered(backend.check(&check)).await;
                let what = format!("{engine:?} {policies:?} {purpose:?} {cost}: {what}, {field:?}");
                let effect = effect(&whole, &damaged);
                *effects.entry((field, effect)).or_default() += 1;
                if let Err(error) = &damaged {
                    assert_detected(error, &what);
                    assert_eq!(admin.value_and_expiry(&stored.key), before, "{what}");
                }
                match field {
                    Field::Generation => assert_eq!(said(&damaged), said(&whole), "{what}"),
                    Field::Front | Field::Count => assert_ne!(effect, Effect::Admits, "{what}"),
                    Field::Instant | Field::Units | Field::Tree | Field::Check => {}
                }
                // What the check has written is read again, by a refund and by a later check.
                let refunded = &charges[random.below(charges.len() as u64) as usize];
                let refund = answered(backend.refund(&refunded.refund(0))).await;
                clock.advance(Duration::from_micros(random.below(WINDOW.as_micros() as u64)));
                let later = answered(backend.check(&check)).await;
                for error in [refund.err(), later.err()].into_iter().flatten() {
                    assert_detected(&error, &what);
                }
            }
            eprintln!("{engine:?} {} {form:?}: {effects:?}", policies[0].name());
            // The scripts cannot detect these. Most of them deny.
            let [admits, denies] = [Effect::Admits, Effect::Denies].map(|effect| -> u64 {
                effects.iter().filter(|((_, of), _)| *of == effect).map(|(_, times)| u64::from(*times)).sum()
            });
            // The bucket without receipts is the only one here that denies a part of the costs, so more flips admit.
            let flips_of_one = if form == Purpose::Charge { 25 } else { 50 };
            assert!(admits <= denies && flips_of_one * admits <= flips, "{engine:?}: {effects:?}");
        }
        assert_eq!(admin.query::<String>(&["PING"]), "PONG", "the server still answers");
    }
}

/// A check just after the only charge has left its window looks for the next record, which a log of one charge does not have.
#[tokio::test]
async fn flipped_bit_of_only_charge_gives_decision_or_foreign_value() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    let mut detected = 0;
    for (policy, form) in every_form(150, WINDOW) {
        let (backend, clock) = with_manual_clock(&server).await;
        admin.query::<()>(&["FLUSHALL"]);
        let policies = [policy];
        assert!(backend.check(&check(&policies, 1, form)).await.unwrap().is_admitted(), "a charge fits");
        let (stored, left) = (Stored::of(&mut admin), clock.now_micros() + WINDOW.as_micros() as u64 + 10);
        let (check, mut random) = (check(&policies, 1, Purpose::Charge), Random(7));
        for _ in 0..1_000 {
            stored.restore(&mut admin);
            let (field, what) = stored.flip(&mut admin, &mut random);
            clock.set_micros(left);
            let outcome = answered(backend.check(&check)).await;
            let is_log = ["log", "buckets"].contains(&policies[0].name());
            let is_checked = is_log && field != Field::Generation;
            assert!(!is_checked || outcome.is_err(), "{policies:?}: {what}, {field:?}: not detected");
            if let Err(error) = outcome {
                assert_detected(&error, &format!("{policies:?}: {what}, {field:?}"));
                detected += 1;
            }
        }
    }
    assert!(detected > 0, "some of the damaged values are detected");
}
