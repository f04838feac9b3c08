// The comparison: makes a trace, asks the program what each counter decides, and draws the answer.

import { drawLane, seconds } from "./chart.js";
import { ask, invalid, textOf } from "./errors.js";

const HINTS = {
  edge: "A burst ends just before the edge of a calendar window. The same burst begins just after it.",
  early: "A request comes about one window earlier. So the counter of INCREX, which begins with it, ends between the bursts.",
  apart: "The second burst ends just before the next edge, when little is left of the previous window. This is the worst case of two counters.",
  steady: "A constant rate for three windows. Above the quota for one window, each counter must deny a part of it.",
  live: "The requests that you have sent, at the times at which the backend decided them.",
};
const NOTES = {
  "sliding log": "exact",
  "sliding buckets": "never over the quota",
  "sliding counter": "approximate, two counters",
  "fixed window": "exact within a calendar window",
  "token bucket": "a full bucket, and its rate",
  INCREX: "simulation: from the first request",
  "two counters": "simulation: the usual script",
};

/** Returns the trace of a pattern: `[seconds from an edge, cost]` of each request. */
export function pattern(kind, { window, quota, cost, burst, rate }) {
  // Two counters let the previous window leave evenly: one unit of the quota in each of these times.
  const unit = window / quota;
  const burstFrom = (begin, length) => Array.from({ length: burst }, (_, i) => [begin + (i * length) / burst, cost]);
  const [first, second] = [burstFrom(-window * 0.07, window * 0.06), burstFrom(unit * 0.15, unit * 0.75)];
  switch (kind) {
    case "early":
      return [[-window * 1.005, cost], ...first, ...second];
    case "apart":
      // The second burst ends within one window of the first request. Less than one unit of the first burst is left then.
      return [...burstFrom(-unit * 0.25, unit * 0.25), ...burstFrom(window - unit * 0.55, unit * 0.25)];
    case "steady": {
      const count = Math.min(5000, Math.floor(3 * window * rate));
      return Array.from({ length: count }, (_, i) => [i / rate, cost]);
    }
    default:
      return [...first, ...second];
  }
}

const verdict = (lane) => (lane.over > 0 ? `${lane.over} over the quota` : "within the quota");

/** Returns a sentence that states which counters exceed the quota. */
function headline(lanes, quota, window) {
  const over = lanes.filter((lane) => lane.over > 0);
  if (!lanes[0].requests.length) return "No requests yet.";
  if (!over.length) return `No counter exceeds the quota of ${quota} units in any ${seconds(window)}.`;
  const names = over.map((lane) => `${lane.name} by ${lane.over}`);
  const list = names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0];
  return `${over.length} of ${lanes.length} exceed the quota of ${quota} units in ${seconds(window)}: ${list}.`;
}

