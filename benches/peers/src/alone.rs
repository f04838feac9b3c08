//! The limiters without a layer: decisions per second, instructions and allocations.

use std::error::Error;

use crate::{
    Context,
    child::Child,
    comparison::Figure,
    count::{Cost, cost},
    drive::Load,
    limit::Limit,
    limiters::Bare,
    report::Report,
    table::{Rounds, keys, markdown, number, whole},
};

const DECISIONS: usize = 300_000;

/// Measures the limiters without a layer.
pub fn measure(context: &Context, report: &mut Report) -> Result<(), Box<dyn Error>> {
    report.section(
        "Limiters without a layer",
        &format!(
            "In memory, one thread, keys that are already made. Each cell is {} admitted decisions. With 100,000 keys, a third of the \
             decisions are the first ones of their key.",
            whole(DECISIONS as f64)
        ),
    );
    let mut rows = Vec::new();
    for number_of_keys in [1, 10_000, 100_000] {
        let mut rates = Bare::ALL.map(|_| Rounds::default());
        for _ in 0..context.rounds {
            for (rates, bare) in rates.iter_mut().zip(Bare::ALL) {
                let (took, _) = bare.run(Limit::admitting(1), DECISIONS, number_of_keys)?;
                rates.0.push(1e9 / took.as_nanos().max(1) as f64);
            }
        }
        let cell = keys(number_of_keys);
        compare(report, Figure::Time, &cell, rates.each_ref().map(|rates| rates.map(|rate| 1e9 / rate)));
        let heading = format!("decisions per second, {cell}");
        rows.push([heading].into_iter().chain(rates.iter().map(Rounds::with_spread)).collect());
    }
    let mut costs = [Cost::default(); Bare::ALL.len()];
    for (counted, bare) in costs.iter_mut().zip(Bare::ALL) {
        let load = Load {
            limit: Limit::admitting(1),
            requests: 10_000,
            made: 10_000,
            clients: 1,
            keys: 1,
            warm_up: 0,
        };
        *counted = cost(&Child { name: format!("{bare:?}"), url: String::new(), load })?;
    }
    for (figure, name, values) in [
        (Figure::Instructions, "instructions, 1 key", costs.map(|cost| cost.instructions)),
        (Figure::Allocations, "allocations, 1 key", costs.map(|cost| cost.allocations)),
    ] {
        compare(report, figure, "1 key", values.map(Rounds::exact));
        rows.push([name.to_owned()].into_iter().chain(values.map(number)).collect());
    }
    let heading: Vec<_> = ["figure"].into_iter().chain(Bare::ALL.map(Bare::name)).collect();
    report.text(&markdown(&heading, &rows));
    Ok(())
}

fn compare(report: &mut Report, figure: Figure, cell: &str, values: [Rounds; Bare::ALL.len()]) {
    let entries: Vec<_> =
        Bare::ALL.into_iter().zip(values).map(|(bare, rounds)| bare.entry(rounds)).collect();
    report.compare(figure, &format!("limiter without a layer, {cell}"), &entries);
}
