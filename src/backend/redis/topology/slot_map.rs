//! The slot map of a cluster: which node has which slots, as several nodes report it.

use std::{
    collections::{BTreeSet, HashMap},
    ops::RangeInclusive,
};

use redis::{RedisResult, Value, from_redis_value};

use super::endpoint::Address;
use crate::backend::redis::{eviction::info_field, slot::SLOTS};

/// Ranges of slots in ascending order, each with its owner.
pub(super) type Slots = Vec<(RangeInclusive<u16>, Address)>;

/// What one node reports about the cluster.
#[derive(Clone, Debug)]
pub(super) struct SlotReport {
    /// Whether the node says that the cluster is ok. None if the user may not query it.
    pub(super) is_ok: Option<bool>,
    /// In ascending order.
    claims: Vec<Claim>,
}

#[derive(Clone, Debug)]
struct Claim {
    slots: RangeInclusive<u16>,
    owner: Address,
    /// The config epoch of the owner. The cluster gives every change of owners a higher one. None if it is unknown.
    epoch: Option<u64>,
}

impl SlotReport {
    /// Parses the replies of a node at this host to `CLUSTER SLOTS`, `CLUSTER INFO` and `CLUSTER NODES`. Returns None if the
    /// slots are invalid or empty. The other replies are optional.
    pub(super) fn parse(
        slots: Value,
        info: RedisResult<Value>,
        nodes: RedisResult<Value>,
        host: &str,
    ) -> Option<Self> {
        let text = |reply: RedisResult<Value>| from_redis_value::<String>(reply.ok()?).ok();
        let epochs = text(nodes).map(|nodes| parse_epochs(&nodes)).unwrap_or_default();
        Some(Self {
            is_ok: text(info).and_then(|info| Some(info_field(&info, "cluster_state")? == "ok")),
            claims: parse_slots(slots, &epochs, host)?,
        })
    }

    fn claim(&self, slot: u16) -> Option<&Claim> {
        let range = self.claims.partition_point(|claim| *claim.slots.end() < slot);
        self.claims.get(range).filter(|claim| claim.slots.contains(&slot))
    }
}

/// Returns the owner of a slot.
pub(super) fn owner(slots: &Slots, slot: u16) -> Option<&Address> {
    let range = slots.partition_point(|(slots, _)| *slots.end() < slot);
    slots.get(range).filter(|(slots, _)| slots.contains(&slot)).map(|(_, owner)| owner)
}

/// Returns whether every slot has an owner.
pub(super) fn is_complete(slots: &Slots) -> bool {
    slots.iter().map(|(slots, _)| slots.len()).sum::<usize>() == usize::from(SLOTS)
}

/// Merges the reports of several nodes slot by slot: the owner with the highest config epoch wins.
///
/// If no epoch is known, the owner that most nodes name wins. Then a slot moves to a node that has refused a command only if two
/// nodes name it. The first reports came first, and `known` is the map so far.
pub(super) fn merge(reports: &[&SlotReport], known: &Slots, has_refused: impl Fn(&Address) -> bool) -> Slots {
    let claims = reports.iter().flat_map(|report| &report.claims).map(|claim| &claim.slots);
    let ranges = claims.chain(known.iter().map(|(slots, _)| slots));
    // Between two bounds, no report changes its owner.
    let bounds: BTreeSet<u32> =
        ranges.flat_map(|slots| [u32::from(*slots.start()), u32::from(*slots.end()) + 1]).collect();
    let bounds: Vec<u32> = bounds.into_iter().collect();
    let mut merged: Slots = Vec::new();
    for pair in bounds.windows(2) {
        let &[first, end] = pair else { continue };
        let (Ok(first), Ok(last)) = (u16::try_from(first), u16::try_from(end - 1)) else { continue };
        let Some(owner) = elect(reports, first, owner(known, first), &has_refused) else { continue };
        match merged.last_mut() {
            Some((slots, previous)) if previous == owner && *slots.end() + 1 == first => {
                *slots = *slots.start()..=last;
            }
            _ => merged.push((first..=last, owner.clone())),
        }
    }
    merged
}

