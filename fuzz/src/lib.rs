//! Fuzz targets. Each is a function that takes any bytes and panics if the crate breaks a promise.
//!
//! README.md describes how to run them.

use std::fmt;

mod addresses;
mod answers;
pub mod driver;
mod fields;
mod keys;
mod policy_files;
mod replies;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name, which is also that of the folder of its corpus.
    pub name: &'static str,
    /// Panics if the crate breaks a promise for this input.
    pub run: fn(&[u8]),
    /// The part of all inputs that the driver gives this target, in percent: fewer to a target that needs longer for each.
    pub share: u64,
    /// Texts that a mutation inserts.
    pub dictionary: &'static [&'static [u8]],
}

/// All targets.
pub const TARGETS: [Target; 6] = [
    Target { name: "addresses", run: addresses::run, share: 25, dictionary: addresses::DICTIONARY },
    Target { name: "answers", run: answers::run, share: 5, dictionary: answers::DICTIONARY },
    Target { name: "fields", run: fields::run, share: 10, dictionary: &[] },
    Target { name: "keys", run: keys::run, share: 30, dictionary: keys::DICTIONARY },
    Target { name: "policy_files", run: policy_files::run, share: 25, dictionary: policy_files::DICTIONARY },
    Target { name: "replies", run: replies::run, share: 5, dictionary: replies::DICTIONARY },
];

/// Returns the target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Defines the program of a target: under cargo-fuzz that of libFuzzer, and otherwise the driver.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        ::libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            static TARGET: std::sync::OnceLock<$crate::Target> = std::sync::OnceLock::new();
            let target = TARGET.get_or_init(|| $crate::target(stringify!($name)).expect("a known target"));
            (target.run)(data);
        });

        #[cfg(not(fuzzing))]
        fn main() -> std::process::ExitCode {
            $crate::driver::main(&[stringify!($name)])
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus of each target, and as many mutated inputs as take a few seconds.
    fn run(name: &str, inputs: u64) {
        let target = target(name).unwrap();
        let corpus = driver::corpus(name).unwrap();
        assert!(corpus.len() >= 4, "{} inputs in the corpus of {name}", corpus.len());
        for (file, input) in &corpus {
            eprintln!("{}", file.display());
            (target.run)(input);
        }
        driver::run(&target, &corpus, 1, 0..inputs).unwrap();
    }

    #[test]
    fn addresses_follow_reference() {
        run("addresses", 20_000);
    }

    #[test]
    fn answers_are_bounded() {
        run("answers", 20_000);
    }

    #[test]
    fn fields_follow_reference() {
        run("fields", 10_000);
    }

    #[test]
    fn keys_follow_reference() {
        run("keys", 20_000);
    }

    #[test]
    fn policy_files_keep_their_meaning() {
        run("policy_files", 10_000);
    }

    #[test]
    fn replies_admit_only_if_well_formed() {
        run("replies", 500);
    }
}
