//! The figures of the README and the changelog: those of `benches/RESULTS.md`.

use std::ops::RangeInclusive;

use crate::docs::read;

/// Returns the cells of each row of a section that begins with these ones. `cells` may omit the last ones.
fn rows(section: &str, cells: &[&str]) -> Vec<Vec<String>> {
    let results = read("benches/RESULTS.md");
    let (_, rest) = results.split_once(&format!("# {section}\n")).expect(section);
    let lines = rest.lines().take_while(|line| !line.starts_with('#'));
    let rows: Vec<Vec<String>> = lines
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .filter(|row: &Vec<String>| row.iter().zip(cells).all(|(cell, wanted)| cell == wanted))
        .collect();
    assert!(!rows.is_empty(), "{section}: {cells:?}");
    rows
}

/// Returns the number at the begin of a text, such as `1,141 (1,105 to 1,191)`.
fn number(text: &str) -> f64 {
    let digits: String =
        text.chars().filter(|c| *c != ',').take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.parse().expect(text)
}

/// Returns a number of instructions over the inner service: that in parentheses.
fn over_inner_service(cell: &str) -> f64 {
    number(cell.split_once('(').expect(cell).1)
}

/// Returns a whole number with commas, as the reports have it.
fn with_commas(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

fn range(numbers: impl IntoIterator<Item = f64>) -> RangeInclusive<f64> {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    numbers[0]..=numbers[numbers.len() - 1]
}

/// Fails unless the row of the README that begins with this cell has these ones.
fn expect_row(name: &str, cells: [String; 4]) {
    let row = format!("| {name}, in memory | {} |", cells.join(" | "));
    assert!(read("README.md").contains(&row), "the README must have this row:\n{row}");
}

#[test]
fn readme_has_figures_of_results() {
    let work = rows("Instructions and allocations of a request in memory", &["1"]);
    let instructions: Vec<f64> = work.iter().map(|row| over_inner_service(&row[2])).collect();
    let [log, tokens, governor, limiter] = instructions[..] else { panic!("{work:?}") };
    let own = range([log, tokens].map(|figure| figure / governor));
    expect_row(
        "instructions of an admitted request",
        [
            format!("{:.2} to {:.2} times as many as tower_governor", own.start(), own.end()),
            format!("{} more than the inner service alone", with_commas(governor)),
            "no layer".to_owned(),
            format!("{:.1} times as many as tower_governor", limiter / governor),
        ],
    );

    // The columns are those of the log, the token bucket, tower_governor and tower-rate-limiter.
    let times = |verdict: &str| -> Vec<[f64; 4]> {
        let all = rows("Layers in memory", &["1"]);
        let of_verdict = all.iter().filter(|row| row[3] == verdict);
        of_verdict.map(|row| [5, 6, 7, 8].map(|column| number(&row[column]))).collect()
    };
    let admitted = times("admitted");
    let ratios = |columns: &[usize]| {
        range(admitted.iter().flat_map(|row| columns.iter().map(|own| row[*own] / row[2])))
    };
    let (own, governor, limiter) = (ratios(&[0, 1]), range(admitted.iter().map(|row| row[2])), ratios(&[3]));
    expect_row(
        "time of an admitted request",
        [
            format!("{:.1} to {:.1} times that of tower_governor", own.start(), own.end()),
            format!(
                "{} to {} ns more than the inner service alone",
                with_commas(*governor.start()),
                with_commas(*governor.end())
            ),
            "no layer".to_owned(),
            format!("{:.1} to {:.1} times that of tower_governor", limiter.start(), limiter.end()),
        ],
    );

    let denied = times("denied");
    let nanos = |columns: &[usize]| {
        let range = range(denied.iter().flat_map(|row| columns.iter().map(|column| row[*column])));
        format!("{} to {} ns more", with_commas(*range.start()), with_commas(*range.end()))
    };
    expect_row(
        "time of a denied request",
        [nanos(&[0, 1]) + " than the inner service alone", nanos(&[2]), "no layer".to_owned(), nanos(&[3])],
    );
}

#[test]
fn changelog_has_figures_of_results() {
    let limiters = &rows("Limiters without a layer", &["instructions, 1 key"])[0];
    let work = rows("Instructions and allocations of a request in memory", &["1"]);
    let [layer, governor_layer] = [1, 2].map(|row| with_commas(over_inner_service(&work[row][2])));
    let sentence = format!(
        "A `Limiter::check` of a token bucket takes {} instructions (governor: {}), and such a request through the layer {layer} more than \
         the service alone (tower_governor: {governor_layer}).",
        limiters[2], limiters[3]
    );
    let changelog = read("CHANGELOG.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(changelog.contains(&sentence), "the changelog must have this sentence:\n{sentence}");
}
