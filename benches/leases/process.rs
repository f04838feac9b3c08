//! The processes that ask, and what they report.

use std::{
    env,
    fmt::Write,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, sleep, sleep_until};
use tower_sliding_window::{Algorithm, Limiter, PartitionKey, Policy, RedisBackend, policy::Lease};

use crate::server::Server;

/// The variable that contains the load of a child process.
const CHILD: &str = "LEASES_BENCH_CHILD";

/// The times of the checks are measured after this time.
const WARM_UP: Duration = Duration::from_secs(5);

/// How the processes ask.
#[derive(Clone)]
pub struct Load {
    pub processes: u64,
    /// The number of tasks in each process that ask one after the other. 0 for an open loop.
    pub in_flight: u64,
    /// The checks per second of all processes, at random instants.
    pub per_second: u64,
    pub quota: u32,
    pub window: Duration,
    pub precision: Duration,
    pub duration: Duration,
    /// 0 without leases.
    pub up_to: u32,
    /// Whether the leases are requested before they are needed.
    pub is_ahead: bool,
}

/// The sum of all processes.
#[derive(Default)]
pub struct Run {
    /// The checks whose times were measured.
    pub checks: u64,
    /// The checks that were answered in less than a millisecond.
    pub fast: u64,
    pub admitted: u64,
    pub local: u64,
    pub leased: u64,
    pub returned: u64,
    pub lost: u64,
    /// For each admission, two instants of the server's clock between which it has happened. Only of an open loop.
    pub grants: Vec<(u64, u64)>,
    /// The time of the server's process.
    pub server_micros: f64,
    /// The script calls.
    pub calls: u64,
}

impl Run {
    /// Starts the processes, and waits for their reports. They reach the server by this URL.
    pub fn start(server: &Server, url: &str, load: &Load) -> Self {
        let (micros, calls) = used(server);
        let start = unix_micros() + 1_500_000;
        let children: Vec<_> = (0..load.processes)
            .map(|number| {
                let Load { processes, in_flight, per_second, quota, .. } = load;
                let Load { window, precision, duration, up_to, is_ahead, .. } = load;
                let [window, precision, duration] =
                    [window, precision, duration].map(|length| length.as_millis());
                let is_ahead = u8::from(*is_ahead);
                let times = format!("{window} {precision} {duration}");
                let load = format!(
                    "{url} {start} {number} {processes} {in_flight} {per_second} {quota} {times} {up_to} {is_ahead}"
                );
                let mut command = Command::new(env::current_exe().unwrap());
                command.env(CHILD, load).stdout(Stdio::piped()).spawn().expect("a process")
            })
            .collect();
        let mut run = Self::default();
        for child in children {
            let output = child.wait_with_output().expect("a report");
            assert!(output.status.success());
            run.add(&String::from_utf8(output.stdout).unwrap());
        }
        let (micros_after, calls_after) = used(server);
        run.server_micros = micros_after - micros;
        run.calls = calls_after - calls;
        run
    }

    fn add(&mut self, report: &str) {
        let mut lines = report.lines();
        let counts: Vec<u64> = lines.next().unwrap().split(' ').map(|count| count.parse().unwrap()).collect();
        let [checks, fast, admitted, local, leased, returned, lost] = counts[..] else { panic!("{report}") };
        self.checks += checks;
        self.fast += fast;
        self.admitted += admitted;
        self.local += local;
        self.leased += leased;
        self.returned += returned;
        self.lost += lost;
        for line in lines {
            let (from, to) = line.split_once(' ').unwrap();
            self.grants.push((from.parse().unwrap(), to.parse().unwrap()));
        }
    }

    pub fn fast_percent(&self) -> f64 {
        100.0 * self.fast as f64 / self.checks as f64
    }

    pub fn local_percent(&self) -> f64 {
        100.0 * self.local as f64 / self.admitted as f64
    }
}

/// Returns the time that the server's process has used, in microseconds, and the number of script calls.
fn used(server: &Server) -> (f64, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let info = runtime.block_on(async {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let command = redis::cmd("INFO").arg("everything").to_owned();
        command.query_async::<String>(&mut connection).await.unwrap()
    });
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let seconds = |name: &str| field(name).unwrap().trim().parse::<f64>().unwrap();
    let calls = |name: &str| {
        let calls = field(name).and_then(|line| line.strip_prefix("calls=")?.split(',').next()?.parse().ok());
        calls.unwrap_or(0_u64)
    };
    let micros = 1e6 * (seconds("used_cpu_user:") + seconds("used_cpu_sys:"));
    (micros, calls("cmdstat_evalsha:") + calls("cmdstat_eval:"))
}

