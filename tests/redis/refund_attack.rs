//! Refunds that one client causes, beside another service on the same server.

use crate::support::{
    refund_attack::{self, Outcome},
    server::{Engine, Server},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_of_one_client_delay_no_other_service() {
    let server = Server::start(Engine::Redis);
    let outcome = refund_attack::refund(&server.url(), 10_000, 1_000).await;
    let Outcome { undecided, lost, .. } = outcome;
    assert_eq!(
        (undecided, lost),
        (0, 0),
        "expected a decision for each check, and no lost refund: {outcome}"
    );
}
