//! The arguments of the command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use lexopt::{Arg, Parser, ValueExt};

use crate::share::Share;

pub(crate) const USAGE: &str = "\
usage: replay [<options>] <policies.toml> <access.log>

Reads the common and the combined log format, and JSON lines. `-` is standard input.

  --smallest-quota <share>   also searches the smallest quota of each policy that denies at most this
                             share of the requests, such as 0.1%. Keeps 16 bytes for each request
  --denials <file>           writes one line of JSON for each denial. `-` is standard output; the
                             summary is then on standard error
  --reorder <seconds>        puts lines in order that are up to this much out of order, 0 to 86400.
                             The default is 60. Holds at most 262144 lines
  --top <keys>               shows this many keys, 1 to 1000. The default is 5
  --help                     shows this text
";

/// The largest time by which lines may be out of order, in seconds.
const MAX_REORDER: u64 = 86_400;
const MAX_TOP: usize = 1_000;

pub(crate) struct Arguments {
    pub(crate) policies: PathBuf,
    /// `-` is standard input.
    pub(crate) log: PathBuf,
    pub(crate) smallest_quota: Option<Share>,
    /// `-` is standard output.
    pub(crate) denials: Option<PathBuf>,
    pub(crate) reorder: Duration,
    pub(crate) top: usize,
}

/// Reads the arguments. Returns `None` if they ask for help.
pub(crate) fn read(arguments: impl Iterator<Item = OsString>) -> Result<Option<Arguments>, String> {
    let mut parser = Parser::from_args(arguments);
    let (mut smallest_quota, mut denials) = (None, None);
    let (mut reorder, mut top) = (60, 5);
    let mut files = Vec::new();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(None),
            Arg::Long("smallest-quota") => {
                smallest_quota = Some(text(&mut parser, "--smallest-quota")?.parse()?)
            }
            Arg::Long("denials") => denials = Some(parser.value().map_err(|error| error.to_string())?.into()),
            Arg::Long("reorder") => reorder = number(&mut parser, "--reorder", 0, MAX_REORDER)?,
            Arg::Long("top") => top = number(&mut parser, "--top", 1, MAX_TOP)?,
            Arg::Value(file) => files.push(PathBuf::from(file)),
            Arg::Short(_) | Arg::Long(_) => return Err(argument.unexpected().to_string()),
        }
    }
    let [policies, log] = <[PathBuf; 2]>::try_from(files).map_err(|files| {
        format!("{} files: it must be <policies.toml> and <access.log>; see --help", files.len())
    })?;
    Ok(Some(Arguments { policies, log, smallest_quota, denials, reorder: Duration::from_secs(reorder), top }))
}

fn text(parser: &mut Parser, option: &str) -> Result<String, String> {
    let value = parser.value().map_err(|error| error.to_string())?;
    value.string().map_err(|_| format!("{option}: the value is not UTF-8"))
}

fn number<T: Copy + Ord + std::fmt::Display + std::str::FromStr>(
    parser: &mut Parser,
    option: &str,
    min: T,
    max: T,
) -> Result<T, String> {
    let text = text(parser, option)?;
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{option} {text:?}: it must be {min} to {max}"))
}
