//! The example `day`: what each client is served on the simulated day, and what the API rejects.

use super::process::{Ended, run_with};
use crate::docs::{expected_output, read};

/// A row of the table.
#[derive(Debug)]
struct Row {
    client: String,
    gone_at: String,
    served: u32,
    share: f64,
    searches: u32,
    reads_lost: u32,
    rejected: u32,
    of_a_process: u32,
}

fn day(arguments: &[&str]) -> Ended {
    let ended = run_with::<&str>("day", arguments, &[]);
    assert_eq!((ended.status.code(), &*ended.stderr), (Some(0), ""), "{ended:?}");
    ended
}

/// Returns the rows of both days: without and with a stranger.
fn days(output: &str) -> [[Row; 4]; 2] {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let &[client, gone_at, served, share, searches, reads_lost, rejected, of_a_process] = &cells[..]
        else {
            panic!("{line:?}")
        };
        let number = |text: &str| text.parse().unwrap();
        Row {
            client: client.to_owned(),
            gone_at: gone_at.to_owned(),
            served: number(served),
            share: share.trim_end_matches(" %").parse().unwrap(),
            searches: number(searches),
            reads_lost: number(reads_lost),
            rejected: number(rejected),
            of_a_process: number(of_a_process),
        }
    };
    let mut tables = output.split("of a process\n").skip(1).map(|table| {
        let rows: Vec<Row> = table.lines().take_while(|line| !line.is_empty()).map(row).collect();
        <[Row; 4]>::try_from(rows).unwrap()
    });
    [tables.next().unwrap(), tables.next().unwrap()]
}

/// Asserts what every seed must show.
fn check(seed: &str, output: &str) {
    for (day, [fixed, sliding, calendar, learning]) in days(output).into_iter().enumerate() {
        println!("seed {seed}: {fixed:?}\n{sliding:?}\n{calendar:?}\n{learning:?}");
        assert_eq!(fixed.client, "fixed day in UTC");
        assert!(*fixed.gone_at < *"09:00" && fixed.reads_lost > 1_000, "half of 2,880 reads");
        assert_eq!(learning.client, "the same, learning");
        assert!(learning.of_a_process <= 1 && learning.rejected <= 8);
        assert!(learning.share >= 99.0 && learning.share <= 100.0);
        assert!(learning.searches >= 36 && learning.reads_lost < 200, "neither starves");
        if day == 0 {
            assert!(sliding.share < 90.0, "it wastes units");
            assert!(calendar.share >= 99.0 && calendar.reads_lost == 0 && learning.reads_lost == 0);
            assert!((9_900..=10_000).contains(&learning.served));
        } else {
            assert!(calendar.rejected > 300 && calendar.of_a_process > 30, "it does not know the stranger");
        }
    }
}

#[test]
fn learning_client_uses_whole_quota_without_rejections() {
    let ended = day(&[]);
    check("of the docs", &ended.stdout);
    // Seeds and the clock are given, so each line is exact.
    assert_eq!(ended.stdout.trim_end(), expected_output("day"));
    let guide = read("src/guide/waiting.md");
    let (_, tables) = ended.stdout.split_once("\n\n").unwrap();
    assert!(guide.contains(tables.trim_end()), "src/guide/waiting.md: other tables than {tables}");
}

#[test]
fn learning_client_meets_bounds_for_several_seeds() {
    // The clock of the API is ahead of that of the jobs, and behind it.
    for seed in ["4", "6", "9"] {
        check(seed, &day(&[seed]).stdout);
    }
}

#[test]
fn picture_has_figures_of_simulation() {
    let folder = tempfile::tempdir().unwrap();
    day(&["chart", folder.path().to_str().unwrap()]);
    for file in ["day.svg", "day.txt"] {
        let drawn = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(drawn == read(format!("src/guide/pictures/{file}")), "{file}: draw it again");
    }
}

#[test]
fn example_rejects_unknown_argument() {
    let ended = run_with::<&str>("day", &["yesterday"], &[]);
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(2), ""), "{ended:?}");
    assert_eq!(ended.stderr, "error: usage: day [<seed> | chart <folder>]\n");
}
