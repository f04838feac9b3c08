//! The settlement of the tokens of a memory backend.

use super::{
    MemoryBackend,
    state::{MemoryState, Token, Tokens},
};
use crate::{
    backend::{
        BackendError, Reason,
        tokens::{TokenOutcome, TokenPair, TokenSettlement, TokenStore},
    },
    check::{Check, Receipt, Refund},
    now_or_later::NowOrLater,
};

impl MemoryState {
    fn settle_token(&self, settlement: &TokenSettlement) -> Result<TokenOutcome, BackendError> {
        // Under this lock, so that the second of two settlements sees the first.
        let mut tokens = self.tokens.lock();
        if self.clock.now_micros() >= settlement.expires_at {
            return Ok(TokenOutcome::Expired);
        }
        let Some(token) = tokens.by_id.get_mut(&settlement.id) else { return Ok(TokenOutcome::OtherMemory) };
        let Some((check, receipts)) = &token.charge else { return Ok(TokenOutcome::Already) };
        let used: Vec<u32> = settlement.pairs.iter().map(|TokenPair { used, .. }| *used).collect();
        // Only an overage may fail. Then nothing has changed.
        let mut at = match check.overage(&used) {
            Some(overage) => self.decide(&overage)?.at_micros(),
            None => self.clock.now_micros(),
        };
        if let Some(refund) = Refund::new(check, receipts, &used) {
            at = self.refund(&refund);
        }
        token.charge = None;
        Ok(TokenOutcome::Settled(at))
    }
}

impl TokenStore for MemoryBackend {
    fn add_token(&self, check: Check, receipts: Vec<Receipt>, expires_at: u64) -> Result<u64, BackendError> {
        let (id, mut tokens) = (self.0.generations.draw(), self.0.tokens.lock());
        let Tokens { by_id, sweep_at, first_expires_at } = &mut *tokens;
        let now = self.0.clock.now_micros();
        if by_id.len() >= self.0.max_keys.min(*sweep_at) && now >= *first_expires_at {
            by_id.retain(|_, token| token.expires_at > now);
            *first_expires_at = by_id.values().map(|token| token.expires_at).min().unwrap_or(u64::MAX);
            // The next search comes when as many were added as were kept.
            *sweep_at = 2 * by_id.len() + 64;
        }
        *first_expires_at = (*first_expires_at).min(expires_at);
        if by_id.len() >= self.0.max_keys {
            return Err(BackendError::new(Reason::Full));
        }
        by_id.insert(id, Token { expires_at, charge: Some((check, receipts)) });
        Ok(id)
    }

    fn settle_token(&self, token: TokenSettlement) -> NowOrLater<Result<TokenOutcome, BackendError>> {
        NowOrLater::now(self.0.settle_token(&token))
    }
}
