//! A connection that writes many calls at once and costs nearly nothing itself, and the server's own figures.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::server::Server;

pub struct Wire {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    expected: usize,
    /// Calls of scripts, and the microseconds of all of them, at every mark.
    marks: Vec<(f64, f64)>,
}

impl Wire {
    pub fn at(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server answers");
        stream.set_nodelay(true).unwrap();
        // Nothing here waits for ever.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        Self {
            stream: BufReader::with_capacity(1 << 16, stream),
            out: Vec::new(),
            expected: 0,
            marks: Vec::new(),
        }
    }

    pub fn queue(&mut self, words: &[&[u8]]) {
        // Writing into memory never fails.
        write!(self.out, "*{}\r\n", words.len()).unwrap();
        for word in words {
            write!(self.out, "${}\r\n", word.len()).unwrap();
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
        self.expected += 1;
    }

    /// Has the server tell what it has spent until here. A machine that is busy with other things takes the processor away
    /// in the middle of a call: between two marks are so few calls that most pieces know nothing of it.
    pub fn queue_mark(&mut self) {
        self.queue(&[b"INFO", b"commandstats"]);
    }

    /// The microseconds of a call between every mark and the next one, and forgets the marks.
    pub fn pieces(&mut self) -> Vec<f64> {
        let pieces = self.marks.windows(2).map(|marks| (marks[1].1 - marks[0].1) / (marks[1].0 - marks[0].0));
        let pieces = pieces.collect();
        self.marks.clear();
        pieces
    }

    /// Something to do between two calls that is no script: every fiftieth script pays for the collection of garbage.
    pub fn queue_pings(&mut self, pings: usize) {
        self.out.extend_from_slice(&b"PING\r\n".repeat(pings));
        self.expected += pings;
    }

    /// Sends what is queued if it is much, and drops the replies.
    pub fn send_if_much(&mut self) {
        if self.expected >= 256 {
            self.send(|_| {});
        }
    }

    /// Sends what is queued, and hands on every reply but those to pings and marks.
    pub fn send(&mut self, mut each: impl FnMut(&[u8])) {
        self.stream.get_mut().write_all(&self.out).expect("the server reads");
        self.out.clear();
        let mut line = Vec::new();
        for _ in 0..std::mem::take(&mut self.expected) {
            line.clear();
            self.stream.read_until(b'\n', &mut line).expect("the server answers");
            let text = &line[1..line.len() - 2];
            match line[0] {
                b'$' => {
                    let length: usize = std::str::from_utf8(text).unwrap().parse().expect("a value");
                    line.resize(length + 2, 0);
                    self.stream.read_exact(&mut line).expect("the server answers");
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

    /// One command, and its reply as a text.
    pub fn ask(&mut self, words: &[&[u8]]) -> String {
        let mut text = String::new();
        self.queue(words);
        self.send(|reply| text = String::from_utf8_lossy(reply).into_owned());
        text
    }

    pub fn number(&mut self, words: &[&[u8]]) -> u64 {
        self.ask(words).parse().expect("a number")
    }

    /// The server's clock, in microseconds.
    pub fn now_micros(&mut self) -> u64 {
        // Two words in an array would be another kind of reply.
        self.number(&[
            b"EVAL",
            b"local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])",
            b"0",
        ])
    }

    /// The microseconds that a ping takes, everything included.
    pub fn pace_of_pings(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..10 {
            self.queue_pings(10_000);
            self.send(|_| {});
        }
        start.elapsed().as_secs_f64() * 1e6 / 100_000.0
    }
}

fn calls_and_micros(info: &[u8]) -> (f64, f64) {
    let info = std::str::from_utf8(info).expect("a text");
    // None is there until there was a call.
    let Some(line) = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")) else {
        return (0.0, 0.0);
    };
    let field = |name: &str| {
        let value = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.expect("a field").parse().expect("a number")
    };
    (field("calls"), field("usec"))
}

/// The arguments of a check of one pair, at whatever time it comes.
pub fn pair(quota: u32, cost: u32, window: u64, shape: i64) -> Vec<u8> {
    pairs(quota, cost, [window], shape)
}

/// The same for several windows.
pub fn pairs(quota: u32, cost: u32, windows: impl IntoIterator<Item = u64>, shape: i64) -> Vec<u8> {
    let pairs = windows.into_iter().flat_map(|window| {
        let numbers = [&quota.to_le_bytes()[..], &cost.to_le_bytes(), &window.to_le_bytes()[..6]].concat();
        [numbers, shape.to_le_bytes()[..6].to_vec()].concat()
    });
    pairs.chain(u64::MAX.to_le_bytes()).collect()
}

/// A key of the length that the crate's have.
pub fn key(space: u64, number: usize) -> String {
    format!("tsw:1:{{{space:016x}{number:016x}}}:burst:log:10000000")
}

/// The median of what could be measured.
pub fn median(values: Vec<f64>) -> f64 {
    quantile(values, 2)
}

/// What a round is told by: the first quartile of its pieces. What a busy machine does to a piece makes it longer, and
/// never shorter.
pub fn undisturbed(pieces: Vec<f64>) -> f64 {
    quantile(pieces, 4)
}

fn quantile(mut values: Vec<f64>, part: usize) -> f64 {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / part).copied().unwrap_or(f64::NAN)
}

/// The median of what one took against the other in the same round.
pub fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

/// The reply to a check of one pair: whether it admits, and what remains.
pub fn verdict(reply: &[u8]) -> (bool, u32) {
    if reply.len() < 37 {
        return (true, 0);
    }
    (reply[8] == 0, u32::from_le_bytes([reply[9], reply[10], reply[11], reply[12]]))
}
