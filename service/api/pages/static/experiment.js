// The plots of one experiment: learning curves, parallel coordinates, slices.

import { call, untilDone } from "./page.js";
import { axis, colour, digits, draw, drawLooks, fill, floorOf, isWide, least, limits, most, plain, scaleOf, settings } from "./plots.js";

const { id, metric, unit, better, state } = document.getElementById("experiment").dataset;
const place = `/v1/experiments/${id}`;
const named = `${metric}${unit ? ` (${unit})` : ""}`;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const sign = better === "lower" ? 1 : -1;
const best = sign > 0 ? least : most;
const ENDED_WELL = ["completed", "reused"];
let arms = [];
let points = [];

function colourArms() {
  for (const swatch of document.querySelectorAll(".swatch[data-arm]")) {
    swatch.className = `swatch c${Math.max(0, arms.indexOf(swatch.dataset.arm)) % 8}`;
  }
}

async function drawCurves() {
  const { items, baseline } = await call(`${place}/curves`);
  const figure = document.getElementById("curves");
  // A trial that trains counts with the best of its curve so far.
  const curves = items.filter((each) => each.steps.length).map((each) => ({ ...each, now: each.value ?? best(each.mean) }));
  curves.sort((a, b) => sign * (a.now - b.now));
  figure.closest("section").hidden = !curves.length;
  if (!curves.length) return;
  const values = curves.flatMap((each) => each.mean).concat(baseline ?? []);
  const power = isWide(values);
  const floor = power ? floorOf(values) : -Infinity;
  const lift = (value) => Math.max(value, floor);
  document.getElementById("curves-zeros").hidden = !(power && values.includes(0));
  draw(figure.querySelector(".drawing"), () => {
    const traces = [];
    const seen = {};
    for (const each of curves) {
      const tone = colour(arms.indexOf(each.arm));
      const dash = DASHES[(seen[each.arm] = (seen[each.arm] ?? -1) + 1) % DASHES.length];
      const group = { legendgroup: each.arm, showlegend: false };
      if (dash === "solid" && each.n > 2) { // the interval of two seeds would hide all else
        const around = { x: each.steps, mode: "lines", line: { width: 0 }, hoverinfo: "skip", ...group };
        traces.push({ ...around, y: each.low.map((low, at) => lift(low ?? each.mean[at])) });
        traces.push({ ...around, y: each.high.map((high, at) => lift(high ?? each.mean[at])), fill: "tonexty", fillcolor: `${tone}2e` });
      }
      traces.push({
        ...group,
        x: each.steps,
        y: each.mean.map(lift),
        customdata: each.mean,
        mode: each.steps.length > 1 ? "lines" : "markers",
        name: plain(each.arm),
        line: { color: tone, dash, width: dash === "solid" ? 2.2 : 1.3 },
        marker: { color: tone },
        showlegend: dash === "solid",
        hovertemplate: `${plain(each.arm)}, trial ${each.number}: %{customdata:.4g}<br>${plain(settings(each.params))}<extra></extra>`,
      });
    }
    const ink = colour(6);
    return {
      traces,
      layout: {
        hovermode: "closest",
        xaxis: axis("training step"),
        yaxis: axis(named, { ...scaleOf(values, power), ...(power ? {} : limits(values)) }),
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
        shapes: baseline === null ? [] : [
          { type: "line", xref: "paper", x0: 0, x1: 1, y0: baseline, y1: baseline, line: { color: ink, width: 1.2, dash: "dash" } },
        ],
        annotations: baseline === null ? [] : [
          { xref: "paper", x: 1, xanchor: "right", y: power ? Math.log10(baseline) : baseline, yanchor: "bottom", text: "memoryless baseline", showarrow: false, font: { color: ink, size: 11 } },
        ],
      },
    };
  });
  const longest = curves.reduce((a, b) => (a.steps.length >= b.steps.length ? a : b)).steps;
  const every = Math.ceil(longest.length / 12);
  const steps = longest.filter((_, place) => place % every === 0 || place === longest.length - 1);
  fill(
    figure.querySelector(".scroll"),
    ["step", ...curves.map((each) => `${each.arm}, trial ${each.number}`)],
    steps.map((step) => [step, ...curves.map((each) => each.mean[each.steps.indexOf(step)])]),
  );
}

function drawSpace() {
  const arm = document.getElementById("space-arm").value;
  const mine = points.filter((point) => point.arm === arm);
  const varied = [...new Set(mine.flatMap((point) => Object.keys(point.params)))].filter(
    (path) => new Set(mine.map((point) => point.params[path])).size > 1,
  );
  drawParallel(mine, varied);
  drawHistory(mine);
  drawSlices(mine, varied);
}

