// The form: previews and posts the spec as the service checks it, and shows what is wrong where.

import { announce, call } from "./page.js";
import { digits, fill, settings } from "./plots.js";

const text = document.getElementById("spec");
const problems = document.getElementById("problems");
const result = document.getElementById("result");
let sent = { text: null, key: null };

// Return the key of the text as it is now: the same for a second try, another for another text.
function keyOf(text) {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  if (text !== sent.text) sent = { text, key: `page-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}` };
  return sent.key;
}

const ask = (path, headers = {}) =>
  call(path, { method: "POST", body: text.value, headers: { "Content-Type": "application/yaml", ...headers } });

const add = (parent, tag, words, name) => {
  const made = parent.appendChild(document.createElement(tag));
  if (words !== undefined) made.textContent = words;
  if (name) made.className = name;
  return made;
};

// Return the place in the text of the deepest key of a dotted path that can be found, or null.
function find(path) {
  const keys = path.split(".");
  const lines = text.value.split("\n");
  const having = (key) => lines.findIndex((line) => new RegExp(`(^|[\\s{,'"-])${key.replace(/[^\w]/g, "\\$&")}['"]?\\s*:`).test(line));
  for (let last = keys.length; last > 0; last--) {
    for (let first = 0; first < last; first++) {
      const line = having(keys.slice(first, last).join("."));
      if (line >= 0) return { start: lines.slice(0, line).join("\n").length + (line ? 1 : 0), length: lines[line].length };
    }
  }
  return null;
}

function go(place) {
  text.focus();
  text.setSelectionRange(place.start, place.start + place.length);
  const line = text.value.slice(0, place.start).split("\n").length;
  text.scrollTop = (line - 5) * (text.scrollHeight / text.value.split("\n").length);
}

function refuse(error) {
  result.replaceChildren();
  problems.replaceChildren();
  const found = error.problem?.errors?.length ? error.problem.errors : [{ path: "", message: error.message }];
  const count = found.length > 20 ? "More than 20" : found.length;
  add(problems, "h2", found.length > 1 ? `${count} problems` : "A problem", "bad");
  for (const each of found) {
    const item = add(problems, "p", undefined, "problem");
    if (each.path) add(item, "code", each.path);
    item.append(each.path ? ": " : "", each.message, " ");
    const place = each.path ? find(each.path) : null;
    if (place) {
      const button = add(item, "button", "Show the line");
      button.type = "button";
      button.addEventListener("click", () => go(place));
    }
  }
  text.setAttribute("aria-invalid", "true");
}

function accept() {
  problems.replaceChildren();
  text.removeAttribute("aria-invalid");
}

function show(found) {
  accept();
  result.replaceChildren();
  add(result, "h2", "Preview");
  const facts = add(result, "dl", undefined, "facts");
  const fact = (name, words) => {
    const pair = add(facts, "div");
    add(pair, "dt", name);
    add(pair, "dd", words);
  };
  const count = (n) => (n === null ? "without end" : digits(n));
  fact("trials", count(found.trials));
  fact("points of the space", count(found.points));
  fact("seeds of each trial", count(found.replicates));
  fact(`baseline ${found.metric.replaceAll("_", " ")}`, digits(found.baseline));
  if (found.side_by_side.at_once !== null) fact("trials at once", count(found.side_by_side.at_once));
  const cost = found.estimate;
  if (cost) {
    fact("seconds a trial, about", `${digits(cost.seconds_a_trial_low)} to ${digits(cost.seconds_a_trial_high)}`);
    fact("core hours in all, about", `${digits(cost.core_hours_low)} to ${digits(cost.core_hours_high)}`);
    add(result, "p", cost.words, "quiet");
  }
  for (const [arm, taken] of Object.entries(found.memory)) {
    const mb = (bytes) => `${digits(Math.round(bytes / 1e6))} MB`;
    fact(`memory of a trial of ${arm}, about`, mb(taken.host_bytes) + (taken.device_bytes ? `, and ${mb(taken.device_bytes)} of a GPU` : ""));
  }
  for (const words of found.search.words) add(result, "p", `${words}.`);
  for (const words of [...found.side_by_side.warnings, ...found.warnings]) add(result, "p", words, "problem");
  for (const [arm, why] of Object.entries(found.side_by_side.alone)) add(result, "p", `${arm} shares no lanes: ${why}`, "quiet");
  add(result, "h3", "Arms");
  const scroll = () => {
    const made = add(result, "div", undefined, "scroll");
    made.tabIndex = 0;
    made.setAttribute("role", "region");
    return made;
  };
  const arms = scroll();
  arms.setAttribute("aria-label", "Arms");
  fill(arms, ["arm", "points", "parameters", "varies"], found.arms.map((arm) => [
    arm.name,
    count(arm.points),
    arm.smallest_parameters === arm.largest_parameters
      ? digits(arm.smallest_parameters)
      : `${digits(arm.smallest_parameters)} to ${digits(arm.largest_parameters)}`,
    arm.axes.map((each) => `${each.path}: ${each.values}`).join("; ") || "nothing",
  ]));
  const known = found.first.every((trial) => trial.number !== null);
  const heading = known ? "First trials" : "One end of each arm";
  add(result, "h3", heading);
  const first = scroll();
  first.setAttribute("aria-label", heading);
  fill(first, [...(known ? ["trial"] : []), "arm", "parameters", "settings"], found.first.map((trial) => [
    ...(known ? [String(trial.number)] : []),
    trial.arm,
    trial.parameters,
    trial.error ?? settings(trial.params),
  ]));
}

document.getElementById("preview").addEventListener("click", async () => {
  announce("Checking");
  try {
    const { post } = document.getElementById("form").dataset;
    show(await ask(`/v1/experiments/preview${post.endsWith("/extend") ? "?extends=true" : ""}`));
    announce("The preview is ready.");
  } catch (error) {
    refuse(error);
  }
});

document.getElementById("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = document.getElementById("post");
  button.disabled = true;
  try {
    const { id } = await ask(event.target.dataset.post, { "Idempotency-Key": keyOf(text.value) });
    location.assign(`/experiments/${id}`);
  } catch (error) {
    button.disabled = false;
    refuse(error);
  }
});
