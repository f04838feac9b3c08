// The limited service: sends requests to it, and shows its responses.

import { drawLive } from "./chart.js";
import { ask, textOf } from "./errors.js";
import { startOutage } from "./outage.js";
import { startPolicies } from "./policies.js";

/** The responses that the page keeps. */
const KEPT = 4000;
/** The time that the chart shows, in seconds. */
const SPAN = 30;
/** The longest wait for the edge of a window, in seconds. */
const LONGEST_WAIT = 60;

const $ = (selector) => document.querySelector(selector);
const now = () => performance.now() / 1000;
const sleep = (time) => new Promise((done) => setTimeout(done, Math.max(0, time * 1000)));

/** Returns the items of a RateLimit field: the name, the remaining units, and the seconds until they grow. */
function limits(field) {
  const items = (field ?? "").matchAll(/"((?:[^"\\]|\\.)*)";r=(\d+)(?:;t=(\d+))?/g);
  return new Map([...items].map(([, name, r, t]) => [name.replace(/\\(.)/g, "$1"), { remaining: Number(r), next: t && Number(t) }]));
}

const NO_UNITS = { all: 0, usage: 0, local: 0, unchecked: 0 };

/** Returns the most units that one API key has in any window, by the times of the backend: `all`, and those of each kind. */
function worst(admissions, window) {
  const sorted = [...admissions].sort((a, b) => a.decided - b.decided);
  let most = NO_UNITS;
  for (const key of new Set(sorted.map((event) => event.key))) {
    const charges = sorted.filter((event) => event.key === key);
    const units = { ...NO_UNITS };
    const add = ({ cost, kind }, sign) => { for (const name of ["all", kind]) units[name] += sign * cost; };
    let first = 0;
    for (const charge of charges) {
      add(charge, 1);
      while (charges[first].decided + window <= charge.decided) add(charges[first++], -1);
      if (units.all > most.all) most = { ...units };
    }
  }
  return most;
}