pub fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Asks as the load states, and prints the report.
pub fn child() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    print!("{}", runtime.block_on(ask(&env::var(CHILD).unwrap())));
}

async fn ask(load: &str) -> String {
    let mut fields = load.split(' ');
    let url = fields.next().unwrap();
    let numbers: Vec<u64> = fields.map(|field| field.parse().unwrap()).collect();
    let [
        start,
        number,
        processes,
        in_flight,
        per_second,
        quota,
        window,
        precision,
        duration,
        up_to,
        is_ahead,
    ] = numbers[..]
    else {
        panic!("{load}")
    };
    let [window, precision, duration] = [window, precision, duration].map(Duration::from_millis);
    // Each run has a key of its own.
    let key = PartitionKey::new("tenant", start.to_string());
    let policy = Policy::new("hot", quota as u32, window).unwrap();
    let policy = policy.with_algorithm(Algorithm::SlidingBuckets { precision }).unwrap();
    let lease = Lease::up_to(up_to as u32);
    let lease = if is_ahead > 0 { lease.ahead() } else { lease };
    let policy = if up_to > 0 { policy.leased(lease).unwrap() } else { policy };
    let backend = RedisBackend::connect(url).await.unwrap();
    let limiter = Limiter::builder(backend).policy(policy).deadline(Duration::from_secs(1)).build().unwrap();
    // The scripts are loaded, and the server's clock is known.
    let _ = limiter.check(PartitionKey::new("tenant", "other")).await.unwrap();
    let before = limiter.stats();
    sleep(Duration::from_micros(start.saturating_sub(unix_micros()))).await;
    let (grants, times) = if in_flight > 0 {
        closed_loop(&limiter, &key, in_flight, duration).await;
        Default::default()
    } else {
        let per_second = per_second as f64 / processes as f64;
        open_loop(&limiter, &key, per_second, duration, start ^ number << 32).await
    };
    let stats = limiter.stats();
    limiter.drain().await;
    let end = limiter.stats();
    let mut report = format!(
        "{} {} {} {} {} {} {}\n",
        times.len(),
        times.iter().filter(|time| **time < Duration::from_millis(1)).count(),
        stats.admitted - before.admitted,
        stats.leased_units_granted,
        end.leased_units,
        end.leased_units_returned,
        end.leased_units_lost
    );
    for (from, to) in grants {
        writeln!(report, "{from} {to}").unwrap();
    }
    report
}

/// Asks in some tasks, each one check after the other.
async fn closed_loop(limiter: &Limiter, key: &PartitionKey, in_flight: u64, duration: Duration) {
    let end = Instant::now() + duration;
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let (limiter, key) = (limiter.clone(), key.clone());
            tokio::spawn(async move {
                let mut asked = 0_u32;
                while !asked.is_multiple_of(16) || Instant::now() < end {
                    let decision = limiter.check(key.clone()).await.unwrap();
                    assert!(decision.is_admitted());
                    asked += 1;
                    // As a request that does something else than its check.
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Asks at random instants. Returns the admissions, and the times of the checks.
async fn open_loop(
    limiter: &Limiter,
    key: &PartitionKey,
    per_second: f64,
    duration: Duration,
    seed: u64,
) -> (Vec<(u64, u64)>, Vec<Duration>) {
    let grants = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let (start, mut at, mut random) = (Instant::now(), 0.0, seed);
    let mut tasks = tokio::task::JoinSet::new();
    while at < duration.as_secs_f64() {
        sleep_until(start + Duration::from_secs_f64(at)).await;
        let (limiter, key, grants) = (limiter.clone(), key.clone(), grants.clone());
        tasks.spawn(async move {
            let (before, started) = (unix_micros(), Instant::now());
            let decision = limiter.check(key).await.unwrap();
            if started > start + WARM_UP {
                grants.lock().unwrap().1.push(started.elapsed());
            }
            if decision.is_admitted() {
                // The store states its instant exactly.
                let exact = (decision.at_micros(), decision.at_micros());
                let grant = if decision.is_leased() { (before, unix_micros()) } else { exact };
                grants.lock().unwrap().0.push(grant);
            }
        });
        at -= (1.0 - uniform(&mut random)).ln() / per_second;
    }
    tasks.join_all().await;
    grants.lock().unwrap().clone()
}

/// Returns a random number from 0 to below 1 (SplitMix64).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}
