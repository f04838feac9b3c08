#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(policy_files);