/// Returns the owner of a slot by the reports. None if no report names one.
fn elect<'a>(
    reports: &[&'a SlotReport],
    slot: u16,
    known: Option<&'a Address>,
    has_refused: impl Fn(&Address) -> bool,
) -> Option<&'a Address> {
    let claims = || reports.iter().filter_map(|report| report.claim(slot));
    let epoch = claims().map(|claim| claim.epoch).max()?;
    let owners = || claims().filter(|claim| claim.epoch == epoch).map(|claim| &claim.owner);
    let votes = |owner: &Address| owners().filter(|other| *other == owner).count();
    let is_eligible = |owner: &&Address| {
        epoch.is_some() || known == Some(*owner) || votes(owner) >= 2 || !has_refused(owner)
    };
    // Of equal owners, `max_by_key` returns the last one.
    let best = owners().filter(is_eligible).collect::<Vec<_>>().into_iter().rev();
    best.max_by_key(|owner| (votes(owner), known == Some(*owner))).or(known).or_else(|| owners().next())
}

/// Parses the reply to `CLUSTER SLOTS`. Returns None if the reply is invalid or empty.
fn parse_slots(reply: Value, epochs: &HashMap<String, u64>, host: &str) -> Option<Vec<Claim>> {
    let ranges: Vec<Vec<Value>> = from_redis_value(reply).ok()?;
    let mut claims = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut range = range.into_iter();
        let first: u16 = from_redis_value(range.next()?).ok()?;
        let last: u16 = from_redis_value(range.next()?).ok()?;
        // The primary comes first. More fields may follow its port: first its id.
        let mut primary = from_redis_value::<Vec<Value>>(range.next()?).ok()?.into_iter();
        let named: Option<String> = from_redis_value(primary.next()?).ok()?;
        let port: u16 = from_redis_value(primary.next()?).ok()?;
        let id: Option<String> = primary.next().and_then(|id| from_redis_value(id).ok());
        let named = named.filter(|named| !named.is_empty() && named != "?");
        // A node that does not know its own host omits it: the host is the one of this connection.
        let owner = (named.unwrap_or_else(|| host.to_owned()), port);
        claims.push(Claim { slots: first..=last, owner, epoch: id.and_then(|id| epochs.get(&id).copied()) });
    }
    claims.sort_unstable_by_key(|claim| *claim.slots.start());
    (!claims.is_empty()).then_some(claims)
}