export function startLive(changed) {
  const form = $("#send-form");
  let events = [];
  let counts = {};
  let wait = null;
  let offset = null;
  /** How often counting has started from zero. */
  let restarts = 0;
  let stream = null;
  let inFlight = 0;
  let dirty = true;
  /** The remaining shares of policies in flight, which change without a response. */
  let samples = [];
  const wires = {};
  const status = (text) => { $("#send-status").textContent = text; };
  const policies = startPolicies(clear, () => { dirty = true; });
  const outage = startOutage(policies.haveBeenInForce, () => form.elements.key.value, showHeld);

  function clear() {
    [events, samples] = [[], []];
    counts = { usage: 0, local: 0, unchecked: 0, denied: 0, unavailable: 0 };
    wait = null;
    restarts += 1;
    policies.all().forEach((policy) => Object.assign(policy, { known: null, rejections: 0 }));
    dirty = true;
  }

  /** Sends one request, and returns its response. Fails if the program does not answer. */
  async function send() {
    const [key, cost] = [form.elements.key.value, Number(form.elements.cost.value)];
    const work = Math.round(1000 * form.elements.duration.value);
    const path = `/limited?cost=${cost}${work > 0 ? `&ms=${work}` : ""}`;
    const request = { path, key, cost, sent: now(), restarts };
    inFlight += 1;
    try {
      // Otherwise the browser sends equal requests one after another, because the response to one may answer the next.
      const [response, body] = await ask(path, { headers: { "x-api-key": key }, cache: "no-store" });
      // Otherwise it belongs to the counting before.
      if (request.restarts === restarts) record(response, body, request);
      return response;
    } finally {
      inFlight -= 1;
    }
  }

  /** Notes the units that requests hold, by the policy in flight. */
  function showHeld(held) {
    const remaining = policies.all().map((policy) => {
      if (!(policy.name in held)) return undefined;
      policy.known = { remaining: policy.quota - held[policy.name] };
      return Math.max(0, policy.known.remaining / policy.quota);
    });
    if (remaining.every((share) => share === undefined)) return;
    samples = [...samples.filter((sample) => sample.at > now() - SPAN), { at: now(), remaining }];
    dirty = true;
  }

  function record(response, body, request) {
    const admitted = response.ok;
    const answer = admitted ? JSON.parse(body) : {};
    const kinds = { backend: "usage", "local fallback": "local", "fail open": "unchecked" };
    const kind = admitted ? kinds[answer.admitted_by] : response.status === 429 ? "denied" : "unavailable";
    const received = now();
    // The clock of the backend, as far as it is known.
    if (answer.at_micros) offset = answer.at_micros / 1e6 - received;
    const at = answer.at_micros ? answer.at_micros / 1e6 : received + (offset ?? Date.now() / 1000 - received);
    // The responses of a burst arrive in any order. The page shows the state after the latest decision. In the same
    // microsecond, that is a denial.
    const micros = Number(answer.at_micros ?? response.headers.get("x-decided-at-micros") ?? 0);
    const wire = { request, response, body, received, order: admitted ? micros : micros + 0.5 };
    const follows = (other) => !other || !micros || request.sent >= other.received || wire.order >= other.order;
    const isLatest = follows(wires.last);
    for (const view of ["last", admitted ? "admitted" : "rejected"]) if (follows(wires[view])) wires[view] = wire;
    const known = limits(response.headers.get("ratelimit"));
    const violated = response.status === 429 ? (JSON.parse(body)["violated-policies"] ?? []) : [];
    const remaining = policies.all().map((policy) => {
      const item = known.get(policy.name);
      if (violated.includes(policy.name)) policy.rejections += 1;
      if (isLatest) {
        if (item) policy.known = item;
        policy.rejects = violated.includes(policy.name);
      }
      return item && Math.min(1, item.remaining / policy.quota);
    });
    const advertised = response.headers.get("retry-after");
    if (isLatest) wait = advertised;
    counts[kind] += 1;
    events.push({ at: received, decided: at, kind, key: request.key, cost: request.cost, remaining, wait: Number(advertised ?? 0), admitted });
    if (events.length > KEPT) events = events.slice(-KEPT);
    outage.saw(kind, answer.error);
    dirty = true;
  }

  /** Sends a burst of requests at once. Returns how many were admitted. */
  async function burst() {
    const size = Number(form.elements.burst.value);
    const responses = await Promise.all(Array.from({ length: size }, send));
    return responses.filter((response) => response.ok).length;
  }

  async function burstsAcrossEdge() {
    const [response, text] = await ask("api/clock");
    if (!response.ok) return status("The backend does not tell its time. Start it first.");
    const { at_micros } = JSON.parse(text);
    const begin = at_micros / 1e6 - now();
    const { window, name } = policies.all().find((policy) => policy.algorithm !== "in-flight") ?? {};
    if (!window) return status("No policy has a window.");
    const size = Number(form.elements.burst.value);
    const lead = 0.25 + size * 0.006;
    const edge = Math.ceil((begin + now() + lead) / window) * window - begin;
    if (edge - now() > LONGEST_WAIT) {
      return status(`The next edge of the window of "${name}" is in ${Math.ceil(edge - now())} s. Choose a window of at most ${LONGEST_WAIT} s.`);
    }
    status(`The next edge of the window of "${name}" is in ${(edge - now()).toFixed(1)} s. The first burst begins ${lead.toFixed(1)} s before it.`);
    await sleep(edge - lead - now());
    const first = now();
    const before = await burst();
    const missed = now() > edge;
    await sleep(edge + 0.02 - now());
    const after = await burst();
    const result = `Before the edge: ${before} of ${size} admitted. After the edge: ${after} of ${size} admitted.`;
    // Otherwise, the requests are not in one interval as long as the window.
    const slow = missed || now() > first + window;
    status(slow ? `${result} The requests were too slow to show the edge. Please try again.` : result);
  }

  /** Sends requests at a constant rate until the stream is stopped. */
  function startStream() {
    const begun = now();
    let sent = 0;
    stream = setInterval(() => {
      const rate = Math.min(100, Math.max(0.2, Number(form.elements.rate.value) || 0.2));
      // After a pause of the browser, the stream does not catch up. It pauses while the form is invalid.
      const due = form.checkValidity() ? Math.min(Math.floor((now() - begun) * rate) + 1 - sent, 20) : 0;
      for (let i = 0; i < due && inFlight < 100; i += 1) send().catch((error) => status(textOf(error)));
      sent = Math.floor((now() - begun) * rate) + 1;
    }, 50);
  }

  function stopStream() {
    clearInterval(stream);
    stream = null;
  }

  function clicked(id, action) {
    $(id).addEventListener("click", async (event) => {
      if (!form.reportValidity()) return;
      const button = event.currentTarget;
      button.setAttribute("aria-busy", "true");
      try {
        await policies.ready();
        await action(button);
      } catch (error) {
        status(textOf(error));
      } finally {
        button.removeAttribute("aria-busy");
      }
    });
  }

  clicked("#send-one", async () => {
    const response = await send();
    status(response.ok ? "Admitted." : `Rejected with status ${response.status}.`);
  });
  clicked("#send-burst", async () => {
    const admitted = await burst();
    status(`${admitted} of ${form.elements.burst.value} admitted.`);
  });
  let waiting = false;
  clicked("#send-edge", async () => {
    if (waiting) return;
    waiting = true;
    await burstsAcrossEdge().finally(() => { waiting = false; });
  });
  clicked("#send-stream", (button) => {
    if (stream) stopStream();
    else startStream();
    button.setAttribute("aria-pressed", String(stream !== null));
    button.textContent = stream ? "Stop the stream" : "Steady stream";
    status(stream ? "The stream runs." : "The stream has stopped.");
  });
  $("#restart").addEventListener("click", () => policies.apply(true));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.querySelectorAll("[name=wire]").forEach((radio) => radio.addEventListener("change", () => { dirty = true; }));

  function render() {
    // Each response is in one of the three tiles.
    $("#tile-admitted").textContent = counts.usage;
    $("#tile-rejected").textContent = counts.denied;
    const admitted = counts.local + counts.unchecked;
    $("#tile-outage").textContent = admitted + counts.unavailable;
    $("#tile-outage-parts").textContent = `${admitted} admitted, ${counts.unavailable} rejected with 503`;
    $("#tile-wait").textContent = wait === null ? "–" : `${wait} s`;
    const admissions = events.filter((event) => event.admitted);
    policies.show((policy) => worst(admissions, policy.window));
    showWire(wires[$("[name=wire]:checked").value]);
    const shown = events.filter((event) => event.at > now() - SPAN);
    const title = `The last ${SPAN} s: ${shown.filter((event) => event.admitted).length} requests admitted, ${shown.filter((event) => !event.admitted).length} rejected.`;
    drawLive($("#live-chart"), { now: now(), span: SPAN, events: shown, samples, policies: policies.all(), title });
    return shown.length > 0 || samples.length > 0;
  }

  clear();
  let moves = false;
  const frame = () => {
    if (!document.hidden && (dirty || moves)) {
      if (dirty) changed();
      dirty = false;
      moves = render();
    }
  };
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  setInterval(frame, calm ? 1000 : 100);
  new ResizeObserver(() => { dirty = true; }).observe($("#live-chart"));

  return {
    /** Returns the requests that the backend has decided, in seconds from an edge of a window of this length. */
    trace(window) {
      const decided = events.filter((event) => event.kind === "usage" || event.kind === "denied").slice(-2000);
      if (!decided.length) return [];
      const edge = Math.floor(decided[0].decided / window) * window;
      return decided.map((event) => [event.decided - edge, event.cost]);
    },
  };
}

/** Shows a request and its response, with the fields as the browser has received them. */
function showWire(wire) {
  const place = $("#wire");
  if (!wire) return;
  const { request, response, body } = wire;
  const span = (kind, text) => Object.assign(document.createElement(kind === "b" ? "b" : "span"), { className: kind === "b" ? "" : kind, textContent: text });
  const parts = [span("dim", `GET ${request.path} HTTP/1.1\nx-api-key: ${request.key}\n\n`)];
  const names = { 200: "OK", 400: "Bad Request", 429: "Too Many Requests", 503: "Service Unavailable" };
  parts.push(span(response.ok ? "ok" : "no", `HTTP/1.1 ${response.status} ${response.statusText || names[response.status] || ""}\n`));
  const limited = ["ratelimit", "ratelimit-policy", "retry-after"];
  for (const [name, value] of response.headers) {
    parts.push(limited.includes(name) ? span("b", name) : span("dim", name), `: ${value}\n`);
  }
  parts.push(`\n${body}`);
  const text = parts.map((part) => part.textContent ?? part).join("");
  // A selection of the text stays while nothing changes.
  if (place.textContent !== text) place.replaceChildren(...parts);
}
