//! Five processes acquire units of one key, while a sixth one kills them, stops them and drops replies of the server.
//!
//! Each process reports the begin and the end of each request on one pipe, whose bytes have one order. So the count of
//! running requests is that of an instant, and needs no clock.

use std::{
    env,
    io::{PipeReader, PipeWriter, Read, Write, pipe, stderr},
    process::{Child, Command},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use tokio::{
    runtime::Runtime,
    task::{JoinSet, yield_now},
    time::sleep,
};
use tower_sliding_window::{Limiter, PartitionKey, Policy, RedisBackend};

use super::proxy::{Cut, Proxy};
use crate::support::server::{Engine, Server};

const TEST: &str = "redis_server::in_flight_processes::processes_with_faults_never_exceed_quota";

/// The variable with the number and the address of a process of this program.
const WORKER: &str = "TEST_IN_FLIGHT_WORKER";

const PROCESSES: u8 = 5;
const QUOTA: u32 = 50;
const HOLD_TIME: Duration = Duration::from_secs(2);

/// What a process writes when a request begins and when it ends, and what the parent writes when the process is dead: the
/// first byte of a range with one for each process.
const BEGINS: u8 = b'a';
const ENDS: u8 = b'A';
const DIED: u8 = b'0';

/// `IN_FLIGHT_ACQUISITIONS` sets another number of acquisitions.
fn acquisitions() -> u64 {
    env::var("IN_FLIGHT_ACQUISITIONS").map_or(5_000, |number| number.parse().unwrap())
}

fn key() -> PartitionKey {
    PartitionKey::new("tenant", "a")
}

fn limiter(url: &str) -> Limiter {
    let exports = Policy::in_flight("exports", QUOTA).unwrap().hold_time(HOLD_TIME).unwrap();
    let backend = RedisBackend::lazy(url).unwrap();
    Limiter::builder(backend).policy(exports).deadline(HOLD_TIME / 4).build().unwrap()
}

/// Runs requests until the parent kills this process, or no longer reads.
async fn work(url: String, number: u8) {
    let limiter = limiter(&url);
    let mut requests = JoinSet::new();
    for request in 0..QUOTA {
        let limiter = limiter.clone();
        requests.spawn(async move {
            loop {
                if let Ok(admission) = limiter.check(key()).await
                    && admission.is_admitted()
                {
                    stderr().write_all(&[BEGINS + number]).unwrap();
                    // Some requests take long: kills and stops meet them.
                    if request % 4 == 0 {
                        sleep(Duration::from_millis(20)).await
                    } else {
                        yield_now().await
                    }
                    stderr().write_all(&[ENDS + number]).unwrap();
                } else {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }
    requests.join_next().await;
}

/// One of the processes, behind a proxy of its own.
struct Worker {
    process: Child,
    number: u8,
    proxy: Proxy,
    reports: PipeWriter,
}

impl Worker {
    async fn start(server: &Server, number: u8, reports: PipeWriter) -> Self {
        let proxy = Proxy::before(server).await;
        Self { process: spawn(&proxy, number, &reports), number, proxy, reports }
    }

    fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
    }

    /// Kills the process, and reports that its requests have ended.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.reports.write_all(&[DIED + self.number]).unwrap();
    }

    async fn suffer(&mut self, fault: u64) {
        match fault % 8 {
            0 => {
                self.kill();
                self.process = spawn(&self.proxy, self.number, &self.reports);
            }
            // Less than two thirds of the hold time.
            1 => {
                self.signal("STOP");
                sleep(HOLD_TIME.mul_f64(0.55)).await;
                self.signal("CONT");
            }
            fault => self.proxy.cut_next(Cut::ALL[fault as usize % 2]),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(proxy: &Proxy, number: u8, reports: &PipeWriter) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture", "--quiet"])
        .env(WORKER, format!("{number} {}", proxy.url()))
        .stdout(std::process::Stdio::null())
        .stderr(reports.try_clone().unwrap())
        .spawn()
        .unwrap()
}

/// What the pipe has shown.
#[derive(Debug, Default)]
struct Count {
    running: [u32; PROCESSES as usize],
    begun: u64,
    most: u32,
    /// How often more requests ran than the quota permits.
    violations: u64,
    /// What is no report, such as the message of a panic.
    text: Vec<u8>,
}

impl Count {
    fn read(&mut self, report: u8) {
        let process = |first: u8| report.checked_sub(first).filter(|process| *process < PROCESSES);
        if let Some(process) = process(BEGINS) {
            self.running[process as usize] += 1;
            self.begun += 1;
            let running = self.running.iter().sum();
            self.most = self.most.max(running);
            self.violations += u64::from(running > QUOTA);
        } else if let Some(process) = process(ENDS) {
            self.running[process as usize] -= 1;
        } else if let Some(process) = process(DIED) {
            self.running[process as usize] = 0;
        } else {
            self.text.push(report);
        }
    }
}

/// Counts until a number of requests has begun, and returns the count when every writer is closed.
fn count(mut reports: PipeReader, enough: Sender<()>) -> Count {
    let (mut count, mut buffer) = (Count::default(), vec![0; 4_096]);
    loop {
        let read = reports.read(&mut buffer).unwrap();
        if read == 0 {
            return count;
        }
        buffer[..read].iter().for_each(|report| count.read(*report));
        if count.begun >= acquisitions() || !count.text.is_empty() {
            let _ = enough.send(());
        }
    }
}

async fn torment(server: &Server, reports: PipeWriter, enough: Receiver<()>) -> u64 {
    let mut workers = Vec::new();
    for number in 0..PROCESSES {
        workers.push(Worker::start(server, number, reports.try_clone().unwrap()).await);
    }
    drop(reports);
    let (mut random, mut kills) = (7_u64, 0);
    while enough.try_recv().is_err() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_millis(random >> 56)).await;
        let fault = random >> 40;
        kills += u64::from(fault % 8 == 0);
        workers[(random >> 33) as usize % PROCESSES as usize].suffer(fault).await;
    }
    for worker in &mut workers {
        worker.kill();
    }
    kills
}

#[test]
fn processes_with_faults_never_exceed_quota() {
    let runtime = Runtime::new().unwrap();
    if let Ok(worker) = env::var(WORKER) {
        let (number, url) = worker.split_once(' ').unwrap();
        return runtime.block_on(work(url.to_owned(), number.parse().unwrap()));
    }
    let server = Server::start(Engine::Redis);
    let ((reader, writer), (enough, is_enough)) = (pipe().unwrap(), channel());
    let counting = thread::spawn(move || count(reader, enough));
    let kills = runtime.block_on(torment(&server, writer, is_enough));
    let count = counting.join().unwrap();
    println!("{} acquisitions, {kills} kills, at most {} of {QUOTA} at once", count.begun, count.most);
    assert!(count.text.is_empty(), "{}", String::from_utf8_lossy(&count.text));
    assert_eq!(count.violations, 0, "{count:?}");
    assert!(count.most > QUOTA / 2 && kills > 0, "{kills} kills, {count:?}");
    // The units of dead processes return within the hold time.
    runtime.block_on(async {
        sleep(HOLD_TIME).await;
        let decision = limiter(&server.url()).peek((key(), 0)).await.unwrap();
        assert_eq!(decision.statuses()[0].remaining(), QUOTA);
    });
}
