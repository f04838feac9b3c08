//! The boundaries of calendar periods against another calendar library, with an enumeration of all days.

use std::{env, fs, process::Command};

use tower_sliding_window::{
    MemoryBackend, PartitionKey, Policy,
    backend::{Backend, Check, Pair},
    policy::{Anchor, Period, Zone},
    testing::ManualClock,
};

use super::model::calendar_period::CalendarPeriod;
use crate::redis_server::rig::Random;

/// Zones of all continents, with many rules of summer time, with none, and with changes of their rules.
const ZONES: [&str; 40] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/Johannesburg",
    "Africa/Lagos",
    "Africa/Windhoek",
    "America/Anchorage",
    "America/Argentina/Buenos_Aires",
    "America/Asuncion",
    "America/Bogota",
    "America/Caracas",
    "America/Chicago",
    "America/Havana",
    "America/Los_Angeles",
    "America/Mexico_City",
    "America/New_York",
    "America/Nuuk",
    "America/Phoenix",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Amman",
    "Asia/Dhaka",
    "Asia/Gaza",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Pyongyang",
    "Asia/Shanghai",
    "Asia/Tehran",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/Istanbul",
    "Europe/London",
    "Pacific/Apia",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "UTC",
];

/// The days of the ten years from 1 January 2015, as days since 1 January 1970.
const DECADE: std::ops::Range<usize> = 16_436..20_089;

/// A clock and a memory backend on which a period is read.
struct Reader {
    backend: MemoryBackend,
    clock: ManualClock,
}

impl Reader {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self { backend: MemoryBackend::new().with_clock(&clock), clock }
    }

    /// Compares all boundaries of a policy with those of the model, to the microsecond. Returns how many there are, and how many differ.
    fn compare(&self, period: Period, zone: Zone, anchor: Anchor) -> [usize; 2] {
        let policy = Policy::calendar_period("p", 1, period, zone).unwrap().anchored(anchor).unwrap();
        let check = Check::new([Pair::new(PartitionKey::new("user", "a"), policy, 0)]).unwrap();
        let end_at = |at| {
            self.clock.set_micros(at);
            let decision = self.backend.check_now(&check).unwrap().unwrap();
            at + decision.statuses()[0].next_after().as_micros() as u64
        };
        let begins = CalendarPeriod::new(period, zone, anchor).begins(DECADE);
        let mut wrong = 0;
        for ends in begins.windows(2) {
            let [begin, end] = ends else { continue };
            let found = [end_at(*begin), end_at(*end - 1)];
            if found != [*end; 2] {
                println!("{} {anchor}: from {begin} to {found:?}, not {end}", zone.name());
                wrong += 1;
            }
        }
        [begins.len() - 1, wrong]
    }
}

/// `CALENDAR_CUSTOMERS=250` compares the periods of so many customers in each of the 40 zones, with as many anchors.
#[test]
fn boundaries_of_months_equal_those_of_chrono() {
    let customers: u64 = env::var("CALENDAR_CUSTOMERS").map_or(31, |text| text.parse().unwrap());
    let (reader, mut compared) = (Reader::new(), [0; 2]);
    for zone in ZONES.map(|zone| Zone::new(zone).unwrap()) {
        let mut random = Random(7);
        for customer in 0..customers {
            // All days, and then a random time of day.
            let day = 1 + (customer % 31) as u8;
            let time = if customer < 31 { 0 } else { random.below(1_440) };
            let anchor = Anchor::day(day).at((time / 60) as u8, (time % 60) as u8);
            let of_customer = reader.compare(Period::Month, zone, anchor);
            compared = [compared[0] + of_customer[0], compared[1] + of_customer[1]];
        }
    }
    println!(
        "{customers} customers in {} zones: {} boundaries, {} wrong",
        ZONES.len(),
        compared[0],
        compared[1]
    );
    assert!(compared[0] as u64 >= customers * 40 * 119);
    assert_eq!(compared[1], 0);
}

