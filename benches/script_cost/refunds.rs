//! What it costs to give units back to one of 10,000 charges.

use crate::{
    measure::{Wire, key, median, pair, undisturbed},
    scripts::Texts,
};

const RECORDS: usize = 10_000;
const ROUNDS: u64 = 5;

/// Microseconds of a call.
#[derive(Debug)]
pub struct Refunds {
    pub newest: f64,
    pub newest_whole: f64,
    pub oldest: f64,
    pub oldest_whole: f64,
    pub middle: f64,
}

impl Refunds {
    pub fn measure(wire: &mut Wire, texts: &Texts, window: u64) -> Self {
        let mut space = 0xc << 32;
        let mut of = |times: usize, whole: bool, charge: &dyn Fn(usize, usize) -> usize| {
            let rounds = (0..ROUNDS).map(|_| {
                space += 1;
                let log = Log { space, window };
                let units = if whole { 1 } else { times as u32 + 1 };
                let records = if whole { RECORDS + times } else { RECORDS };
                let receipts = log.reserve(wire, texts, units, records);
                let refunded = (0..times).map(|time| &receipts[charge(time, records)]);
                log.refund(wire, texts, refunded)
            });
            median(rounds.collect())
        };
        Self {
            newest: of(1_000, false, &|_, records| records - 1),
            newest_whole: of(1_000, true, &|time, records| records - 1 - time),
            oldest: of(1_000, false, &|_, _| 0),
            oldest_whole: of(1_000, true, &|time, _| time),
            middle: of(20, false, &|_, records| records / 2),
        }
    }
}

struct Log {
    space: u64,
    window: u64,
}

impl Log {
    fn reserve(&self, wire: &mut Wire, texts: &Texts, units: u32, records: usize) -> Vec<Vec<u8>> {
        let key = key(self.space, 0);
        let hash = texts.of(crate::scripts::Design::Log).as_bytes();
        let arguments = pair(u32::MAX, units, self.window, 0);
        let mut receipts = Vec::new();
        while receipts.len() < records {
            for _ in 0..500 {
                wire.queue(&[b"EVALSHA", hash, b"1", key.as_bytes(), &arguments, b"r"]);
            }
            wire.send(|reply| receipts.push(reply[37..].to_vec()));
        }
        receipts
    }

    /// Gives back one unit of each.
    fn refund<'a>(
        &self,
        wire: &mut Wire,
        texts: &Texts,
        receipts: impl ExactSizeIterator<Item = &'a Vec<u8>>,
    ) -> f64 {
        let key = key(self.space, 0);
        let in_a_piece = receipts.len().div_ceil(20);
        wire.pieces();
        wire.queue_mark();
        for (number, receipt) in receipts.enumerate() {
            // A receipt goes back as it came.
            let one =
                [&1_u32.to_le_bytes()[..], &self.window.to_le_bytes()[..6], &[0; 6], &receipt[..]].concat();
            wire.queue(&[b"EVALSHA", texts.refund.as_bytes(), b"1", key.as_bytes(), &one]);
            if (number + 1) % in_a_piece == 0 {
                wire.queue_mark();
            }
            wire.send_if_much();
        }
        wire.send(|_| {});
        undisturbed(wire.pieces())
    }
}
