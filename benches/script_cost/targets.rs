//! What the script is held to, each figure with what was measured.

pub struct Target {
    name: String,
    measured: f64,
    unit: &'static str,
    at_least: Option<f64>,
    aim: Option<f64>,
}

impl Target {
    pub fn new(name: &str, measured: f64, unit: &'static str, at_least: f64, aim: f64) -> Self {
        let name = name.to_owned();
        Self { name, measured, unit, at_least: Some(at_least), aim: Some(aim) }
    }

    /// A figure that is worth knowing, and nothing more.
    pub fn to_know(name: &str, measured: f64, unit: &'static str) -> Self {
        Self { name: name.to_owned(), measured, unit, at_least: None, aim: None }
    }

    fn verdict(&self) -> &'static str {
        let within = |bound: Option<f64>| bound.is_some_and(|bound| self.measured <= bound);
        match self.at_least {
            None => "",
            Some(_) if within(self.aim) => "as aimed",
            Some(_) if within(self.at_least) => "enough",
            Some(_) => "MISSED",
        }
    }
}

pub fn print(targets: &[Target]) {
    println!("\n{:80}{:>12}{:>12}{:>12}", "figure", "measured", "at least", "aim");
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
            bound(target.at_least),
            bound(target.aim),
            target.verdict()
        );
    }
}
