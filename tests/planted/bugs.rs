//! The bugs. In the new text, `PLANTED` stands for the condition that the bug is on.

/// A bug and its changes of the source.
pub struct Bug {
    pub name: &'static str,
    /// The rule that must find the bug.
    #[allow(dead_code, reason = "the build does not read it")]
    pub rule: &'static str,
    pub changes: &'static [Change],
}

/// The file below `src`, a text that occurs in it once, and the new text.
pub type Change = (&'static str, &'static str, &'static str);

const CROSS_SLOT: &str = "backend/redis/cross_slot.rs";
const CLUSTER: &str = "backend/redis/topology/cluster.rs";

pub const BUGS: &[Bug] = &[
    Bug {
        name: "a check asks its slots in order",
        rule: "SlotsAreAskedAtOnce",
        changes: &[(
            CROSS_SLOT,
            "Poll::Pending => is_complete = false,",
            "Poll::Pending if PLANTED => return Poll::Pending,
             Poll::Pending => is_complete = { false },",
        )],
    },
    Bug {
        name: "a check does not peek after a denial",
        rule: "PeeksAfterDenial",
        changes: &[(
            CROSS_SLOT,
            "let may_be_denied = check.hints.recently_denied.is_none_or(|denied| denied.contains(&true));",
            "let may_be_denied = !PLANTED && check.hints.recently_denied.is_none_or(|denied| denied.contains(&true));",
        )],
    },
    Bug {
        name: "a check drops a denial if another slot fails",
        rule: "DenialWins",
        changes: &[(
            CROSS_SLOT,
            "if has(|state| matches!(state, SlotState::Denied(_))) {",
            "let fails = has(|state| matches!(state, SlotState::Asked(_) | SlotState::Unknown(_)));
             if has(|state| matches!(state, SlotState::Denied(_))) && !(PLANTED && fails) {",
        )],
    },
    Bug {
        name: "a check does not ask the slots after one that fails",
        rule: "HealthySlotsAreAsked",
        changes: &[
            (
                CROSS_SLOT,
                "Poll::Pending => is_complete = { false },",
                "Poll::Pending if PLANTED => return Poll::Pending,
                 Poll::Pending => is_complete = false,",
            ),
            (
                CROSS_SLOT,
                "Poll::Ready(Err(error)) => *state = SlotState::Unknown(error),",
                "Poll::Ready(Err(error)) => {
                     *state = SlotState::Unknown(error);
                     if PLANTED {
                         return Poll::Ready(());
                     }
                 }",
            ),
        ],
    },
    Bug {
        name: "a refund and a reset stop at a slot that hangs",
        rule: "ChangesReachHealthySlots",
        changes: &[
            (
                CROSS_SLOT,
                "let instants = join_all(calls).await.into_iter()",
                "let mut in_order = Vec::new();
                 let mut calls = calls;
                 while PLANTED && let Some(call) = calls.next() {
                     in_order.push(call.await);
                 }
                 in_order.extend(join_all(calls).await);
                 let instants = in_order.into_iter()",
            ),
            (
                CROSS_SLOT,
                "join_all(calls).await.into_iter().collect()",
                "let mut in_order = Vec::new();
                 let mut calls = calls;
                 while PLANTED && let Some(call) = calls.next() {
                     in_order.push(call.await);
                 }
                 in_order.extend(join_all(calls).await);
                 in_order.into_iter().collect()",
            ),
        ],
    },
    Bug {
        name: "a rollback is lost and not counted",
        rule: "AllOrNothing",
        changes: &[(
            CROSS_SLOT,
            "let pairs: Vec<usize> = (0..refund.pairs().len()).collect();",
            "if PLANTED {
                 // As a rollback that waits behind the settlements of others, and is dropped.
                 let mut in_progress = rollback.rollbacks.in_progress.lock();
                 if in_progress.charged > 1 {
                     in_progress.remove(rollback.id);
                     return;
                 }
             }
             let pairs: Vec<usize> = (0..refund.pairs().len()).collect();",
        )],
    },
    Bug {
        name: "the first map of the slots wins",
        rule: "HealthyNodesDecide",
        changes: &[
            (CLUSTER, "while counted < wanted {", "while counted < if PLANTED { 1 } else { wanted } {"),
            (
                CLUSTER,
                "if self.state.lock().believes(&node, &report) {",
                "if PLANTED || self.state.lock().believes(&node, &report) {",
            ),
            (
                CLUSTER,
                ".filter(|(node, report)| state.believes(node, report))",
                ".filter(|(node, report)| PLANTED || state.believes(node, report))",
            ),
        ],
    },
    Bug {
        name: "a node that refuses commands is believed",
        rule: "HealthyNodesDecide",
        changes: &[
            (
                CLUSTER,
                "report.is_ok.unwrap_or_else(|| !self.has_refused(node))",
                "PLANTED || report.is_ok.unwrap_or_else(|| !self.has_refused(node))",
            ),
            (
                CLUSTER,
                "self.refused.get(node).is_some_and(|refused| refused.elapsed() < REFUSAL_AGE)",
                "!PLANTED && self.refused.get(node).is_some_and(|refused| refused.elapsed() < REFUSAL_AGE)",
            ),
        ],
    },
    Bug {
        name: "all nodes share one circuit breaker",
        rule: "HealthyNodesDecide",
        changes: &[
            (
                CLUSTER,
                "Server::new((self.target)(address), self.protection.clone(), format!(\"{host}:{port}\"))",
                "let server =
                     Server::new((self.target)(address), self.protection.clone(), format!(\"{host}:{port}\"));
                 if PLANTED { server.with_guard(&self.guard) } else { server }",
            ),
            // Otherwise, the first node that leaves would disable the circuit breaker of all.
            (CLUSTER, "server.guard().retire()", "if !PLANTED { server.guard().retire() }"),
            (CLUSTER, "if has_owners {", "if has_owners && !PLANTED {"),
            (
                "backend/redis/topology/server.rs",
                "    /// Returns the guard of the server, which outlives its connections.",
                "    pub(super) fn with_guard(self, guard: &Arc<Guard>) -> Self {
                 let mut shared = self.0;
                 if let Some(shared) = Arc::get_mut(&mut shared) {
                     shared.guard = guard.clone();
                 }
                 Self(shared)
             }

             /// Returns the guard of the server, which outlives its connections.",
            ),
        ],
    },
    Bug {
        name: "an attempt that is stuck is never replaced",
        rule: "Recovers",
        changes: &[
            (
                "single_flight.rs",
                "self.current.as_ref().filter(|current| now < current.until)",
                "self.current.as_ref().filter(|current| PLANTED || now < current.until)",
            ),
            (
                "backend/redis/topology/server.rs",
                "let outcome = timeout(CONNECT_TIMEOUT, connecting).await",
                "let limit = if PLANTED { Duration::MAX } else { CONNECT_TIMEOUT };
                 let outcome = timeout(limit, connecting).await",
            ),
        ],
    },
    Bug {
        name: "silence counts from an old command",
        rule: "HealthyConnectionsStay",
        changes: &[
            (
                "backend/redis/topology/pending.rs",
                "        state.counted_until = Some(now);
        self.on_drop = None;",
                "        if !PLANTED {
                 state.counted_until = Some(now);
             }
             self.on_drop = None;",
            ),
            (
                "backend/redis/topology/pending.rs",
                "        if state.waiting == 0 {",
                "        if state.waiting == 0 && !(PLANTED && state.counted_until.is_some()) {",
            ),
        ],
    },
    Bug {
        name: "settlements are sent one at a time",
        rule: "ChangesReachHealthySlots",
        changes: &[(
            "settle/queue.rs",
            "            max_workers,
            waiting: Lock::default(),",
            "            max_workers: if PLANTED { 1 } else { max_workers },
            waiting: Lock::default(),",
        )],
    },
    Bug {
        name: "a receipt refunds another generation",
        rule: "SettledOnce",
        changes: &[(
            "backend/generation.rs",
            "let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);",
            "if PLANTED {
                 return 0;
             }
             let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);",
        )],
    },
];