/// Each change of the clocks is at a whole or half hour, mostly between midnight and 4 o'clock.
#[test]
fn boundaries_of_days_equal_those_of_chrono() {
    let minutes = match env::var("CALENDAR_CUSTOMERS") {
        Ok(_) => (0..1_440).step_by(15).collect(),
        Err(_) => vec![0, 60, 150, 210],
    };
    let (reader, mut compared) = (Reader::new(), [0; 2]);
    for zone in ZONES.map(|zone| Zone::new(zone).unwrap()) {
        for minute in &minutes {
            let anchor = Anchor::default().at((minute / 60) as u8, (minute % 60) as u8);
            let of_anchor = reader.compare(Period::Day, zone, anchor);
            compared = [compared[0] + of_anchor[0], compared[1] + of_anchor[1]];
        }
    }
    println!("days in {} zones: {} boundaries, {} wrong", ZONES.len(), compared[0], compared[1]);
    assert_eq!(compared[1], 0);
}

#[test]
fn boundaries_of_weeks_and_years_equal_those_of_chrono() {
    let (reader, mut compared) = (Reader::new(), [0; 2]);
    for zone in ZONES.map(|zone| Zone::new(zone).unwrap()) {
        let weeks = (1..=7).map(|day| (Period::Week, Anchor::day(day).at(2, 30)));
        let years = [(1, 1), (2, 28), (2, 29), (3, 1), (4, 6), (7, 1), (10, 31), (12, 31)];
        let years = years.map(|(month, day)| (Period::Year, Anchor::date(month, day).at(0, 30)));
        for (period, anchor) in weeks.chain(years) {
            let of_anchor = reader.compare(period, zone, anchor);
            compared = [compared[0] + of_anchor[0], compared[1] + of_anchor[1]];
        }
    }
    println!("weeks and years in {} zones: {} boundaries, {} wrong", ZONES.len(), compared[0], compared[1]);
    assert_eq!(compared[1], 0);
}

/// Samoa left out 30 December 2011.
#[test]
fn day_that_a_zone_leaves_out_has_no_period() {
    let zone = Zone::new("Pacific/Apia").unwrap();
    let model = CalendarPeriod::new(Period::Day, zone, Anchor::default());
    // From 27 December 2011 on.
    let begins = model.begins(15_335..15_342);
    assert_eq!(begins.len(), 6, "seven days, of which one is left out");
    let reader = Reader::new();
    let policy = Policy::calendar_period("p", 1, Period::Day, zone).unwrap();
    let check = Check::new([Pair::new(PartitionKey::new("user", "a"), policy, 0)]).unwrap();
    for ends in begins.windows(2) {
        reader.clock.set_micros(ends[0]);
        let decision = reader.backend.check_now(&check).unwrap().unwrap();
        assert_eq!(decision.statuses()[0].next_after().as_micros() as u64, ends[1] - ends[0]);
    }
}

/// On 29 October 2023, the table of the zone ends, and a rule follows. No clock was changed.
#[test]
fn end_of_table_is_no_change_of_clocks() {
    let anchor = Anchor::day(28).at(23, 41);
    let [boundaries, wrong] =
        Reader::new().compare(Period::Month, Zone::new("America/Nuuk").unwrap(), anchor);
    assert!(boundaries >= 119);
    assert_eq!(wrong, 0);
}

/// Another crate may make the database of the system that of `jiff`. It is read once, so this test runs itself again, in a process of its
/// own.
#[test]
fn zone_ignores_database_of_system() {
    const DATABASE: &str = "TZDIR";
    const CHILD: &str = "ZONE_DATABASE_CHILD";
    const ZONE: &str = "America/New_York";
    let name = "contract::calendar_boundaries::zone_ignores_database_of_system";
    if env::var_os(CHILD).is_some() {
        assert_eq!(jiff::tz::TimeZone::get("Test/Only").unwrap().iana_name(), Some("Test/Only"));
        let anchor = Anchor::day(1);
        let [boundaries, wrong] = Reader::new().compare(Period::Month, Zone::new(ZONE).unwrap(), anchor);
        assert_eq!((boundaries, wrong), (119, 0));
        return;
    }
    // A database with one zone: a header without transitions, the type of UTC, the same with numbers of 64 bits, and the rule.
    let (mut header, mut utc) = ([0; 44], [0; 10]);
    header[..5].copy_from_slice(b"TZif2");
    (header[39], header[43]) = (1, 4);
    utc[6..9].copy_from_slice(b"UTC");
    let table = [&header[..], &utc].concat();
    let database = tempfile::tempdir().unwrap();
    fs::create_dir(database.path().join("Test")).unwrap();
    fs::write(database.path().join("Test/Only"), [&table, &table, &b"\nUTC0\n"[..]].concat()).unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child
        .args(["--exact", name, "--nocapture"])
        .env(DATABASE, database.path())
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text} {output:?}");
}
