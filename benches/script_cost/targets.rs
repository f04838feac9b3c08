//! The targets of the scripts: each figure with its limit and its goal.

pub struct Target {
    name: String,
    measured: f64,
    unit: &'static str,
    limit: Option<f64>,
    goal: Option<f64>,
}

impl Target {
    pub fn new(name: &str, measured: f64, unit: &'static str, limit: f64, goal: f64) -> Self {
        Self { name: name.to_owned(), measured, unit, limit: Some(limit), goal: Some(goal) }
    }

    /// Returns a figure without a limit.
    pub fn for_information(name: &str, measured: f64, unit: &'static str) -> Self {
        Self { name: name.to_owned(), measured, unit, limit: None, goal: None }
    }

    fn verdict(&self) -> &'static str {
        let within = |bound: Option<f64>| bound.is_some_and(|bound| self.measured <= bound);
        match self.limit {
            None => "",
            Some(_) if within(self.goal) => "goal reached",
            Some(_) if within(self.limit) => "within limit",
            Some(_) => "LIMIT EXCEEDED",
        }
    }
}

pub fn print(targets: &[Target]) {
    println!("\n{:80}{:>12}{:>12}{:>12}", "figure", "measured", "limit", "goal");
    for target in targets {
        let show = |value: f64| match target.unit {
            "x" => format!("{value:.3} x"),
            "bytes" => format!("{value:.1}"),
            unit => format!("{value:.2} {unit}"),
        };
        let bound = |bound: Option<f64>| bound.map_or(String::new(), show);
        println!(
            "{:80}{:>12}{:>12}{:>12}  {}",
            target.name,
            show(target.measured),
            bound(target.limit),
            bound(target.goal),
            target.verdict()
        );
    }
}
