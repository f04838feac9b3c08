//! The type of a policy and its parameter, as one field of the arguments. `lua/README.md` is the contract.

use crate::policy::{Policy, Properties, REDIS_TYPES, RedisProperties};

/// The factor of the number of a type. A parameter is below it: at most a window.
pub(super) const TYPE_UNIT: u64 = 1 << 45;

/// How many types the field has numbers for. `CONTRIBUTING.md` states how to get more.
const MAX_TYPES: u64 = (1 << 48) / TYPE_UNIT;
const _: () = assert!(REDIS_TYPES.len() as u64 <= MAX_TYPES, "the field has no number for another type");

/// Returns the field of a policy.
pub(super) fn typed_parameter(policy: &Policy) -> [u8; 6] {
    let Properties { arguments: [_, parameter], .. } = policy.properties();
    typed(policy, *parameter)
}

/// Returns the field of a policy whose parameter depends on the clock.
pub(super) fn typed(policy: &Policy, parameter: u64) -> [u8; 6] {
    let number = u64::from(policy.properties().redis.number);
    let [field @ .., _, _] = (number * TYPE_UNIT + parameter).to_le_bytes();
    field
}

/// Returns the type and the parameter in a field. Returns `None` if no type has this number.
pub(super) fn parse(field: u64) -> Option<(&'static RedisProperties, u64)> {
    let number = field / TYPE_UNIT;
    let redis_type = REDIS_TYPES.iter().find(|redis_type| u64::from(redis_type.number) == number)?;
    Some((redis_type, field % TYPE_UNIT))
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use super::*;
    use crate::policy::Algorithm;

    #[test]
    fn field_has_type_and_parameter() {
        for algorithm in Algorithm::examples() {
            let policy =
                Policy::new("p", 1, Duration::from_secs(1)).unwrap().with_algorithm(algorithm).unwrap();
            let [a, b, c, d, e, f] = typed_parameter(&policy);
            let (redis_type, of_policy) = parse(u64::from_le_bytes([a, b, c, d, e, f, 0, 0])).unwrap();
            assert_eq!(
                redis_type.key_letters,
                policy.properties().redis.key_letters,
                "{algorithm:?}: its type"
            );
            assert_eq!(of_policy, policy.properties().arguments[1], "{algorithm:?}: its parameter");
        }
        assert!(parse(MAX_TYPES * TYPE_UNIT).is_none(), "no type has this number");
    }

    #[test]
    fn types_have_different_numbers_and_letters() {
        let numbers: HashSet<u8> = REDIS_TYPES.iter().map(|redis_type| redis_type.number).collect();
        assert_eq!(numbers.len(), REDIS_TYPES.len(), "each type has a number of its own");
        let largest = numbers.iter().max().copied().map_or(0, u64::from);
        assert!(
            largest < MAX_TYPES,
            "number {largest} does not fit into the field: it must be 0 to {}",
            MAX_TYPES - 1
        );
        let letters: HashSet<u8> =
            REDIS_TYPES.iter().flat_map(|redis_type| redis_type.key_letters).copied().collect();
        let all: usize = REDIS_TYPES.iter().map(|redis_type| redis_type.key_letters.len()).sum();
        assert_eq!(letters.len(), all, "each type has letters of its own");
        // Digits and capitals are those of a length in base 36. A mark is that of another kind of key.
        let is_taken = |letter: &&u8| {
            letter.is_ascii_digit() || letter.is_ascii_uppercase() || b"{}~=!".contains(letter)
        };
        assert_eq!(letters.iter().find(is_taken), None, "no type has this byte in a key");
    }
}
