//! Refunds in the middle of a log: they change few blocks, and no other charge.

use std::{collections::BTreeSet, time::Duration};

use super::{
    admin::Admin,
    layout::SHORT_SIZE,
    reference_log::ReferenceLog,
    rig::{Random, policy, with_manual_clock},
};
use crate::support::server::{Engine, Server};

const WINDOW: Duration = Duration::from_secs(1_000);
const MICROS: u64 = 1_000_000_000;
/// The time between one charge and the next, in microseconds.
const STEP: u64 = 1_000_003;

/// A log as it is stored.
struct StoredLog {
    /// The instant and the units of each record, oldest first.
    records: Vec<(u64, u64)>,
    /// The number of blocks with a tag.
    tags: usize,
}

fn number(bytes: &[u8]) -> u64 {
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(padded)
}

/// Reads a log by the layout that `lua/README.md` documents.
fn read_log(admin: &mut Admin, key: &str) -> StoredLog {
    const MODULUS: u64 = 1 << 40;
    let mut blocks: Vec<Vec<u8>> = admin.query(&["LRANGE", key, "0", "-1"]);
    let tail = blocks.pop().expect("a tail");
    if tail.len() == SHORT_SIZE {
        assert!(blocks.is_empty(), "{} blocks before the only record", blocks.len());
        return StoredLog { records: vec![(number(&tail[7..14]), number(&tail[14..19]))], tags: 0 };
    }
    let has_tree = (tail.len() - 42) % 12 == 1;
    let (tail, tree) = tail.split_at(tail.len() - if has_tree { 13 } else { 0 });
    let (first, tagged, first_added) = match tree {
        [] => (1, 0, 0),
        tree => (number(&tree[..5]), number(&tree[5..8]), number(&tree[8..])),
    };
    assert!(tagged <= blocks.len() as u64, "{tagged} blocks may have tags, of {}", blocks.len());
    assert!(has_tree == (tagged > 0), "a tree of {tagged} blocks");
    // A tag covers as many blocks, up to its own, as the largest power of two that divides its number.
    let tags: Vec<(u64, u64)> = (first..first + tagged)
        .zip(&blocks)
        .filter(|(_, block)| block.len() > 96)
        .map(|(node, block)| (node, number(&block[96..])))
        .collect();
    let added = |block: u64| -> u64 {
        let covers = |node: u64| node - (1 << node.trailing_zeros()) < block && block <= node;
        tags.iter().filter(|(node, _)| covers(*node)).map(|(_, units)| units).sum::<u64>() % MODULUS
    };
    assert_eq!(
        first_added,
        if tagged > 0 { added(first) } else { 0 },
        "the sum of the tags of the first block"
    );

    let record = |bytes: &[u8], added: u64| (number(&bytes[..7]), (number(&bytes[7..12]) + added) % MODULUS);
    let front = usize::from(tail[38] % 8);
    // The oldest record is in the header.
    let mut starts = vec![(number(&tail[21..28]), number(&tail[28..33]))];
    let (in_front, behind) = tail[42..].split_at(12 * front);
    starts.extend(in_front.chunks(12).map(|bytes| record(bytes, 0)));
    for (node, block) in (first..).zip(&blocks) {
        assert!(block.len() == 96 || block.len() == 101 && node < first + tagged, "{} bytes", block.len());
        starts.extend(block[..96].chunks(12).map(|bytes| record(bytes, added(node))));
    }
    starts.extend(behind.chunks(12).map(|bytes| record(bytes, 0)));
    assert_eq!(starts.len() as u64, number(&tail[39..42]), "the number of records");
    let ends = starts[1..].iter().map(|(_, start)| *start).chain([number(&tail[33..38])]);
    let records = starts.iter().zip(ends).map(|((at, start), end)| (*at, (MODULUS + end - start) % MODULUS));
    StoredLog { records: records.collect(), tags: tags.len() }
}

/// Asserts that a stored log holds the units of the model, and that every reply follows from them. Returns the number of tags.
async fn assert_same(reference: &mut ReferenceLog<'_>, admin: &mut Admin, waits: u64, what: &str) -> usize {
    reference.assert_matches_server(what, waits).await;
    let key = admin.only_key();
    let stored = read_log(admin, &key);
    let holders = |records: &[(u64, u64)]| -> Vec<(u64, u64)> {
        records.iter().copied().filter(|(_, units)| *units > 0).collect()
    };
    let expected = holders(&reference.charges);
    let oldest = expected.first().map_or(u64::MAX, |charge| charge.0);
    let live: Vec<_> = holders(&stored.records).into_iter().filter(|record| record.0 >= oldest).collect();
    assert_eq!(live, expected, "{what}: the stored records");
    stored.tags
}

