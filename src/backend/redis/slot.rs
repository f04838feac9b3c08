//! Hash slots of a cluster (Redis cluster specification, "Key distribution model").

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Returns the slot of a key that has this hash tag between its braces.
pub(super) fn of_tag(tag: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// Returns the slot of a key. The key must have a hash tag.
pub(super) fn of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map_or(0, |(tag, _)| of_tag(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_cluster_specification() {
        // The check value of CRC16 XMODEM in the specification is 0x31C3; `CLUSTER KEYSLOT` returns the same slot.
        assert_eq!(of_tag("123456789"), 12_739);
        assert_eq!(of_key("tsw:1:{123456789}:burst:log:1000000"), 12_739);
    }
}
