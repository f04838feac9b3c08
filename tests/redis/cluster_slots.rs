//! Checks across the slots of a real cluster, with dead and hung nodes. The benchmark `outage` prints the same figures.

use std::time::Duration;

use crate::support::cluster_rows::{
    checks_over_slots, healthy_checks_not_asked, passes_beside_dead_slot, units_back_beside_hung_slot,
    units_of_honest_client, waits_of_hung_node,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_over_its_limit_starves_no_shared_key() {
    assert_eq!(units_of_honest_client().await, 19);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_slot_denies_beside_dead_slot() {
    assert_eq!(passes_beside_dead_slot(true).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_slot_fills_beside_dead_slot() {
    assert_eq!(passes_beside_dead_slot(false).await, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_node_stops_no_checks_of_healthy_nodes() {
    assert_eq!(healthy_checks_not_asked(10).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_hung_node_do_not_wait() {
    // On a busy machine a request that does not wait takes a few milliseconds. Of 100 requests, one may be a probe.
    let wait = waits_of_hung_node(2 * SECOND).await.percentile(98);
    assert!(wait < Duration::from_millis(20), "{wait:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_slot_delays_no_refund_or_reset() {
    assert_eq!(units_back_beside_hung_slot().await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_check_are_asked_concurrently() {
    let [one, .., four] = checks_over_slots().await;
    assert!(four < 2 * one, "one slot: {one:?}, four slots: {four:?}");
}