/// Returns charges of 1 to 5 units, the last of which is at this instant or just before.
fn charges(last: u64, count: u64, per_instant: u64) -> Vec<(u64, u64)> {
    let instant = |i: u64| last - (count - 1) / per_instant * STEP + i / per_instant * STEP;
    (0..count).map(|i| (instant(i), 1 + i % 5)).collect()
}

#[tokio::test]
async fn random_refunds_change_their_charges_only() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let start = clock.now_micros();
        let (mut most_tags, mut sizes) = (0, BTreeSet::new());
        for history in 0..12 {
            let mut random = Random(history);
            let count = [49, 60, 120, 400][history as usize % 4];
            let mut reference = ReferenceLog::of(&backend, &clock, policy("p", 100_000, WINDOW));
            // The totals wrap among the charges.
            let charges = charges(start, count, 1 + history % 3);
            reference.write(&mut admin, (1 << 40) - count, charges).await;
            for step in 0..150 {
                let what = format!("{engine:?}, history {history}, step {step}");
                let len = reference.charges.len() as u64;
                match random.below(10) {
                    0..5 => {
                        let index = random.below(len) as usize;
                        let units = reference.charges[index].1;
                        // All units, or some of them.
                        let refunded = if random.below(2) == 0 { units } else { random.below(units + 1) };
                        if refunded > 0 {
                            reference.refund(index, refunded).await;
                        }
                    }
                    // The newest charges end the log earlier, and so cut blocks with tags.
                    5 if step % 3 == 0 => {
                        for index in (0..len as usize).rev().take(random.below(40) as usize) {
                            let units = reference.charges[index].1;
                            if units > 0 {
                                reference.refund(index, units).await;
                            }
                        }
                    }
                    // Some of the oldest records leave, or more than a charge deletes at once.
                    6 => {
                        let most = if random.below(4) == 0 { len - 1 } else { len / 8 };
                        let leaving = random.below(1 + most) as usize;
                        clock.set_micros(clock.now_micros().max(reference.charges[leaving].0 + MICROS));
                    }
                    _ => {
                        // A later instant: the model numbers the charges of an instant, also those that the log has dropped.
                        clock.advance(Duration::from_micros(1));
                        for _ in 0..random.below(12) {
                            clock.advance(Duration::from_micros(random.below(2) * STEP));
                            reference.charge(1 + random.below(5) as u32).await;
                        }
                    }
                }
                reference.expire();
                if reference.charges.is_empty() {
                    reference.charge(3).await;
                }
                let tags = assert_same(&mut reference, &mut admin, 3, &what).await;
                most_tags = most_tags.max(tags);
            }
            sizes.insert(reference.charges.len());
        }
        assert!(most_tags >= 10, "{engine:?}: a log had at most {most_tags} tags");
        assert!(sizes.len() > 6, "{engine:?}: {sizes:?}");
    }
}

/// A charge deletes a bounded number of blocks, so the log may begin with records that have left, or hold no units.
#[tokio::test]
async fn refund_of_all_live_charges_forgets_those_that_have_left() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let start = clock.now_micros();
        // A long log has the bound of a real clock.
        for (order, count) in [([0, 1], 60), ([1, 0], 60), ([0, 1], 40_000), ([1, 0], 40_000)] {
            let what = format!("{engine:?}, {count} records, order {order:?}");
            let mut reference = ReferenceLog::of(&backend, &clock, policy("p", 10_000, WINDOW));
            reference.write(&mut admin, 0, charges(start, count, count / 60)).await;
            // The first of the two stays when all others leave.
            clock.set_micros(start + MICROS - 1);
            reference.charge(1).await;
            clock.set_micros(start + MICROS + 1);
            reference.charge(1).await;
            assert_eq!(reference.charges.len(), 2);
            for index in order {
                reference.refund(index, 1).await;
                assert_same(&mut reference, &mut admin, 3, &what).await;
            }
            clock.advance(WINDOW / 2);
            reference.charge(4).await;
            assert_same(&mut reference, &mut admin, 3, &what).await;
        }
    }
}

