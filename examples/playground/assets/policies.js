// The table of policies, and the outage rule: what the layer enforces.

import { ask, invalid, Problem, textOf } from "./errors.js";

const MAX = 4;
const ALGORITHMS = { "sliding-log": "sliding log", "sliding-buckets": "sliding buckets", "sliding-counter": "sliding counter", "fixed-window": "fixed window", "token-bucket": "token bucket", "in-flight": "in flight" };

const $ = (selector) => document.querySelector(selector);

function element(tag, properties = {}, children = []) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

/** Returns who admitted units without the backend, in a window that has more than the quota. */
function reason({ all, local, unchecked }) {
  const parts = [];
  if (local) parts.push(`the local fallback admitted ${local}`);
  if (unchecked) parts.push(`fail open admitted ${unchecked} unchecked`);
  return parts.length ? `: of these ${all}, ${parts.join(", and ")}` : "";
}

/** The number of this page. The program repeats the number of the page whose policies are in force. */
export const PAGE = `${Date.now()}-${Math.random()}`;

/** Starts the table. Calls `restarted` when counting starts from zero, and `accepts` when policies are in force. */
export function startPolicies(restarted, accepts) {
  const form = $("#limits-form");
  const rows = $("#policies");
  /** The policies in force. Those of the table may be invalid, or not sent yet. */
  let policies = [];
  let accepted = true;
  let haveBeenInForce = false;
  let timer = null;
  let applied = Promise.resolve();

  function add({ name, quota, window, algorithm }) {
    const labelled = (text, control) => element("label", {}, [text, control]);
    const options = Object.entries(ALGORITHMS).map(([value, text]) => element("option", { value, textContent: text, selected: value === algorithm }));
    const remove = element("button", { type: "button", className: "quiet remove", textContent: "Remove" });
    const seconds = element("input", { type: "number", value: window, min: 0.001, max: 31622400, step: "any", required: true, className: "window" });
    seconds.dataset.name = "window in seconds";
    const row = element("li", {}, [
      labelled("Name", element("input", { type: "text", value: name, maxLength: 64, required: true, pattern: "[ -~]+", title: "1 to 64 printable ASCII characters", className: "name", autocomplete: "off", spellcheck: false })),
      labelled("Quota", element("input", { type: "number", value: quota, min: 1, max: 4294967295, required: true, className: "quota" })),
      labelled("Seconds", seconds),
      labelled("Algorithm", element("select", { className: "algorithm" }, options)),
      remove,
    ]);
    remove.addEventListener("click", () => {
      row.remove();
      changed(0);
      $("#add-policy").focus();
    });
    rows.append(row);
    return row;
  }

  function read() {
    const old = new Map(policies.map((policy) => [policy.name, policy]));
    const given = [...rows.children].map((row) => {
      const value = (name) => row.querySelector(`.${name}`).value;
      const [name, quota, window, algorithm] = [value("name"), Number(value("quota")), Number(value("window")), value("algorithm")];
      row.querySelector(".window").closest("label").hidden = algorithm === "in-flight";
      const same = old.get(name);
      return { known: same?.known ?? null, rejections: same?.rejections ?? 0, name, quota, window, algorithm };
    });
    rows.querySelectorAll(".remove").forEach((button) => {
      button.disabled = given.length < 2;
      button.setAttribute("aria-label", `Remove the policy ${button.closest("li").querySelector(".name").value}`);
    });
    $("#add-policy").disabled = given.length >= MAX;
    return given;
  }

  /** Sends the settings to the program, unless a field has a problem. An error of the program is that of the crate. */
  async function send(given, problem, restart) {
    $("#limits-error").textContent = problem;
    accepted = !problem;
    if (problem) return;
    const milliseconds = (time) => `${Math.round(time * 1000)}ms`;
    const body = {
      policies: given.map(({ name, quota, window, algorithm }) => {
        if (algorithm === "in-flight") return { name, quota, algorithm: { [algorithm]: {} } };
        // A full bucket returns in this window.
        if (algorithm === "token-bucket") return { name, quota, algorithm: { [algorithm]: { rate: `${quota}/${milliseconds(window)}` } } };
        const precision = milliseconds(Math.max(window / 10, 0.001));
        return { name, quota, window: milliseconds(window), algorithm: algorithm === "sliding-buckets" ? { [algorithm]: { precision } } : algorithm };
      }),
      outage: form.elements.outage.value,
      processes: Number(form.elements.processes.value),
      restart,
      page: PAGE,
    };
    const [response, text] = await ask("api/limits", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    $("#limits-error").textContent = response.ok ? "" : text;
    accepted = response.ok;
    if (!accepted) return;
    policies = given;
    haveBeenInForce = true;
    if (restart) restarted();
    accepts();
  }

  function apply(restart) {
    clearTimeout(timer);
    timer = null;
    const [given, problem] = [read(), invalid(form)];
    applied = applied.then(() => send(given, problem, restart)).catch((error) => { $("#limits-error").textContent = textOf(error); });
    return applied;
  }

  function changed(delay) {
    clearTimeout(timer);
    timer = setTimeout(() => apply(false), delay);
  }

  /** Shows the remaining units of each policy, and the worst window. */
  function show(worst) {
    const meters = $("#meters");
    while (meters.children.length > policies.length) meters.lastChild.remove();
    policies.forEach((policy, index) => {
      if (!meters.children[index]) {
        meters.append(element("li", { className: `p${index}` }, [
          element("span", { className: "name" }), element("div", { className: "meter" }, [element("i")]), element("span", { className: "numbers" }),
        ]));
      }
      const row = meters.children[index];
      const { known, quota } = policy;
      const remaining = Math.min(known?.remaining ?? quota, quota);
      const facts = [];
      if (policy.algorithm === "in-flight") {
        facts.push(`${quota - remaining} of ${quota} held`);
      } else {
        const most = worst(policy);
        facts.push(`${known ? known.remaining : quota} of ${quota} left`);
        if (known?.next && known.remaining < quota) facts.push(`more in ${known.next} s`);
        facts.push(most.all > quota ? `worst window: ${most.all}, ${most.all - quota} over the quota${reason(most)}` : `worst window: ${most.all}`);
      }
      if (policy.rejections) facts.push(`has rejected ${policy.rejections}`);
      row.classList.toggle("rejects", Boolean(policy.rejects));
      row.querySelector(".name").textContent = policy.name;
      row.querySelector("i").style.width = `${(100 * remaining) / quota}%`;
      row.querySelector(".numbers").textContent = facts.join(" · ");
    });
  }

  // More characters may follow in a field.
  form.addEventListener("input", (event) => changed(event.target.matches("[type=radio], select") ? 0 : 250));
  form.addEventListener("submit", (event) => event.preventDefault());
  $("#add-policy").addEventListener("click", () => {
    const names = ["sustained", "hourly", "daily", "monthly"].filter((name) => policies.every((policy) => policy.name !== name));
    add({ name: names[0], quota: 30, window: 60, algorithm: "sliding-log" }).querySelector("input").focus();
    changed(0);
  });
  add({ name: "burst", quota: 10, window: 10, algorithm: "sliding-log" });
  policies = read();
  setTimeout(() => apply(true));

  return {
    all: () => policies,
    /** Returns whether the program has accepted policies of this page. */
    haveBeenInForce: () => haveBeenInForce,
    apply,
    show,
    /** Resolves when the settings of the page are in force. Fails if they are invalid. */
    async ready() {
      await (timer === null ? applied : apply(false));
      if (!accepted) throw new Problem("The policies of this page are not in force. Correct them first.");
    },
  };
}
