//! Measures a cluster with faults: checks across slots, dead and hung nodes, and settlements over a long round trip.

use std::time::Duration;

use crate::{
    Figure,
    cluster_rows::{
        checks_over_slots, healthy_checks_not_asked, lost_settlements, passes_beside_dead_slot,
        units_back_beside_hung_slot, units_of_honest_client, waits_of_hung_node,
    },
};

pub async fn figures() -> Vec<Figure> {
    let honest = units_of_honest_client().await;
    let denied = passes_beside_dead_slot(true).await;
    let filled = passes_beside_dead_slot(false).await;
    let not_asked = healthy_checks_not_asked(40).await;
    let hung = waits_of_hung_node(Duration::from_secs(5)).await.percentile(99);
    let back = units_back_beside_hung_slot().await;
    let (admitted, lost) = lost_settlements(Duration::from_secs(60)).await;
    let [one, others @ ..] = checks_over_slots().await;
    let trips = others.map(|time| format!("{:.1}", time.as_secs_f64() / one.as_secs_f64())).join(", ");
    vec![
        Figure::new(
            "cluster: units of an honest client beside an over-limit one, of 19",
            format!("{honest}"),
            "19",
            "19",
        ),
        Figure::new(
            "cluster: passes of 50, healthy slot denies, other slot dead",
            format!("{denied}"),
            "0",
            "0",
        ),
        Figure::new(
            "cluster: passes of 50, healthy slot has 10, other slot dead",
            format!("{filled}"),
            "10",
            "10",
        ),
        Figure::new(
            "cluster: checks of healthy nodes not asked, of 40, one dead",
            format!("{not_asked}"),
            "0",
            "0",
        ),
        Figure::new(
            "cluster: wait of 99 of 100 requests of a hung node",
            format!("{hung:.1?}"),
            "1 ms",
            "1 ms",
        ),
        Figure::new(
            "cluster: units back on the healthy slot, of 20, other slot hung",
            format!("{back}"),
            "20",
            "20",
        ),
        Figure::new(
            "settlements lost, 3,000 per second for 60 s, 20 ms away",
            format!("{lost} of {admitted}"),
            "0",
            "0",
        ),
        Figure::new("cluster: round trips of a check over 2, 3 and 4 slots", trips, "1 each", "1 each"),
    ]
}
