//! Tables in Markdown, and the numbers in them.

/// Median and spread of the rounds of one cell. A figure that does not vary has one round.
#[derive(Clone, Debug, Default)]
pub struct Rounds(pub Vec<f64>);

impl Rounds {
    /// Returns a figure that does not vary.
    pub fn exact(value: f64) -> Self {
        Self(vec![value])
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Returns the smallest and the largest round.
    fn range(&self) -> [f64; 2] {
        let rounds = || self.0.iter().copied();
        [rounds().fold(f64::NAN, f64::min), rounds().fold(f64::NAN, f64::max)]
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        let ([min, max], [other_min, other_max]) = (self.range(), other.range());
        min <= other_max && other_min <= max
    }

    /// Applies a function to each round.
    pub fn map(&self, function: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().copied().map(function).collect())
    }

    /// Formats the median, and of several rounds the smallest and the largest one.
    pub fn with_spread(&self) -> String {
        let median = number(self.median());
        if self.0.len() < 2 {
            return median;
        }
        let [min, max] = self.range();
        format!("{median} ({} to {})", number(min), number(max))
    }
}

/// Formats a number with three significant digits at least, and separators of thousands.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => String::new(),
        small if small < 10.0 => format!("{value:.2}"),
        small if small < 100.0 => format!("{value:.1}"),
        _ => whole(value),
    }
}

/// Formats a number without decimals, with separators of thousands.
pub fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun, such as "1 key" and "10,000 keys".
pub fn counted_noun(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", whole(number as f64), if number == 1 { one } else { many })
}

pub fn policies(number: usize) -> String {
    counted_noun(number, "policy", "policies")
}

pub fn keys(number: usize) -> String {
    counted_noun(number, "key", "keys")
}

pub fn threads(number: usize) -> String {
    counted_noun(number, "thread", "threads")
}

pub fn markdown(heading: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
    let rule: Vec<String> = heading.iter().map(|_| "---".to_owned()).collect();
    rows.iter().fold(line(&heading) + &line(&rule), |table, row| table + &line(row))
}
