//! The settlement of the tokens of a memory backend.

use super::{
    MemoryBackend,
    state::{MemoryState, Unreported},
};
use crate::{
    backend::{
        BackendError,
        tokens::{TokenOutcome, TokenPair, TokenSettlement, TokenStore},
    },
    check::{Check, Receipt, Refund},
    now_or_later::NowOrLater,
};

impl MemoryState {
    fn settle_token(
        &self,
        settlement: &TokenSettlement,
        unreported: &mut Unreported,
    ) -> Result<TokenOutcome, BackendError> {
        // Under this lock, so that the second of two settlements sees the first.
        let mut tokens = self.tokens.lock();
        if self.clock.now_micros() >= settlement.expires_at {
            return Ok(TokenOutcome::Expired);
        }
        let Some(charge) = tokens.get_mut(&settlement.id) else { return Ok(TokenOutcome::OtherMemory) };
        let Some((check, receipts)) = charge else { return Ok(TokenOutcome::Already) };
        let used: Vec<u32> = settlement.pairs.iter().map(|TokenPair { used, .. }| *used).collect();
        // Only an overage may fail. Then nothing has changed.
        let mut at = match check.overage(&used) {
            Some(overage) => self.decide(&overage, unreported)?.at_micros(),
            None => self.clock.now_micros(),
        };
        if let Some(refund) = Refund::new(check, receipts, &used) {
            at = self.refund(&refund);
        }
        *charge = None;
        Ok(TokenOutcome::Settled(at))
    }
}

impl TokenStore for MemoryBackend {
    fn add_token(&self, check: Check, receipts: Vec<Receipt>, expires_at: u64) -> Result<u64, BackendError> {
        let (id, mut tokens) = (self.0.generations.draw(), self.0.tokens.lock());
        tokens.make_room(self.0.clock.now_micros(), self.0.max_keys)?;
        tokens.insert(id, expires_at, Some((check, receipts)));
        Ok(id)
    }

    fn settle_token(&self, token: TokenSettlement) -> NowOrLater<Result<TokenOutcome, BackendError>> {
        let mut unreported = Unreported::default();
        let settled = self.0.settle_token(&token, &mut unreported);
        unreported.report();
        NowOrLater::now(settled)
    }
}