/// Every charge is refunded once, in an order that ends far from where it began.
#[tokio::test]
async fn refund_of_every_charge_empties_log() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    let (backend, clock) = with_manual_clock(&server).await;
    let start = clock.now_micros();
    for stride in [1, 7, 101, 199] {
        let mut reference = ReferenceLog::of(&backend, &clock, policy("p", 10_000, WINDOW));
        reference.write(&mut admin, 0, charges(start, 200, 1)).await;
        for i in 0..200 {
            let index = (100 + i * stride) % 200;
            reference.refund(index, reference.charges[index].1).await;
            assert_same(&mut reference, &mut admin, 3, &format!("stride {stride}, {i} refunds")).await;
        }
        let key = admin.only_key();
        assert_eq!(admin.query::<usize>(&["LLEN", &key]), 1, "stride {stride}: the log is one element");
    }
}

/// In a log of 10,000 records, a refund in the middle changed 625 blocks before it used tags.
#[tokio::test]
async fn refund_writes_few_blocks() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    let (backend, clock) = with_manual_clock(&server).await;
    let mut reference = ReferenceLog::of(&backend, &clock, policy("p", 100_000, Duration::from_secs(20_000)));
    reference.write(&mut admin, 0, charges(clock.now_micros(), 10_000, 1)).await;
    // The tail, the block of the charge, and one block for each bit of its number.
    let most_written = 2 + 11;
    for index in (0..10_000).step_by(97) {
        let before = admin.calls("lset").all;
        reference.refund(index, 1).await;
        let written = admin.calls("lset").all - before;
        assert!(written <= most_written, "a refund of charge {index} wrote {written} elements");
    }
    assert_same(&mut reference, &mut admin, 20, "after the refunds").await;
}

/// Once the records of all blocks with tags have left, the log is stored as if there had been no refund.
#[tokio::test]
async fn tree_leaves_with_its_blocks() {
    let server = Server::start(Engine::Redis);
    let mut admin = Admin::at(&server);
    let (backend, clock) = with_manual_clock(&server).await;
    let mut reference = ReferenceLog::of(&backend, &clock, policy("p", 100_000, WINDOW));
    reference.write(&mut admin, 0, charges(clock.now_micros(), 100, 1)).await;
    reference.refund(50, 1).await;
    assert!(assert_same(&mut reference, &mut admin, 3, "a refund").await > 0, "the refund wrote no tag");
    for charge in 1..=60 {
        clock.set_micros(reference.charges[0].0 + MICROS);
        reference.charge(1).await;
        assert_same(&mut reference, &mut admin, 3, &format!("charge {charge}")).await;
    }
    let key = admin.only_key();
    assert_eq!(read_log(&mut admin, &key).tags, 0, "tags after their blocks have left");
    let tail: Vec<u8> = admin.query(&["LINDEX", &key, "-1"]);
    assert_eq!((tail.len() - 42) % 12, 0, "the tail has no tree");
}

/// The records in front of the blocks are all that is left: the blocks leave, and so does their place in the layout.
#[tokio::test]
async fn refund_of_all_records_behind_front_removes_blocks() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let mut admin = Admin::at(&server);
        let (backend, clock) = with_manual_clock(&server).await;
        let minute = policy("p", 1_000, Duration::from_secs(60));
        let mut reference = ReferenceLog::of(&backend, &clock, minute);
        let start = clock.now_micros();
        for second in 0..30 {
            clock.set_micros(start + second * 1_000_000);
            reference.charge(1).await;
        }
        // Four records have left, so four others of their block are the oldest one and those in front.
        clock.set_micros(start + 63_500_000);
        reference.charge(1).await;
        let newest = reference.charges.len() - 1;
        assert_eq!(newest, 26, "{engine:?}: the charges that count");
        for index in 2..=newest {
            reference.refund(index, 1).await;
        }
        let key = admin.only_key();
        assert_eq!(admin.query::<u32>(&["LLEN", &key]), 1, "{engine:?}: only the tail is left");
        assert_same(&mut reference, &mut admin, 2, "after the refunds").await;
        for _ in 0..20 {
            clock.advance(Duration::from_micros(1));
            reference.charge(1).await;
        }
        reference.refund(newest + 4, 1).await;
        assert_same(&mut reference, &mut admin, 9, "after more charges").await;
    }
}
