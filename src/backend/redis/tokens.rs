//! The settlement of tokens: one call of the refund script for each partition key, which remembers that it was made.

use futures_util::future::join_all;

use super::{
    RedisBackend,
    command::Command,
    script::{self, Call, REFUND_PAIRS},
};
use crate::{
    backend::{
        BackendError,
        tokens::{TokenOutcome, TokenSettlement, TokenStore},
    },
    check::{Check, Receipt},
    key::{HashSecret, PartitionKey},
    now_or_later::NowOrLater,
};

impl TokenStore for RedisBackend {
    fn secret(&self) -> Option<&HashSecret> {
        self.names.secret()
    }

    fn key_id(&self, key: &PartitionKey) -> [u8; 16] {
        self.names.key_id(key)
    }

    fn add_token(&self, _: Check, _: Vec<Receipt>, _expires_at: u64) -> Result<u64, BackendError> {
        Ok(self.generations.draw())
    }

    /// Settles all parts at the same time. Each remembers that it is settled, so that one that has failed may be sent again.
    fn settle_token(&self, token: TokenSettlement) -> NowOrLater<Result<TokenOutcome, BackendError>> {
        let backend = self.clone();
        NowOrLater::Later(Box::pin(async move {
            let keys = token.pairs.chunk_by(|pair, next| pair.key_id == next.key_id);
            let parts = keys.flat_map(|pairs| pairs.chunks(REFUND_PAIRS)).enumerate();
            // The pairs of a part have one partition key, so they are in one slot.
            let calls = parts.map(async |(part, pairs)| {
                let generation = backend.generations.draw();
                let mut call = Call::settle_token(&token, part, pairs, generation, backend.injected_micros());
                let (slot, deadline) = (call.slot(), backend.on_server(Some(token.deadline)));
                let command = Command::Script(&backend.scripts.refund, &mut call);
                script::token_outcome(
                    &backend.repeat_in_slot(slot, command, deadline, Some(token.deadline)).await?,
                )
            });
            let outcomes = join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            Ok(outcomes.into_iter().max().unwrap_or(TokenOutcome::Expired))
        }))
    }
}