const BATCH: &str = "backend/redis/merge/batch.rs";
const FLIGHT: &str = "backend/redis/merge/flight.rs";
const MERGED: &str = "backend/redis/script/merged.rs";

/// The bugs of merged checks, which the simulation of one server must find.
pub const MERGING_BUGS: &[Bug] = &[
    Bug {
        name: "a dropped check of a merged call is not counted",
        rule: "UnansweredChecksAreCounted",
        changes: &[(BATCH, "if state.is_written {", "if state.is_written && !PLANTED {")],
    },
    Bug {
        name: "a merged call ends with its first caller",
        rule: "Recovers",
        changes: &[(
            FLIGHT,
            "caller.closed().await;",
            "caller.closed().await;
             if PLANTED {
                 break;
             }",
        )],
    },
    Bug {
        name: "a merged call that may have run is sent again",
        rule: "NoDoubleCharge",
        changes: &[(
            FLIGHT,
            "let sent = pin!(command.send(&self.connection, Instant::now()));",
            "let sent = pin!(async {
                 if PLANTED {
                     let first = command.send(&self.connection, Instant::now());
                     if let Ok(reply) = tokio::time::timeout(std::time::Duration::from_millis(25), first).await {
                         return reply;
                     }
                 }
                 command.send(&self.connection, Instant::now()).await
             });",
        )],
    },
    Bug {
        name: "a merged check has no deadline",
        rule: "NoChargeAfterDeadline",
        changes: &[(
            MERGED,
            "call.pairs.extend_from_slice(&check.deadline().to_le_bytes());",
            "let deadline = if PLANTED { u64::MAX } else { check.deadline() };
             call.pairs.extend_from_slice(&deadline.to_le_bytes());",
        )],
    },
    Bug {
        name: "a merged check gets the reply of another",
        rule: "DecisionsComeFromStore",
        changes: &[(
            FLIGHT,
            "let Checks { waiting, mut report } = checks;",
            "let Checks { waiting, mut report } = checks;
             let mut replies: Vec<_> = replies.into_iter().take(waiting.len()).collect();
             if PLANTED {
                 replies.reverse();
             }",
        )],
    },
];