// Below every axis: where a line passes a setting that its trial does not have.
const ABSENT = -0.13;

// Places from 0 to 1 for the values of one axis, and marks beside it.
function scale(values) {
  const known = values.filter((value) => value !== undefined);
  if (known.every((value) => typeof value === "number")) {
    const power = isWide(known);
    const floor = power ? floorOf(known) : -Infinity; // zeros stand there
    const f = power ? (value) => Math.log10(Math.max(value, floor)) : (value) => value;
    const low = f(least(known));
    const span = f(most(known)) - low;
    if (!span) return { at: () => 0.5, marks: [[0.5, known[0]]] }; // one value has no scale
    const marks = [0, 0.5, 1].map((at) => [at, power ? 10 ** (low + at * span) : low + at * span]);
    if (power && known.includes(0)) marks[0][1] = 0;
    return { at: (value) => (f(value) - low) / span, marks };
  }
  const names = [...new Set(known.map(String))].sort();
  const at = (value) => (names.length > 1 ? names.indexOf(String(value)) / (names.length - 1) : 0.5);
  return { at, marks: names.map((name) => [at(name), name]) };
}

// Plotly's own parallel coordinates need WebGL and compile scripts, which the pages forbid.
function drawParallel(mine, varied) {
  const figure = document.getElementById("parallel");
  figure.hidden = !varied.length;
  if (!varied.length) return;
  const tier = (point) => (ENDED_WELL.includes(point.state) ? 0 : 1); // a value of an earlier step ranks below
  const ranked = [...mine].sort((a, b) => tier(a) - tier(b) || sign * (a.value - b.value));
  const columns = [...varied.map((path) => [path, (point) => point.params[path]]), [metric, (point) => point.value]];
  const scales = columns.map(([, read]) => scale(mine.map(read)));
  const isAbsent = columns.map(([, read]) => mine.some((point) => read(point) === undefined));
  const shares = [[0.05, 1, 2.4], [0.2, 0.75, 1.6], [0.5, 0.4, 1], [1, 0.16, 0.8]];
  draw(figure.querySelector(".drawing"), () => {
    const tone = colour(arms.indexOf(mine[0].arm));
    let first = 0;
    const traces = shares.map(([share, opacity, width]) => {
      const last = Math.max(first + (first === 0 ? 1 : 0), Math.round(share * ranked.length));
      const group = ranked.slice(first, last);
      first = Math.max(first, last);
      const x = [];
      const y = [];
      for (const point of group) {
        columns.forEach(([, read], place) => {
          const value = read(point);
          x.push(place);
          y.push(value === undefined ? ABSENT : scales[place].at(value));
        });
        x.push(null);
        y.push(null);
      }
      return { x, y, mode: "lines", opacity, line: { color: tone, width }, hoverinfo: "skip", showlegend: false };
    });
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--quiet").trim();
    return {
      traces: traces.reverse(),
      layout: {
        xaxis: {
          range: [-0.4, columns.length - 0.6],
          tickvals: columns.map((_, place) => place),
          ticktext: columns.map(([name]) => plain(name)),
          zeroline: false,
          showgrid: false,
          side: "top",
          automargin: true,
          fixedrange: true,
        },
        yaxis: { range: [isAbsent.some(Boolean) ? ABSENT - 0.06 : -0.06, 1.06], visible: false, fixedrange: true },
        shapes: columns.map((_, place) => ({ type: "line", x0: place, x1: place, y0: 0, y1: 1, line: { color: ink, width: 1 }, layer: "below" })),
        annotations: scales.flatMap(({ marks }, place) =>
          (isAbsent[place] ? [...marks, [ABSENT, "not set"]] : marks).map(([at, value]) => ({ x: place, y: at, text: plain(digits(value)), xanchor: "left", xshift: 5, showarrow: false, font: { size: 11, color: ink }, bgcolor: getComputedStyle(document.documentElement).getPropertyValue("--paper").trim(), opacity: 0.9 })),
        ),
      },
    };
  });
  fill(
    figure.querySelector(".scroll"),
    ["trial", ...varied, metric],
    ranked.slice(0, 50).map((point) => [String(point.number), ...varied.map((path) => point.params[path]), point.value]),
  );
}

