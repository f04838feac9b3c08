// Charts as SVG. They know nothing of the page.

const NAMESPACE = "http://www.w3.org/2000/svg";

/** Returns an SVG element with these attributes and children. */
export function svg(tag, attributes = {}, children = []) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const round = (value) => Math.round(value * 10) / 10;

/** Returns a length of time in seconds as a short text. */
export function seconds(value) {
  const digits = Math.abs(value) >= 10 || Number.isInteger(value) ? 1 : 2;
  return `${Number(value.toFixed(digits))}\u00a0s`;
}

/** Returns about this many round values of a range, for the labels of an axis. */
function ticks(from, to, count) {
  const raw = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  const first = Math.ceil(from / step) * step;
  return Array.from({ length: Math.floor((to - first) / step + 1.001) }, (_, i) => Number((first + i * step).toPrecision(12)));
}

/**
 * Returns the usage as steps `[time, units]`: the admitted units in the window that ends at each time.
 * A charge `[time, units]` leaves the window one window after it.
 */
export function usage(charges, window) {
  const changes = charges.flatMap(([at, units]) => [[at, units], [at + window, -units]]);
  // At the same time, a charge leaves before another one comes: the window contains only one of its two ends.
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const steps = [];
  let units = 0;
  for (const [at, change] of changes) {
    units += change;
    if (steps.length && steps[steps.length - 1][0] === at) steps.pop();
    steps.push([at, units]);
  }
  return steps;
}

/** Returns the area below steps as a path. It is drawn from `low` to at most `high` units. */
function area(steps, x, y, low, high) {
  let path = "";
  let previous = low;
  for (const [at, units] of steps) {
    const value = Math.min(Math.max(units, low), high);
    if (value === previous) continue;
    if (previous === low) path += `M${round(x(at))} ${round(y(low))}`;
    else path += `H${round(x(at))}`;
    path += `V${round(y(value))}`;
    if (value === low) path += "Z";
    previous = value;
  }
  return path;
}

/** Draws the usage of one counter over time, its worst window, and each request as a tick. Times are in seconds. */
export function drawLane(place, { from, to, quota, window, top, lane, title }) {
  const width = Math.max(place.clientWidth, 240);
  const [left, right, above, height, below] = [30, 6, 18, 84, 34];
  const x = (at) => left + ((at - from) / (to - from)) * (width - left - right);
  const y = (units) => above + height - (units / top) * height;
  const floor = above + height;
  const parts = [svg("title", {}, [title])];
  for (const at of lane.edges.filter((at) => at >= from && at <= to)) {
    parts.push(svg("line", { class: "s-edge", x1: round(x(at)), x2: round(x(at)), y1: above - 4, y2: floor + 12 }));
  }
  const charges = lane.requests.filter((request) => request.admitted).map(({ at, cost }) => [at, cost]);
  const steps = usage(charges, window);
  parts.push(svg("path", { class: "s-area", d: area(steps, x, y, 0, quota) }));
  const line = { x1: left, x2: width - right, y1: round(y(quota)), y2: round(y(quota)) };
  parts.push(svg("line", { class: "s-halo", ...line }));
  parts.push(svg("path", { class: "s-over", d: area(steps, x, y, quota, Infinity) }));
  parts.push(svg("line", { class: "s-quota", ...line }));
  parts.push(svg("line", { class: "s-axis", x1: left, x2: width - right, y1: floor, y2: floor }));
  for (const value of new Set([0, quota])) {
    parts.push(svg("text", { x: left - 6, y: round(y(value)) + 4, "text-anchor": "end" }, [String(value)]));
  }
  // One tick for all requests of a pixel.
  const drawn = new Set();
  for (const { at, admitted } of lane.requests) {
    const [column, row] = [Math.round(x(at)), admitted ? 0 : 1];
    const id = `${column} ${row}`;
    if (drawn.has(id)) continue;
    drawn.add(id);
    parts.push(svg("rect", { class: admitted ? "s-usage" : "s-denied", x: column - 0.75, width: 1.5, y: floor + 3 + row * 7, height: 6 }));
  }
  if (lane.worst.units > 0) {
    const exceeds = lane.over > 0 ? " exceeds" : "";
    const [start, end] = [round(x(lane.worst.from)), round(Math.min(x(lane.worst.from + window), width - right))];
    const bracket = 11;
    parts.push(svg("path", { class: `s-worst${exceeds}`, d: `M${start} ${bracket + 4}V${bracket - 4}M${start} ${bracket}H${end}M${end} ${bracket + 4}V${bracket - 4}` }));
    const middle = Math.min(Math.max((start + end) / 2, left + 60), width - 70);
    const text = svg("text", { class: `t-worst${exceeds}`, x: middle, y: bracket - 4, "text-anchor": "middle" }, [`worst window: ${lane.worst.units}`]);
    parts.push(text);
  }
  for (const at of ticks(from, to, Math.max(3, Math.min(8, width / 90)))) {
    parts.push(svg("text", { x: round(x(at)), y: floor + 31, "text-anchor": "middle" }, [seconds(at)]));
  }
  place.replaceChildren(svg("svg", { role: "img", viewBox: `0 0 ${width} ${above + height + below}`, height: above + height + below }, parts));
}

