//! Instructions and allocations of a request, counted by valgrind.

use std::error::Error;

use crate::{
    child::Child,
    comparison::{Entry, Figure},
    count::{Cost, cost},
    drive::Load,
    limit::{Limit, Verdict},
    report::Report,
    server::Server,
    server_figures::flush,
    subject::Subject,
    table::{Rounds, markdown, number, policies},
};

/// Counts the layers in memory.
pub fn in_memory(report: &mut Report) -> Result<(), Box<dyn Error>> {
    report.subsection(
        "Instructions and allocations of a request in memory",
        &format!("One key, one thread. {MEANING}"),
    );
    table("memory", None, &[Subject::Inner], &Subject::IN_MEMORY, report)
}

/// Counts the layers on Redis: what the client needs.
pub fn on_redis(server: &Server, report: &mut Report) -> Result<(), Box<dyn Error>> {
    report.subsection(
        "Instructions and allocations of a request in the client of Redis",
        &format!(
            "One key, one thread, 64 in flight, with those of the runtime and of the client crate. {MEANING} Checks that share one call \
             share its cost, so the figures of this crate vary a little with the number of checks in a call."
        ),
    );
    let references = [Subject::Inner, Subject::Script];
    table("Redis", Some(server), &references, &Subject::ON_REDIS, report)
}

const MEANING: &str = "From the call of the layer to the drop of the response, with the drop of the request; in parentheses, over the \
    inner service alone. A denial does not call the inner service: to compare it with an admission, compare the whole requests, as the \
    column \"denied / admitted\" does. An allocation is a call of malloc, calloc, posix_memalign or realloc. Those of the header maps \
    count too.";

fn table(
    part: &str,
    server: Option<&Server>,
    references: &[Subject],
    subjects: &[Subject],
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let mut rows = Vec::new();
    let mut inner = None;
    for &reference in references {
        let counted = request(reference, Limit::admitting(1), server)?;
        let inner = inner.get_or_insert(counted);
        let mut row = vec![String::new(), reference.name().to_owned()];
        row.extend(cells(&[counted], (reference != Subject::Inner).then_some(*inner)));
        rows.push(row);
    }
    for number_of_policies in [1, 3] {
        let mut all = Vec::new();
        for &subject in subjects {
            let limit = |denies| Limit { policies: number_of_policies, denies };
            let both = [request(subject, limit(false), server)?, request(subject, limit(true), server)?];
            let mut row = vec![number_of_policies.to_string(), subject.name().to_owned()];
            row.extend(cells(&both, inner));
            rows.push(row);
            all.push((subject, both));
        }
        for verdict in Verdict::BOTH {
            let cell = format!("{part}, {}, {}", verdict.name(), policies(number_of_policies));
            let over_inner = |figure: fn(&Cost) -> f64| -> Vec<Entry> {
                let inner = figure(&inner.unwrap_or_default());
                let over = |both: &[Cost; 2]| Rounds::exact(figure(&both[verdict as usize]) - inner);
                all.iter().map(|(subject, both): &(Subject, _)| subject.entry(over(both))).collect()
            };
            let instructions = over_inner(|cost| cost.instructions);
            report.compare(Figure::Instructions, &cell, &instructions);
            report.compare(Figure::Allocations, &cell, &over_inner(|cost| cost.allocations));
            if number_of_policies == 1 {
                report.compare_types(Figure::Instructions, &cell, &instructions);
            }
        }
    }
    let heading = [
        "policies",
        "subject",
        "instructions, admitted",
        "instructions, denied",
        "denied / admitted",
        "allocations, admitted",
        "allocations, denied",
    ];
    report.text(&markdown(&heading, &rows));
    Ok(())
}

/// Formats the costs of an admitted request and, for a limiter, of a denied one.
fn cells(counted: &[Cost], inner: Option<Cost>) -> [String; 5] {
    let [admitted, denied] = [counted.first(), counted.get(1)];
    let instructions = |cost: Option<&Cost>| {
        let over = cost.zip(inner).map(|(cost, inner)| cost.instructions - inner.instructions);
        let over = over.map(|over| format!(" ({})", number(over))).unwrap_or_default();
        cost.map(|cost| number(cost.instructions) + &over).unwrap_or_default()
    };
    let allocations = |cost: Option<&Cost>| cost.map(|cost| number(cost.allocations)).unwrap_or_default();
    let ratio = admitted.zip(denied).map(|(admitted, denied)| denied.instructions / admitted.instructions);
    [
        instructions(admitted),
        instructions(denied),
        ratio.map(number).unwrap_or_default(),
        allocations(admitted),
        allocations(denied),
    ]
}

fn request(subject: Subject, limit: Limit, server: Option<&Server>) -> Result<Cost, Box<dyn Error>> {
    let (clients, requests) = if server.is_some() { (64, 50) } else { (1, 5_000) };
    // The second request of a key is the first denied one, which no cache of denials can answer.
    let load = Load { limit, requests, made: requests, clients, keys: 1, warm_up: 2 };
    server.map_or(Ok(()), flush)?;
    cost(&Child { name: format!("{subject:?}"), url: server.map(Server::url).unwrap_or_default(), load })
}