// The best value so far, trial after trial.
function drawHistory(mine) {
  const figure = document.getElementById("history");
  const ended = mine.filter((point) => ENDED_WELL.includes(point.state)).sort((a, b) => a.number - b.number);
  figure.hidden = ended.length < 2;
  if (figure.hidden) return;
  const values = ended.map((point) => point.value);
  let leader = sign * Infinity;
  const soFar = values.map((value) => (leader = best([leader, value])));
  const power = isWide(values, 10);
  const floor = power ? floorOf(values) : -Infinity;
  const lift = (value) => Math.max(value, floor);
  draw(figure.querySelector(".drawing"), () => {
    const tone = colour(arms.indexOf(mine[0].arm));
    const x = ended.map((point) => point.number);
    return {
      traces: [
        { x, y: values.map(lift), customdata: values, mode: "markers", marker: { color: tone, size: 6, opacity: 0.45 }, hovertemplate: "trial %{x}: %{customdata:.4g}<extra></extra>" },
        { x, y: soFar.map(lift), mode: "lines", line: { color: tone, width: 2, shape: "hv" }, hoverinfo: "skip" },
      ],
      layout: { showlegend: false, xaxis: axis("trial"), yaxis: axis(named, scaleOf(values, power)) },
    };
  });
}

function drawSlices(mine, varied) {
  const holder = document.querySelector("#slices .slices");
  document.getElementById("slices").hidden = !varied.length;
  while (holder.children.length > varied.length) holder.lastChild.remove();
  while (holder.children.length < varied.length) holder.append(document.createElement("div"));
  varied.forEach((path, place) => {
    const having = mine.filter((point) => point.params[path] !== undefined);
    const x = having.map((point) => point.params[path]);
    const isNumber = x.every((value) => typeof value === "number");
    const wide = isNumber && isWide(x, 5);
    const edge = wide ? floorOf(x) : -Infinity; // zeros stand there
    const element = holder.children[place];
    const values = having.map((point) => point.value);
    const power = isWide(values);
    const floor = power ? floorOf(values) : -Infinity;
    const lift = (value) => Math.max(value, floor);
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", `${metric} against ${path}`);
    draw(element, () => ({
      traces: [
        {
          x: isNumber ? x.map((value) => Math.max(value, edge)) : x.map((value) => plain(value)),
          y: values.map(lift),
          customdata: having.map((point) => [point.value, isNumber ? digits(point.params[path]) : plain(point.params[path])]),
          text: having.map((point) => `trial ${point.number}${ENDED_WELL.includes(point.state) ? "" : `, ${point.state}`}`),
          mode: "markers",
          marker: { symbol: having.map((point) => (ENDED_WELL.includes(point.state) ? "circle" : "circle-open")), color: colour(arms.indexOf(mine[0].arm)), size: 7, opacity: Math.max(0.25, Math.min(0.85, 60 / having.length)) },
          hovertemplate: "%{text}<br>%{customdata[1]}: %{customdata[0]:.4g}<extra></extra>",
        },
      ],
      layout: {
        uirevision: mine[0].arm,
        xaxis: axis(plain(path), isNumber ? scaleOf(x, wide) : { type: "category" }),
        yaxis: axis(named, scaleOf(values, power)),
        showlegend: false,
      },
    }));
  });
}

async function loadSpace() {
  const found = await call(`${place}/points`);
  points = found.items;
  const select = document.getElementById("space-arm");
  const valued = (arm) => points.filter((point) => point.arm === arm && Object.keys(point.params).length);
  const top = (arm) => sign * best(valued(arm).map((point) => point.value));
  const having = arms.filter((arm) => valued(arm).length).sort((a, b) => top(a) - top(b)); // the best one first
  document.getElementById("space").hidden = !having.length;
  if (!having.length) return;
  const chosen = select.value;
  select.replaceChildren(...having.map((arm) => new Option(arm, arm, false, arm === chosen)));
  document.getElementById("space-count").textContent =
    found.count > points.length ? `${points.length} of ${found.count} trials: the best ones, and an even sample of the others` : "";
  drawSpace();
}

