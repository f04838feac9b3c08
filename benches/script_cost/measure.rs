//! Measures calls: a connection that pipelines many calls at little cost of its own, the server's figures, and statistics.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::server::Server;

/// A read or write that takes longer fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that writes many commands at once.
pub struct Pipeline {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    expected: usize,
    /// The calls of scripts and their microseconds, at each mark.
    marks: Vec<(f64, f64)>,
}

impl Pipeline {
    pub fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        let stream = BufReader::with_capacity(1 << 16, stream);
        Self { stream, out: Vec::new(), expected: 0, marks: Vec::new() }
    }

    pub fn queue(&mut self, words: &[&[u8]]) {
        // A write into memory never fails.
        write!(self.out, "*{}\r\n", words.len()).unwrap();
        for word in words {
            write!(self.out, "${}\r\n", word.len()).unwrap();
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
        self.expected += 1;
    }

    /// Queues a reading of the server's figures. The calls between two marks are one sample. A sample is short: on a busy
    /// machine, most samples are then not interrupted.
    pub fn queue_mark(&mut self) {
        self.queue(&[b"INFO", b"commandstats"]);
    }

    /// Returns the microseconds per call of each sample, and drops the marks.
    pub fn samples(&mut self) -> Vec<f64> {
        let samples =
            self.marks.windows(2).map(|marks| (marks[1].1 - marks[0].1) / (marks[1].0 - marks[0].0));
        let samples = samples.collect();
        self.marks.clear();
        samples
    }

    /// Queues commands that are not scripts, to pass time between two calls. Garbage collection does not count them: it runs
    /// in one script call of fifty.
    pub fn queue_pings(&mut self, pings: usize) {
        self.out.extend_from_slice(&b"PING\r\n".repeat(pings));
        self.expected += pings;
    }

    /// Sends the queue if it is long, and drops the replies.
    pub fn flush_if_full(&mut self) {
        if self.expected >= 256 {
            self.flush(|_| {});
        }
    }

    /// Sends the queue, and calls the function with each reply, except for those to pings and marks.
    pub fn flush(&mut self, mut each: impl FnMut(&[u8])) {
        self.stream.get_mut().write_all(&self.out).expect("a write");
        self.out.clear();
        let mut line = Vec::new();
        for _ in 0..std::mem::take(&mut self.expected) {
            line.clear();
            self.stream.read_until(b'\n', &mut line).expect("a reply");
            let text = &line[1..line.len() - 2];
            match line[0] {
                b'$' => {
                    let length: usize = std::str::from_utf8(text).unwrap().parse().expect("a value");
                    line.resize(length + 2, 0);
                    self.stream.read_exact(&mut line).expect("a reply");
                    if line.starts_with(b"# Commandstats") {
                        self.marks.push(calls_and_micros(&line));
                    } else {
                        each(&line[..length]);
                    }
                }
                b'+' if text == b"PONG" => {}
                b'-' => panic!("{}", String::from_utf8_lossy(text)),
                _ => each(text),
            }
        }
    }

    /// Sends one command, and returns its reply as a text.
    pub fn ask(&mut self, words: &[&[u8]]) -> String {
        let mut text = String::new();
        self.queue(words);
        self.flush(|reply| text = String::from_utf8_lossy(reply).into_owned());
        text
    }

    pub fn number(&mut self, words: &[&[u8]]) -> u64 {
        self.ask(words).parse().expect("a number")
    }

    /// Returns the server's clock, in microseconds.
    pub fn now_micros(&mut self) -> u64 {
        // The reply to TIME itself is an array, which `flush` does not read.
        self.number(&[
            b"EVAL",
            b"local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])",
            b"0",
        ])
    }

    /// Returns the microseconds per ping, including the connection.
    pub fn pace_of_pings(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..10 {
            self.queue_pings(10_000);
            self.flush(|_| {});
        }
        start.elapsed().as_secs_f64() * 1e6 / 100_000.0
    }
}

fn calls_and_micros(info: &[u8]) -> (f64, f64) {
    let info = std::str::from_utf8(info).expect("a text");
    // The line is missing before the first call.
    let Some(line) = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")) else {
        return (0.0, 0.0);
    };
    let field = |name: &str| {
        let value = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.expect("a field").parse().expect("a number")
    };
    (field("calls"), field("usec"))
}

/// The generation of every check. The times do not depend on it.
const GENERATION: [u8; 7] = *b"generat";

/// Returns the arguments of a check of one pair, without a deadline. The type of the policy is above the 45 bits of its parameter.
pub fn pair(quota: u32, cost: u32, window: u64, typed_parameter: u64) -> Vec<u8> {
    pairs(quota, cost, [window], typed_parameter)
}

/// The type token bucket, above the 45 bits of its parameter.
pub const TOKENS: u64 = 4 << 45;

/// The type calendar period, above the 45 bits of its parameter.
pub const CALENDAR: u64 = 6 << 45;

/// Returns the window and the type with its parameter of a calendar period: the boundary between two periods of these lengths. All of them
/// are in minutes.
pub fn calendar_fields(boundary: u64, [before, after]: [u64; 2]) -> (u64, u64) {
    (before << 24 | after, CALENDAR + boundary)
}

/// Returns the arguments of a check with one pair per window, without a deadline. A token bucket has the rate of one quota for each
/// window: a unit has as many parts as microseconds until it returns, and a microsecond returns one of them.
pub fn pairs(quota: u32, cost: u32, windows: impl IntoIterator<Item = u64>, typed_parameter: u64) -> Vec<u8> {
    let pairs = windows.into_iter().flat_map(|window| {
        let (window, typed_parameter) = match typed_parameter {
            TOKENS => ((window / u64::from(quota)).max(1), TOKENS + 1),
            _ => (window, typed_parameter),
        };
        let numbers = [&quota.to_le_bytes()[..], &cost.to_le_bytes(), &window.to_le_bytes()[..6]].concat();
        [numbers, typed_parameter.to_le_bytes()[..6].to_vec()].concat()
    });
    u64::MAX.to_le_bytes().into_iter().chain(pairs).chain(GENERATION).collect()
}

/// Returns a key that is as long as the crate's keys.
pub fn key(space: u64, number: usize) -> String {
    format!("tsw{{{space:011x}{number:011x}}}Asburst")
}

/// Returns the median of all numbers.
pub fn median(values: Vec<f64>) -> f64 {
    quantile(values, 2)
}

/// Returns the figure of a round: the first quartile of its samples. A busy machine makes a sample longer, never shorter.
pub fn undisturbed(samples: Vec<f64>) -> f64 {
    quantile(samples, 4)
}

fn quantile(mut values: Vec<f64>, part: usize) -> f64 {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / part).copied().unwrap_or(f64::NAN)
}

/// Returns the median of the ratios, each of two figures of the same round.
pub fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

/// Returns whether a reply to a check of one pair admits, and what remains.
pub fn verdict(reply: &[u8]) -> (bool, u32) {
    if reply.len() < 37 {
        return (true, 0);
    }
    (reply[8] == 0, u32::from_le_bytes([reply[9], reply[10], reply[11], reply[12]]))
}