/** The kinds of a response, from the middle line outwards. The first three are admissions, which are drawn upwards. */
export const UP = ["usage", "local", "unchecked"];
export const DOWN = ["denied", "unavailable"];

/**
 * Draws the last responses: bars of each kind, a line of the remaining share of each quota, and the advertised wait.
 * A response is `{ at, kind, remaining: [share or undefined], wait }`, with times in seconds before `now`. A sample has only shares.
 */
export function drawLive(place, { now, span, events, samples, policies, title }) {
  const width = Math.max(place.clientWidth, 240);
  const [left, right, above, height, waits, below] = [34, 42, 12, 150, 34, 20];
  const x = (at) => left + (1 - (now - at) / span) * (width - left - right);
  const columns = Math.max(40, Math.floor((width - left - right) / 7));
  const bins = new Map();
  for (const event of events) {
    const bin = Math.floor(((event.at - (now - span)) / span) * columns);
    if (bin < 0) continue;
    const counts = bins.get(bin) ?? { usage: 0, local: 0, unchecked: 0, denied: 0, unavailable: 0, wait: 0 };
    counts[event.kind] += 1;
    counts.wait = Math.max(counts.wait, event.wait ?? 0);
    bins.set(bin, counts);
  }
  const total = (counts, kinds) => kinds.reduce((sum, kind) => sum + counts[kind], 0);
  const most = Math.max(4, ...[...bins.values()].map((counts) => Math.max(total(counts, UP), total(counts, DOWN))));
  const middle = above + height * 0.62;
  const unit = (count, upwards) => (count / most) * (upwards ? height * 0.62 : height * 0.38);
  const parts = [svg("title", {}, [title])];
  parts.push(svg("line", { class: "s-axis", x1: left, x2: width - right, y1: middle, y2: middle }));
  parts.push(svg("text", { x: left - 6, y: above + 8, "text-anchor": "end" }, [String(most)]));
  parts.push(svg("text", { x: left - 6, y: round(middle) + 4, "text-anchor": "end" }, ["0"]));
  const column = (width - left - right) / columns;
  const waitTop = above + height + 12;
  const longest = Math.max(1, ...[...bins.values()].map((counts) => counts.wait));
  for (const [bin, counts] of bins) {
    const at = round(left + bin * column);
    for (const [kinds, upwards] of [[UP, true], [DOWN, false]]) {
      let offset = 0;
      for (const kind of kinds.filter((kind) => counts[kind] > 0)) {
        const size = unit(counts[kind], upwards);
        const y = upwards ? middle - offset - size : middle + offset;
        // A gap separates the colours of a bar.
        const gap = offset > 0 && size > 3 ? 1 : 0;
        const bar = { x: at, width: round(Math.max(column - 1.5, 1)), y: round(upwards ? y : y + gap), height: round(size - gap) };
        parts.push(svg("rect", { class: `s-${kind}`, ...bar }));
        offset += size;
      }
    }
    if (counts.wait > 0) {
      const size = (counts.wait / longest) * waits;
      parts.push(svg("rect", { class: "s-wait", x: at, width: round(column), y: round(waitTop + waits - size), height: round(size) }));
    }
  }
  const shares = [...events, ...samples].sort((a, b) => a.at - b.at);
  policies.forEach((_, index) => {
    let path = "";
    for (const event of shares) {
      const share = event.remaining[index];
      if (share === undefined || event.at < now - span) continue;
      const point = `${round(x(event.at))} ${round(middle - share * height * 0.62)}`;
      path += path ? `H${point.split(" ")[0]}V${point.split(" ")[1]}` : `M${point}`;
    }
    for (const name of path ? ["s-halo", `s-line p${index}`] : []) {
      parts.push(svg("path", { class: name, d: `${path}H${width - right}` }));
    }
  });
  parts.push(svg("text", { x: width - right + 6, y: above + 8 }, ["100 %"]));
  parts.push(svg("text", { x: width - right + 6, y: round(middle) + 4 }, ["0 %"]));
  parts.push(svg("line", { class: "s-axis", x1: left, x2: width - right, y1: waitTop + waits, y2: waitTop + waits }));
  parts.push(svg("text", { x: left - 6, y: waitTop + 10, "text-anchor": "end" }, [`${longest} s`]));
  for (const before of ticks(0, span, Math.max(3, width / 130)).filter((before) => before < span)) {
    const label = before === 0 ? "now" : `−${before} s`;
    parts.push(svg("text", { x: round(x(now - before)), y: waitTop + waits + 15, "text-anchor": "middle" }, [label]));
  }
  const whole = waitTop + waits + below;
  place.replaceChildren(svg("svg", { role: "img", viewBox: `0 0 ${width} ${whole}`, height: whole }, parts));
}