const LEASED_PAIR: &str = "lease/leased_pair.rs";
const LEASE_REQUEST: &str = "lease/request.rs";
const TABLE: &str = "lease/table.rs";

/// The bugs of leases, which the simulation of leases must find.
pub const LEASE_BUGS: &[Bug] = &[
    Bug {
        name: "a lease is granted after its bucket",
        rule: "QuotaHolds",
        changes: &[(
            LEASED_PAIR,
            "drift::min_elapsed_elsewhere(end.saturating_sub(at))",
            "drift::min_elapsed_elsewhere(end.saturating_sub(at) + if PLANTED { 30_000 } else { 0 })",
        )],
    },
    Bug {
        name: "a unit of a lease is granted twice",
        rule: "QuotaHolds",
        changes: &[(
            LEASED_PAIR,
            "held.units -= pair.cost;",
            "held.units -= if PLANTED { pair.cost / 2 } else { pair.cost };",
        )],
    },
    Bug {
        name: "a granted unit of a lease is returned",
        rule: "UnitsAreAccounted",
        changes: &[(
            LEASED_PAIR,
            "policy: self.policy.clone(), receipt, units })",
            "policy: self.policy.clone(), receipt, units: units + u32::from(PLANTED) })",
        )],
    },
    Bug {
        name: "the units of a lease that has ended are forgotten",
        rule: "UnitsAreAccounted",
        changes: &[(
            TABLE,
            "            self.timers.add(at, pair);
        }
        self.return_units(leftovers);",
            "            self.timers.add(at, pair);
             }
             self.return_units(leftovers.into_iter().filter(|_| !PLANTED));",
        )],
    },
    Bug {
        name: "the units of the next bucket are forgotten",
        rule: "UnitsAreAccounted",
        changes: &[(
            LEASED_PAIR,
            "self.held = self.next.take();",
            "self.held = self.next.take().filter(|_| !PLANTED);",
        )],
    },
    Bug {
        name: "the units of a lease that comes too late are forgotten",
        rule: "UnitsAreAccounted",
        changes: &[(
            TABLE,
            "leftovers.extend(entry.answer(&answer, asked.as_ref()));",
            "leftovers.extend(entry.answer(&answer, asked.as_ref()).into_iter().filter(|_| !PLANTED));",
        )],
    },
    Bug {
        name: "a lease request without an answer is not counted",
        rule: "UnitsAreAccounted",
        changes: &[(
            LEASE_REQUEST,
            "self.leases.events.count(Counted::UnitsLost, units)",
            "self.leases.events.count(Counted::UnitsLost, if PLANTED { 0 } else { units })",
        )],
    },
    Bug {
        name: "a lease has no bound",
        rule: "LeaseWithinBound",
        changes: &[(
            LEASED_PAIR,
            ".min(bound.saturating_sub(held))",
            ".min(if PLANTED { u32::MAX } else { bound.saturating_sub(held) })",
        )],
    },
    Bug {
        name: "a lease takes the last units",
        rule: "LeaseWithinBound",
        changes: &[(
            LEASED_PAIR,
            "units.min(self.remaining / SHARE)",
            "units.min(if PLANTED { self.remaining } else { self.remaining / SHARE })",
        )],
    },
    Bug {
        name: "the remaining quota of a leased check excludes the lease",
        rule: "RemainingIncludesLease",
        changes: &[(
            LEASED_PAIR,
            "held.lowest.saturating_add(left)",
            "held.lowest.saturating_add(if PLANTED { 0 } else { left })",
        )],
    },
    Bug {
        name: "the remaining quota of a lease request excludes the lease",
        rule: "RemainingIncludesLease",
        changes: &[(
            LEASE_REQUEST,
            "status.clone().with_more(held.get(i).copied().unwrap_or_default());",
            "status.clone().with_more(if PLANTED { 0 } else { held.get(i).copied().unwrap_or_default() });",
        )],
    },
    Bug {
        name: "a lease outlives a reset",
        rule: "ResetEndsLease",
        changes: &[(
            TABLE,
            "if !leases.namespace.is_in_same_store(self.0.scope()) {",
            "if PLANTED || !leases.namespace.is_in_same_store(self.0.scope()) {",
        )],
    },
    Bug {
        name: "a lease that was requested before a reset outlives it",
        rule: "ResetEndsLease",
        changes: &[(
            LEASED_PAIR,
            "if is_over || asked.is_void {",
            "if is_over || asked.is_void && !PLANTED {",
        )],
    },
    Bug {
        name: "a lease outlives a changed quota",
        rule: "QuotaChangeEndsLease",
        changes: &[(
            LEASED_PAIR,
            "if self.policy.quota_units() != policy.quota_units() {",
            "if self.policy.quota_units() != policy.quota_units() && !PLANTED {",
        )],
    },
    Bug {
        name: "a shadow pair uses a lease",
        rule: "ShadowPairUsesNoLease",
        changes: &[(
            LEASE_REQUEST,
            "pair.cost > 0 && !pair.is_shadow;",
            "pair.cost > 0 && (PLANTED || !pair.is_shadow);",
        )],
    },
];