/// Parses the reply to `CLUSTER NODES`: the config epochs of the nodes by their ids.
fn parse_epochs(nodes: &str) -> HashMap<String, u64> {
    let epoch = |line: &str| {
        let mut fields = line.split(' ');
        // After the id: the address, the flags, the primary of a replica, two times, and the epoch.
        Some((fields.next()?.to_owned(), fields.nth(5)?.parse().ok()?))
    };
    nodes.lines().filter_map(epoch).collect()
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, RedisError};

    use super::*;

    fn node(name: &str) -> Address {
        (name.to_owned(), 6379)
    }

    fn report(claims: &[(RangeInclusive<u16>, &str, Option<u64>)]) -> SlotReport {
        let claim = |(slots, owner, epoch): &(RangeInclusive<u16>, &str, Option<u64>)| Claim {
            slots: slots.clone(),
            owner: node(owner),
            epoch: *epoch,
        };
        SlotReport { is_ok: None, claims: claims.iter().map(claim).collect() }
    }

    fn map(ranges: &[(RangeInclusive<u16>, &str)]) -> Slots {
        ranges.iter().map(|(slots, owner)| (slots.clone(), node(owner))).collect()
    }

    fn merged(reports: &[SlotReport], known: &Slots, refused: &str) -> Slots {
        merge(&reports.iter().collect::<Vec<_>>(), known, |owner| *owner == node(refused))
    }

    #[test]
    fn highest_epoch_wins_slot_by_slot() {
        let stale = report(&[(0..=99, "a", Some(1)), (100..=199, "b", Some(9))]);
        let newer = report(&[(0..=49, "a", Some(1)), (50..=149, "c", Some(5)), (150..=199, "b", Some(2))]);
        let expected = map(&[(0..=49, "a"), (50..=99, "c"), (100..=199, "b")]);
        assert_eq!(merged(&[stale.clone(), newer.clone()], &Vec::new(), ""), expected);
        assert_eq!(merged(&[newer, stale], &Vec::new(), ""), expected);
    }

    #[test]
    fn known_epoch_wins_over_unknown_epochs() {
        let without = report(&[(0..=9, "a", None)]);
        let with = report(&[(0..=9, "b", Some(0))]);
        assert_eq!(
            merged(&[without.clone(), without, with], &map(&[(0..=9, "a")]), ""),
            map(&[(0..=9, "b")])
        );
    }

    #[test]
    fn refused_node_needs_two_votes_without_epochs() {
        let (to_a, to_b) = (report(&[(0..=9, "a", None)]), report(&[(0..=9, "b", None)]));
        let of_b = map(&[(0..=9, "b")]);
        assert_eq!(merged(std::slice::from_ref(&to_a), &of_b, "a"), of_b, "one vote for a refused node");
        assert_eq!(merged(&[to_a.clone(), to_a.clone()], &of_b, "a"), map(&[(0..=9, "a")]));
        assert_eq!(merged(std::slice::from_ref(&to_a), &of_b, ""), map(&[(0..=9, "a")]));
        assert_eq!(merged(std::slice::from_ref(&to_b), &map(&[(0..=9, "a")]), "a"), of_b);
        // The only owner that is known.
        assert_eq!(merged(std::slice::from_ref(&to_a), &Vec::new(), "a"), map(&[(0..=9, "a")]));
        // Equal votes move no slot.
        assert_eq!(merged(&[to_a.clone(), to_b.clone()], &of_b, ""), of_b);
        assert_eq!(merged(&[to_a.clone(), to_b.clone()], &Vec::new(), ""), map(&[(0..=9, "a")]));
    }

    #[test]
    fn slots_without_owner_leave_the_map() {
        let report = report(&[(10..=16_383, "a", Some(1))]);
        assert_eq!(merged(&[report], &map(&[(0..=16_383, "a")]), ""), map(&[(10..=16_383, "a")]));
    }

    #[test]
    fn report_parses_replies_of_a_node() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let primary = |host: Value, id| Value::Array(vec![host, Value::Int(7000), bulk(id)]);
        let range = |first, last, primary| Value::Array(vec![Value::Int(first), Value::Int(last), primary]);
        let slots = Value::Array(vec![
            range(100, 16_383, primary(bulk("10.0.0.2"), "second")),
            range(0, 99, primary(bulk("?"), "first")),
        ]);
        let nodes = "first 10.0.0.1:7000@17000,name myself,master - 0 0 4 connected 0-99\n\
                     second 10.0.0.2:7000@17000 master - 0 1 12 connected 100-16383\n\
                     third 10.0.0.3:7000@17000 slave second 0 1 x connected\n";
        let report = SlotReport::parse(
            slots.clone(),
            Ok(bulk("cluster_state:ok\r\nx:y\r\n")),
            Ok(bulk(nodes)),
            "here",
        );
        let report = report.unwrap();
        assert_eq!(report.is_ok, Some(true));
        let claims: Vec<_> = report
            .claims
            .iter()
            .map(|claim| (claim.slots.clone(), claim.owner.0.as_str(), claim.epoch))
            .collect();
        assert_eq!(claims, [(0..=99, "here", Some(4)), (100..=16_383, "10.0.0.2", Some(12))]);

        let denied = || Err(RedisError::from((ErrorKind::Client, "NOPERM")));
        let report = SlotReport::parse(slots.clone(), denied(), denied(), "here").unwrap();
        assert!(report.is_ok.is_none() && report.claims.iter().all(|claim| claim.epoch.is_none()));
        let report = SlotReport::parse(slots, Ok(bulk("cluster_state:fail\r\n")), denied(), "here").unwrap();
        assert_eq!(report.is_ok, Some(false));
        assert!(SlotReport::parse(Value::Array(Vec::new()), denied(), denied(), "here").is_none());
        assert!(SlotReport::parse(bulk("?"), denied(), denied(), "here").is_none());
    }
}