export function startComparison(liveTrace) {
  const form = document.querySelector("#compare-form");
  const list = document.querySelector("#lanes");
  const error = document.querySelector("#compare-error");
  let shown = null;
  let asked = 0;

  function settings() {
    const value = (name) => Number(form.elements[name].value);
    // A larger burst would be more than the program accepts.
    const burst = Math.min(Math.max(Math.floor(value("burst")), 1), 2500);
    return { window: value("window"), quota: value("quota"), cost: value("cost"), burst, rate: value("rate"), precision: value("precision") };
  }

  /** Sets the range of the precision, which depends on the window: a window has at most 4096 buckets. */
  function bound(precision, window) {
    precision.min = Math.max(0.001, Math.ceil((window / 4096) * 1000) / 1000);
    precision.max = Math.max(precision.min, window);
  }

  function draw() {
    if (!shown) return;
    shown.lanes.forEach((lane, index) => {
      const place = list.children[index].querySelector(".plot");
      drawLane(place, { ...shown, lane, title: lane.sentence });
    });
  }

  function show(answer, trace, { window, quota }) {
    const sorted = [...trace].sort((a, b) => a[0] - b[0]);
    const lanes = answer.map((lane) => ({
      ...lane,
      edges: lane.edges.map((micros) => micros / 1e6),
      worst: { from: lane.worst.from / 1e6, units: lane.worst.units },
      requests: sorted.map(([at, cost], i) => ({ at, cost, admitted: lane.decisions[i][0], wait: lane.decisions[i][2] })),
    }));
    for (const lane of lanes) {
      lane.firstDenied = lane.requests.find((request) => !request.admitted);
      lane.sentence = `${lane.name}: ${lane.admitted} units admitted, ${lane.denied} denied. The worst window has ${lane.worst.units} units; the quota is ${quota}.`;
    }
    const times = sorted.map(([at]) => at);
    const from = Math.min(0, ...times) - window * 0.06;
    const to = Math.max(0, ...times) + window * 1.08;
    const top = Math.max(quota, ...lanes.map((lane) => lane.worst.units)) * 1.05;
    shown = { lanes, from, to, top, quota, window };
    list.replaceChildren(...lanes.map((lane) => card(lane)));
    document.querySelector("#compare-result").textContent = headline(lanes, quota, window);
    document.querySelector("#totals-title").textContent = `The most units that each counter admits in any ${seconds(window)}. The quota is ${quota}.`;
    document.querySelector("#totals").replaceChildren(...lanes.map((lane) => total(lane)));
    draw();
  }

  /** Returns what a counter admits, in short. */
  function total(lane) {
    const item = document.createElement("li");
    item.className = lane.over > 0 ? "exceeds" : "within";
    item.dataset.total = lane.name;
    const parts = { counter: lane.name, most: lane.worst.units, over: verdict(lane), all: `${lane.admitted} in all` };
    for (const [name, text] of Object.entries(parts)) {
      item.append(Object.assign(document.createElement("span"), { className: name, textContent: text }), " ");
    }
    return item;
  }

  function card(lane) {
    const item = document.createElement("li");
    item.className = "lane";
    item.dataset.counter = lane.name;
    const wait = !lane.firstDenied ? "–" : lane.firstDenied.wait === null ? "not stated" : seconds(lane.firstDenied.wait / 1e6);
    item.innerHTML = `<div class="lane-head"><h3></h3><span class="note"></span><span class="badge ${lane.over > 0 ? "exceeds" : "within"}"></span></div>
      <div class="plot"></div>
      <dl><div><dt>Admitted</dt><dd data-value="admitted"></dd></div><div><dt>Denied</dt><dd data-value="denied"></dd></div>
      <div><dt>Worst window</dt><dd data-value="worst"></dd></div><div><dt>First wait</dt><dd data-value="wait"></dd></div></dl>`;
    item.querySelector("h3").textContent = lane.name;
    item.querySelector(".note").textContent = NOTES[lane.name] ?? "";
    item.querySelector(".badge").textContent = verdict(lane);
    const values = { admitted: lane.admitted, denied: lane.denied, worst: lane.worst.units, wait };
    for (const [name, value] of Object.entries(values)) item.querySelector(`[data-value=${name}]`).textContent = value;
    return item;
  }

  async function compare() {
    const kind = form.elements.pattern.value;
    for (const label of form.querySelectorAll("[data-for]")) label.hidden = !label.dataset.for.split(" ").includes(kind);
    form.elements.cost.closest("label").hidden = kind === "live";
    document.querySelector("#pattern-hint").textContent = HINTS[kind];
    const given = settings();
    const number = ++asked;
    bound(form.elements.precision, given.window);
    error.textContent = invalid(form);
    if (error.textContent) return;
    const trace = kind === "live" ? liveTrace(given.window) : pattern(kind, given);
    const body = {
      policy: { name: "compare", quota: given.quota, window: `${Math.round(given.window * 1000)}ms` },
      precision_ms: Math.round(given.precision * 1000),
      trace: trace.map(([at, cost]) => [Math.round(at * 1e6), cost]),
    };
    const [response, text] = await ask("api/compare", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    // A later question has its own answer.
    if (number !== asked) return;
    error.textContent = response.ok ? "" : text;
    if (response.ok) show(JSON.parse(text), body.trace.map(([at, cost]) => [at / 1e6, cost]), given);
  }

  function update() {
    list.ariaBusy = "true";
    const answered = compare();
    const number = asked;
    answered.catch((failure) => { error.textContent = textOf(failure); })
      .finally(() => { if (number === asked) list.ariaBusy = "false"; });
  }

  form.addEventListener("input", (event) => {
    // The burst follows the quota until the user sets it.
    if (event.target.name === "quota" && event.target.validity.valid && form.elements.cost.validity.valid) form.elements.burst.value = Math.max(1, Math.floor(form.elements.quota.value / form.elements.cost.value));
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(list);
  update();
  return { update, followsLive: () => form.elements.pattern.value === "live" };
}
