// The curves of one trial.

import { call, untilDone } from "./page.js";
import { axis, colour, draw, fill, floorOf, isWide, plain, scaleOf, words } from "./plots.js";

const { place, metric, baseline } = document.getElementById("trial").dataset;
const select = document.getElementById("metric");
const logarithmic = document.getElementById("logarithmic");
const figure = document.getElementById("curves");
let curves = [];

function show() {
  const mine = curves.filter((curve) => curve.metric === select.value);
  const isPlaced = baseline && (Number(baseline) > 0 || !logarithmic.checked);
  const level = select.value === `valid/${metric}` && isPlaced ? Number(baseline) : null;
  const figures = figure.querySelector(".drawing");
  const values = mine.flatMap((curve) => curve.values);
  const floor = logarithmic.checked ? floorOf(values) : -Infinity;
  const lift = (value) => Math.max(value, floor);
  const hasZeros = logarithmic.checked && values.some((value) => value <= 0);
  document.getElementById("curves-zeros").hidden = !hasZeros;
  draw(figures, () => ({
    traces: mine.map((curve, at) => ({
      x: curve.steps,
      y: curve.values.map(lift),
      customdata: curve.values,
      name: `seed ${curve.seed}`,
      mode: curve.steps.length > 60 ? "lines" : "lines+markers",
      line: { color: colour(at), width: 1.8 },
      marker: { size: 5 },
      hovertemplate: `seed ${curve.seed}, step %{x}: %{customdata:.4g}<extra></extra>`,
    })),
    layout: {
      uirevision: select.value,
      showlegend: mine.length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: axis("training step"),
      yaxis: axis(plain(words(select.value)), scaleOf(values, logarithmic.checked)),
      shapes: level === null ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: { color: colour(6), width: 1.2, dash: "dash" } }],
      annotations: level === null ? [] : [{ xref: "paper", x: 1, xanchor: "right", y: logarithmic.checked ? Math.log10(level) : level, yanchor: "bottom", text: "memoryless baseline", showarrow: false, font: { color: colour(6), size: 11 } }],
    },
  }));
  const steps = [...new Set(mine.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const every = Math.ceil(steps.length / 15) || 1;
  fill(
    figure.querySelector(".scroll"),
    ["step", ...mine.map((curve) => `seed ${curve.seed}`)],
    steps
      .filter((_, at) => at % every === 0 || at === steps.length - 1)
      .map((step) => [step, ...mine.map((curve) => curve.values[curve.steps.indexOf(step)])]),
  );
}

function choose() {
  const values = curves.filter((curve) => curve.metric === select.value).flatMap((curve) => curve.values);
  logarithmic.checked = isWide(values);
  logarithmic.disabled = !values.some((value) => value > 0); // there is nothing to draw then
  show();
}

async function load() {
  curves = (await call(`${place}/curves`)).items;
  const names = [...new Set(curves.map((curve) => curve.metric))];
  figure.closest("section").hidden = !names.length;
  if (!names.length) return;
  const isNew = !select.options.length;
  const chosen = isNew ? `valid/${metric}` : select.value;
  select.replaceChildren(...names.map((name) => new Option(words(name), name, false, name === chosen)));
  if (isNew) choose();
  else show();
}

select.addEventListener("change", choose);
logarithmic.addEventListener("change", show);
document.addEventListener("updated", (event) => event.detail.looks.push(load()));
untilDone(load);