async function drawImportance() {
  const section = document.getElementById("importance");
  const found = await call(`${place}/importance`);
  const rows = found.arms.flatMap(({ arm, parameters }) => parameters.map((each) => ({ arm, ...each })));
  const known = rows.filter((each) => each.share !== null);
  section.hidden = !known.length;
  if (known.length) {
    draw(section.querySelector(".drawing"), () => ({
      traces: arms.map((arm) => {
        const mine = known.filter((each) => each.arm === arm).reverse();
        return {
          type: "bar",
          orientation: "h",
          name: plain(arm),
          x: mine.map((each) => each.share),
          y: mine.map((each) => plain(`${arm}: ${each.path}`)),
          marker: { color: colour(arms.indexOf(arm)) },
          hovertemplate: "%{y}: %{x:.2f}<extra></extra>",
        };
      }).filter((trace) => trace.x.length).reverse(),
      layout: {
        showlegend: false,
        height: 80 + 28 * known.length,
        bargap: 0.3,
        xaxis: axis("share", { range: [0, 1] }),
        yaxis: axis(""),
      },
    }));
  }
  const out = new Map();
  for (const { arm, path, share, problem } of rows) {
    const why = `${arm}: ${problem}`;
    if (share === null) out.set(why, [...(out.get(why) ?? []), path]);
  }
  document.getElementById("importance-left-out").textContent = [...out]
    .map(([why, paths]) => `Not drawn: ${paths.join(", ")} of ${why}.`)
    .join(" ");
  fill(
    section.querySelector(".scroll"),
    ["arm", "setting", "share", "trials", "remark"],
    rows.map((each) => [each.arm, each.path, each.share, each.trials, each.problem ?? ""]),
  );
}

async function showFront() {
  const section = document.getElementById("front");
  const { objectives, front, beaten } = await call(`${place}/pareto`);
  section.hidden = front.length < 2;
  if (section.hidden) return;
  const names = objectives.map((each) => each.name);
  document.getElementById("front-words").textContent =
    `No other trial is better in ${names.map((name) => name.replaceAll("_", " ")).join(" or ")} without being worse in something; ${beaten} other${beaten === 1 ? " is" : "s are"} beaten by one of these.`;
  fill(
    section.querySelector(".scroll"),
    ["trial", "arm", ...names.map((name) => name.replaceAll("_", " ")), "settings"],
    front.map((each) => [String(each.number), each.arm, ...names.map((name) => each.values[name]), settings(each.params)]),
  );
}

async function showRace() {
  const section = document.getElementById("race");
  if (!section) return; // the spec has none
  const { state: now, words, racers, smallest, wanted_e_value: wanted, core_hours: hours } = await call(`${place}/race`);
  section.hidden = false;
  document.getElementById("race-words").textContent = `${now}: ${words}.`;
  fill(
    section.querySelector(".scroll"),
    ["trial", "arm", "seeds", "mean", "minus the leader", "interval at any look", "e-value", "verdict", "seeds to decide", "settings"],
    racers.map((each) => [
      String(each.number),
      each.arm,
      each.value.n,
      each.value.mean,
      each.verdict === "leads" ? "leads" : each.behind ? each.behind.mean : "–",
      each.looks.length && each.looks.at(-1).low !== null ? `${digits(each.looks.at(-1).low)} to ${digits(each.looks.at(-1).high)}` : "–",
      each.looks.length ? each.looks.at(-1).e_value : "–",
      each.verdict,
      each.verdict === "not distinguishable" && each.looks.length ? (each.wanted ?? "more than 1,000") : "–",
      settings(each.params),
    ]),
  );
  const cost = hours && [`${digits(hours.spent)}${hours.limit === null ? "" : ` of ${digits(hours.limit)}`} core-hours`, hours.needed === null ? "" : `about ${digits(hours.needed)} more would decide`].filter(Boolean).join("; ");
  document.getElementById("race-cost").textContent = cost ? `An e-value of ${digits(wanted)} decides. ${cost}.` : "";
  const series = racers.filter((each) => each.looks.length).map((each) => ({ name: `trial ${each.number}`, looks: each.looks }));
  const picture = section.querySelector("figure");
  picture.hidden = !series.length;
  if (series.length) drawLooks(picture.querySelector(".drawing"), series, `${named}, minus the leader`, smallest);
}

// The counts of trials by state: while they stay the same, no trial has begun or ended.
const counts = () => document.querySelector("#state .counts").textContent;
let seen = null;

async function load(isOver) {
  const now = counts();
  const isNew = now !== seen || isOver;
  if (isNew) {
    arms = (await call(`${place}/arms`)).items.map((arm) => arm.name);
    colourArms();
  }
  const looks = [drawCurves()]; // the others need the record alone, and wait for no store
  if (isNew) looks.push(loadSpace(), showRace());
  if (isOver) looks.push(drawImportance(), showFront()); // both read all trials
  for (const each of await Promise.allSettled(looks)) if (each.status === "rejected") throw each.reason;
  seen = now;
}

document.getElementById("space-arm").addEventListener("change", drawSpace);
document.addEventListener("updated", (event) => event.detail.looks.push(load(event.detail.isOver)));
untilDone(() => load(state !== "running"));
