//! Shadow pairs: they count, and take no part in the verdict.

use tower_sliding_window::{
    Decision, Wait,
    backend::{Backend, Check, Purpose, Receipt, Refund},
};

use super::{Bench, NO_CHARGE, edges, every_policy, policy};

/// Returns how much of each quota remains.
fn remaining(decision: &Decision) -> Vec<u32> {
    decision.statuses().iter().map(|status| status.remaining()).collect()
}

/// Returns the names of the shadow policies that would have denied.
fn shadow_denied(decision: &Decision) -> Vec<&str> {
    decision.shadow_denied().map(|status| status.policy().name()).collect()
}

/// Reserves these pairs, and returns what `settle` needs.
fn reserved<B: Backend>(bench: &Bench<B>, check: Check) -> (Check, Vec<Receipt>) {
    let check = check.with_purpose(Purpose::Reserve);
    let decision = bench.run_check(&check);
    assert!(decision.is_admitted(), "{decision:?}");
    let receipts = decision.receipts().to_vec();
    assert_eq!(receipts.len(), check.pairs().len(), "a receipt for each pair");
    (check, receipts)
}

edges! {
    shadow_pair_is_charged_where_it_fits: |bench| {
        for two in every_policy("two", 2) {
            let (five, two) = (policy("five", 5), two.shadow());
            bench.reset(&[("a", &five, 0), ("a", &two, 0)]);
            bench.move_clock_to_edge(super::WINDOW, 0);
            // The order of the pairs makes no difference.
            let first = bench.check(&[("a", &two, 1), ("a", &five, 1)]);
            assert_eq!((first.is_admitted(), remaining(&first)), (true, vec![1, 4]), "{two:?}: both pairs are charged");
            let second = bench.check(&[("a", &five, 1), ("a", &two, 1)]);
            assert_eq!(
                (remaining(&second), shadow_denied(&second)), (vec![3, 0], vec![]),
                "{two:?}: the shadow pair has room for two units"
            );
            let third = bench.check(&[("a", &five, 1), ("a", &two, 1)]);
            assert_eq!((third.is_admitted(), third.retry_after()), (true, Wait::ZERO), "{two:?}: a shadow pair denies no check");
            assert_eq!(
                (remaining(&third), shadow_denied(&third)), (vec![2, 0], vec!["two"]),
                "{two:?}: the shadow pair is not charged"
            );
            assert_eq!(third.violated().count(), 0, "{two:?}: a shadow pair violates no policy");
            let flags: Vec<bool> = third.statuses().iter().map(|status| status.is_shadow()).collect();
            assert_eq!(flags, [false, true], "{two:?}: the statuses are in the order of the pairs");
            // Its wait is exact.
            let Wait::For(wait) = third.statuses()[1].retry_after() else { panic!("no wait helps") };
            bench.move_clock(wait.as_micros() as i64 - 1);
            assert_eq!(
                shadow_denied(&bench.check(&[("a", &five, 0), ("a", &two, 1)])), ["two"],
                "{two:?}: the wait has not passed"
            );
            bench.move_clock(1);
            assert_eq!(
                shadow_denied(&bench.check(&[("a", &five, 0), ("a", &two, 1)])), Vec::<&str>::new(),
                "{two:?}: the wait has passed"
            );
        }
    }

    denied_check_charges_no_shadow_pair: |bench| {
        let (one, ten) = (policy("one", 1), policy("ten", 10).shadow());
        let pairs = [("a", &ten, 1), ("a", &one, 1)];
        assert!(bench.check(&pairs).is_admitted(), "both pairs fit");
        for purpose in [Purpose::Charge, Purpose::Reserve, Purpose::Peek] {
            let denied = bench.check_as(purpose, &pairs);
            assert!(!denied.is_admitted() && denied.receipts().is_empty(), "{purpose:?}: the enforcing pair denies");
            assert_eq!(
                denied.violated().map(|policy| policy.name()).collect::<Vec<_>>(), ["one"],
                "{purpose:?}: only the enforcing policy is violated"
            );
            assert_eq!(remaining(&denied), [9, 0], "{purpose:?}");
        }
    }

    check_of_shadow_pairs_only_is_admitted: |bench| {
        let (one, two) = (policy("one", 1).shadow(), policy("two", 2).shadow());
        let pairs = [("a", &one, 1), ("b", &two, 1)];
        let decisions = [(); 3].map(|()| bench.check(&pairs));
        assert!(decisions.iter().all(Decision::is_admitted), "shadow pairs deny no check");
        assert_eq!(decisions.each_ref().map(remaining), [[0, 1], [0, 0], [0, 0]], "a pair without room is not charged");
        assert_eq!(decisions.each_ref().map(|it| shadow_denied(it).len()), [0, 1, 2], "one more pair has no room each time");
    }

    enforced_policy_keeps_usage_of_shadow: |bench| {
        for policy in every_policy("two", 2) {
            bench.reset(&[("a", &policy, 0)]);
            let shadow = policy.clone().shadow();
            for _ in 0..3 {
                assert!(bench.admits("a", &shadow, 1), "{policy:?}: a shadow policy denies no check");
            }
            assert_eq!(bench.used("a", &policy), 2, "{policy:?}: the shadow usage counts, up to the quota");
            assert!(!bench.admits("a", &policy, 1), "{policy:?}: the enforced quota is used");
            assert!(bench.admits("a", &shadow, 1), "{policy:?}: a shadow policy denies no check");
        }
    }

    cost_above_shadow_quota_is_admitted: |bench| {
        let (ten, two) = (policy("ten", 10), policy("two", 2).shadow());
        let decision = bench.check(&[("a", &ten, 3), ("a", &two, 3)]);
        assert!(decision.is_admitted(), "the enforcing pair fits");
        assert_eq!((decision.retry_after(), remaining(&decision)), (Wait::ZERO, vec![7, 2]), "the shadow pair is not charged");
        assert_eq!(decision.statuses()[1].retry_after(), Wait::Never, "no wait helps the shadow pair");
    }

    peek_and_reset_include_shadow_pairs: |bench| {
        let (five, two) = (policy("five", 5), policy("two", 2).shadow());
        let pairs = [("a", &five, 2), ("a", &two, 2)];
        assert_eq!(remaining(&bench.check_as(Purpose::Peek, &pairs)), [3, 0], "a peek reports what a charge would");
        assert_eq!(remaining(&bench.check(&pairs)), [3, 0], "the peek has charged nothing");
        let peek = bench.check_as(Purpose::Peek, &pairs);
        assert_eq!(
            (peek.is_admitted(), remaining(&peek), shadow_denied(&peek)), (true, vec![1, 0], vec!["two"]),
            "the shadow pair has no room"
        );
        bench.reset(&pairs);
        assert_eq!(remaining(&bench.check(&pairs)), [3, 0], "the reset has restored both quotas");
    }

    settlement_changes_charged_shadow_pairs: |bench| {
        for two in every_policy("two", 2) {
            let (five, two) = (policy("five", 5), two.shadow());
            let pairs = [("a", &two, 1), ("a", &five, 1)];
            bench.reset(&pairs);
            let used = || [bench.used("a", &two), bench.used("a", &five)];
            let smaller = reserved(bench, bench.build_check(&pairs));
            let larger = reserved(bench, bench.build_check(&pairs));
            bench.settle(&smaller, &[0, 0]);
            assert_eq!(used(), [1, 1], "{two:?}: the smaller reservation is refunded in both pairs");
            bench.settle(&larger, &[4, 4]);
            assert_eq!(used().map(|used| used > 1), [true, true], "an overage");
            assert_eq!(
                bench.check(&[("a", &two, 1)]).statuses()[0].remaining(), 0,
                "{two:?}: the overage has used the shadow quota"
            );
        }
    }

    uncharged_shadow_pair_has_no_receipt: |bench| {
        for one in every_policy("one", 1) {
            let (five, one) = (policy("five", 5), one.shadow());
            let pairs = [("a", &one, 1), ("a", &five, 1)];
            bench.reset(&pairs);
            assert!(bench.check(&pairs).is_admitted(), "{one:?}: both pairs fit");
            let reservation = reserved(bench, bench.build_check(&pairs));
            assert_eq!(reservation.1[0], NO_CHARGE, "{one:?}: the shadow pair is not charged");
            assert_ne!(reservation.1[1], NO_CHARGE, "{one:?}: the enforcing pair is charged");
            let refund = Refund::new(&reservation.0, &reservation.1, &[0, 0]).unwrap();
            assert_eq!(
                refund.pairs().iter().map(|pair| pair.policy.name()).collect::<Vec<_>>(), ["five"],
                "{one:?}: only the charged pair is refunded"
            );
            bench.settle(&reservation, &[0, 0]);
            assert_eq!([bench.used("a", &one), bench.used("a", &five)], [1, 1], "{one:?}: the first check remains charged");
        }
    }

    shadow_denies_what_enforced_policy_would_deny: |bench| {
        // The same admitted traffic under two names: one is a shadow, and the other decides alone.
        for two in every_policy("two", 2) {
            let (shadow, alone) = (two.clone().shadow(), two);
            bench.reset(&[("a", &shadow, 0), ("b", &alone, 0)]);
            bench.move_clock_to_edge(super::WINDOW, 0);
            for step in [0, 1, 4_000, 1, 5_999, 0, 1, 3_000, 9_000] {
                bench.move_clock(step);
                let shadow_wait = bench.check(&[("a", &shadow, 1)]).statuses()[0].retry_after();
                assert_eq!(
                    shadow_wait, bench.check(&[("b", &alone, 1)]).retry_after(),
                    "{alone:?}, {step} us later: a shadow policy waits as an enforced one"
                );
            }
        }
    }
}
