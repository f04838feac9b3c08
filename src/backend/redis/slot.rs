//! Hash slots of a cluster (Redis cluster specification, "Key distribution model").

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Returns the slot of a key that has this hash tag between its braces.
pub(super) fn from_tag(tag: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_cluster_specification() {
        // The check value of CRC16 XMODEM in the specification is 0x31C3; `CLUSTER KEYSLOT` returns the same slot.
        assert_eq!(from_tag(b"123456789"), 12_739);
    }
}