const TOKEN_BUCKET: &str = "backend/memory/token_bucket.rs";

/// The bugs of token buckets in memory, which the simulation of a bucket must find.
pub const TOKEN_BUGS: &[Bug] = &[
    Bug {
        name: "a bucket is full after a step of the clock back",
        rule: "QuotaHolds",
        changes: &[(
            TOKEN_BUCKET,
            "let Some(now) = monotonic_instant(clock, self.last, policy.window_micros()) else { return empty };",
            "let behind = if PLANTED { 0 } else { policy.window_micros() };
             let Some(now) = monotonic_instant(clock, self.last, behind) else { return empty };",
        )],
    },
    Bug {
        name: "a changed rate rounds the usage down",
        rule: "QuotaHolds",
        changes: &[(
            TOKEN_BUCKET,
            "let converted = (u128::from(used) * u128::from(to)).div_ceil(u128::from(from));",
            "let product = u128::from(used) * u128::from(to);
             let converted = if PLANTED { product / u128::from(from) } else { product.div_ceil(u128::from(from)) };",
        )],
    },
    Bug {
        name: "a charge forgets the time of a partial unit",
        rule: "QuotaHolds",
        changes: &[(
            TOKEN_BUCKET,
            "let used = used.saturating_sub((now - self.last).saturating_mul(returned));",
            "let used = used.saturating_sub((now - self.last).saturating_mul(returned));
             let used = if PLANTED { used / parts * parts } else { used };",
        )],
    },
];

/// The bugs of token buckets that the simulation of one server must find.
pub const SHARE_BUGS: &[Bug] = &[Bug {
    name: "a share of a bucket has the whole rate",
    rule: "SharesStayWithinQuota",
    changes: &[(
        "policy/mod.rs",
        "Algorithm::TokenBucket { rate } => {",
        "Algorithm::TokenBucket { rate } if !PLANTED => {",
    )],
}];
