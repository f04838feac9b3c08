//! The summary for a person.

use std::cmp::Reverse;

use tower_sliding_window::Policy;

use crate::{
    log::time_text,
    plan::Plan,
    quota::Found,
    replay::{Named, Replay},
    share::Share,
    table::{count, key, percent, table, wait, window},
};

/// Returns the summary of a replay, with at most `top` keys in a list.
pub(crate) fn report(replay: &Replay<'_>, plan: &Plan, top: usize) -> String {
    let tally = &replay.tally;
    let mut text = format!(
        "{} by {} of {}, {} to {}\n",
        count(tally.requests, "request"),
        count(tally.keys.len() as u64, "key"),
        plan.key.join(" and "),
        time_text(tally.first_micros),
        time_text(tally.last_micros),
    );
    text += &named(&replay.skipped, "skipped", "");
    text += &named(&replay.without_key, "not limited", ": no key");
    text += &named(&replay.late, "moved to a later instant", ": more out of order than --reorder");
    if tally.undecided > 0 {
        let requests = count(tally.undecided, "request");
        text += &format!("{requests} without a decision: a sliding log holds 1048576 charges of a key\n");
    }
    format!(
        "{text}\n{}\n{}\n{}",
        policies(replay, plan),
        denied_keys(replay, plan, top),
        uses(replay, plan, top)
    )
}

/// Returns the first lines of a list, with the reasons.
fn named(lines: &Named, what: &str, why: &str) -> String {
    if lines.count == 0 {
        return String::new();
    }
    let mut text = format!("{} {what}{why}\n", count(lines.count, "line"));
    for (line, reason) in &lines.first {
        text += &format!("  line {line}: {reason}\n");
    }
    if lines.count > lines.first.len() as u64 {
        text += "  ...\n";
    }
    text
}

fn policies(replay: &Replay<'_>, plan: &Plan) -> String {
    let tally = &replay.tally;
    let keys =
        |is_denied: &dyn Fn(u8) -> bool| tally.keys.iter().filter(|key| is_denied(key.policies)).count();
    let mut rows = vec![["policy", "limit", "denied", "share", "keys", "longest wait"].map(str::to_owned)];
    for (index, (policy, counts)) in plan.policies.iter().zip(&tally.policies).enumerate() {
        let shadow = if policy.is_shadow() { " (shadow)" } else { "" };
        rows.push([
            format!("{}{shadow}", policy.name()),
            limit(policy, policy.quota().unwrap_or_default()),
            counts.denied.to_string(),
            percent(counts.denied, tally.requests),
            if policy.is_shadow() {
                "-".to_owned()
            } else {
                keys(&|bits| bits & 1 << index != 0).to_string()
            },
            wait(counts.longest),
        ]);
    }
    let longest = tally.keys.iter().map(|key| key.longest).max();
    rows.push([
        "together".to_owned(),
        String::new(),
        tally.denied.to_string(),
        percent(tally.denied, tally.requests),
        keys(&|bits| bits != 0).to_string(),
        longest.map_or_else(String::new, wait),
    ]);
    table(&rows, &[1])
}

fn denied_keys(replay: &Replay<'_>, plan: &Plan, top: usize) -> String {
    let mut keys: Vec<_> =
        replay.tally.keys.iter().zip(&replay.names.keys).filter(|(key, _)| key.denied > 0).collect();
    if keys.is_empty() {
        return "no request would have been denied\n".to_owned();
    }
    keys.sort_by_key(|(counts, key)| (Reverse(counts.denied), *key));
    let header = ["denied most", "denied", "of", "first", "last", "longest wait", "policies"];
    let mut rows = vec![header.map(str::to_owned)];
    for (counts, name) in keys.iter().take(top) {
        let denying = plan.policies.iter().enumerate().filter(|(index, _)| counts.policies & 1 << index != 0);
        rows.push([
            key(name),
            counts.denied.to_string(),
            counts.requests.to_string(),
            time_text(counts.first_micros),
            time_text(counts.last_micros),
            wait(counts.longest),
            denying.map(|(_, policy)| policy.name()).collect::<Vec<_>>().join(" "),
        ]);
    }
    table(&rows, &[6]) + &more(keys.len(), top)
}

/// Returns the keys of the highest use of each policy.
fn uses(replay: &Replay<'_>, plan: &Plan, top: usize) -> String {
    let mut text = "highest use of a key, if no request was denied\n".to_owned();
    let mut rows = Vec::new();
    for (index, policy) in plan.policies.iter().enumerate() {
        let uses = replay.demand.of_policy(index).zip(&replay.names.keys);
        let mut uses: Vec<_> = uses.filter(|(used, _)| *used > 0).collect();
        uses.sort_unstable_by_key(|(used, key)| (Reverse(*used), *key));
        for (rank, (used, name)) in uses.into_iter().take(top).enumerate() {
            let name = key(name);
            let quota = policy.quota().unwrap_or_default();
            rows.push(match rank {
                0 => {
                    [policy.name().to_owned(), used.to_string(), format!("of {}", limit(policy, quota)), name]
                }
                _ => [String::new(), used.to_string(), String::new(), name],
            });
        }
        if replay.demand.uncounted[index] > 0 {
            let uncounted = replay.demand.uncounted[index];
            rows.push([
                String::new(),
                String::new(),
                "not counted".to_owned(),
                format!("{}: a sliding log holds 1048576 charges of a key", count(uncounted, "request")),
            ]);
        }
    }
    text += &table(&rows, &[2, 3]);
    text
}

/// Returns the part about the smallest quotas.
pub(crate) fn quotas(found: &Found, plan: &Plan, share: Share, requests: u64) -> String {
    let allowed = share.of(requests as usize);
    let mut text = format!(
        "\nsmallest quota of each policy alone that denies at most {share} ({allowed} of {})\n",
        count(requests, "request")
    );
    let mut rows = Vec::new();
    for (policy, found) in plan.policies.iter().zip(&found.quotas) {
        rows.push(match found {
            Some((quota, denied)) => [
                policy.name().to_owned(),
                limit(policy, *quota),
                format!("denies {denied}"),
                percent(*denied, requests),
            ],
            None => {
                let none = "none: a sliding log holds 1048576 charges of a key".to_owned();
                [policy.name().to_owned(), none, String::new(), String::new()]
            }
        });
    }
    text += &table(&rows, &[1, 2]);
    let share = percent(found.together, requests);
    text + &format!("together, these quotas deny {} ({share})\n", count(found.together, "request"))
}

fn limit(policy: &Policy, quota: u32) -> String {
    format!("{quota} in {}", window(policy.window().unwrap_or_default()))
}

fn more(keys: usize, top: usize) -> String {
    match keys.checked_sub(top) {
        None | Some(0) => String::new(),
        Some(more) => format!("and {more} more\n"),
    }
}
