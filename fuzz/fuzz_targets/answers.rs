#![cfg_attr(fuzzing, no_main)]

fuzz_targets::target!(answers);
