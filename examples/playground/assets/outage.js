// The switch of the backend, the circuit breaker, and the events of an outage.

import { ask, textOf } from "./errors.js";
import { PAGE } from "./policies.js";

const $ = (selector) => document.querySelector(selector);

const KINDS = {
  decided: "The backend decides again.",
  unavailable: "Requests are rejected with 503.",
  local: "Requests are decided by the share of this process.",
  unchecked: "Requests are admitted unchecked.",
};

/**
 * Starts the switch. `haveBeenInForce` returns whether the program has accepted policies of this page, and `key` the API key.
 * `heldBy` takes the units that requests of this key hold, by the policy.
 */
export function startOutage(haveBeenInForce, key, heldBy) {
  const stop = $("#stop");
  let seen = "decided";
  let state = {};
  let lastActivity = 0;

  function log(text) {
    const item = document.createElement("li");
    const time = Object.assign(document.createElement("time"), { textContent: new Date().toTimeString().slice(0, 8) });
    item.append(time, text);
    $("#log").prepend(item);
    while ($("#log").children.length > 30) $("#log").lastChild.remove();
  }

  function show(next, areOthers) {
    const { mode, breaker } = state;
    state = next;
    const notice = "The policies in force are those of another page, or of a new start of the program. Change or restart those of this page to use them.";
    $("#limits-notice").textContent = areOthers ? notice : "";
    $("#backend-name").textContent = next.backend;
    $("#mode").textContent = next.mode;
    $("#mode").className = `pill ${next.mode === "running" ? "good" : "bad"}`;
    $("#breaker").textContent = next.breaker;
    $("#breaker").className = `pill ${next.breaker === "closed" ? "good" : next.breaker === "open" ? "bad" : ""}`;
    stop.setAttribute("aria-pressed", String(next.mode !== "running"));
    stop.textContent = next.mode === "running" ? "Stop the backend" : "Start the backend";
    if (mode && mode !== next.mode) log({ running: "The backend runs.", refusing: "The backend refuses connections.", hanging: "The backend hangs." }[next.mode]);
    if (breaker && breaker !== next.breaker) log(`The circuit breaker is ${next.breaker}.`);
  }

  async function poll() {
    // Until the program has accepted the policies of this page, it may have those of an earlier one.
    const isExpected = haveBeenInForce();
    const [response, text] = await ask(`api/state?key=${encodeURIComponent(key())}`);
    if (!response.ok) return;
    const next = JSON.parse(text);
    show(next, isExpected && next.page !== PAGE);
    if (next.page === PAGE) heldBy(next.held);
    // They return without a request.
    if (Object.values(next.held).some((units) => units > 0)) lastActivity = performance.now();
  }

  async function setMode(mode) {
    await ask("api/backend", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ mode }) });
    lastActivity = performance.now();
    await poll();
  }

  const stopped = () => ($("#hang").checked ? "hanging" : "refusing");
  const report = (error) => log(textOf(error));
  stop.addEventListener("click", () => setMode(state.mode === "running" ? stopped() : "running").catch(report));
  $("#hang").addEventListener("input", () => { if (state.mode !== "running") setMode(stopped()).catch(report); });
  poll().catch(report);
  document.addEventListener("visibilitychange", () => { lastActivity = performance.now(); });
  // Without requests, nothing changes.
  setInterval(() => {
    if (!document.hidden && performance.now() - lastActivity < 6000) poll().catch(() => {});
  }, 300);

  return {
    /** Notes the kind of a response. */
    saw(kind, error) {
      lastActivity = performance.now();
      const now = kind === "usage" || kind === "denied" ? "decided" : kind;
      if (now !== seen) log(KINDS[now] + (error ? ` (${error})` : ""));
      seen = now;
    },
  };
}
