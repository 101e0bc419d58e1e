// What all plots share: colours of the page, plotly's options, and the same numbers as a table.

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = new Map();

export const colour = (place) => style(`--c${place % 8}`);
export const words = (name) => name.replaceAll("_", " ");

const grouped = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });

// A number with four digits that count, a word. As `format_value` of the service.
export function typed(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e15) return grouped(value);
  if (size >= 1e-4 && size < 1e4) return String(Number(value.toPrecision(4)));
  return value.toExponential(3).replace(/\.?0+e/, "e").replace(/\d+$/, (power) => power.padStart(2, "0"));
}

// What was measured, with commas and the minus sign of plots. As `show_number` of the service.
export function digits(value) {
  if (typeof value !== "number") return value ?? "–";
  const isLarge = Math.abs(value) >= 1e3 && Math.abs(value) < 1e15;
  return (isLarge ? grouped(value) : typed(value)).replace(/^-/, "−");
}

// The settings of a trial in one line, with short names. As `describe_settings` of the service.
export function settings(params) {
  const shorten = (path) => {
    const [last, above, list] = path.split(".").reverse();
    if (/^\d+$/.test(last) && list !== undefined) return `${above}.${last}`; // an item of a list
    const isName = above !== undefined && (last === "name" || last.startsWith("name_"));
    return isName ? above + last.replace("name", "") : last;
  };
  const labels = Object.keys(params).map(shorten);
  return Object.entries(params)
    .map(([path, value], at) => `${labels.indexOf(labels[at]) === labels.lastIndexOf(labels[at]) ? labels[at] : path}=${typed(value)}`)
    .join(" ");
}

// Without limit: more values than a call takes arguments.
export const least = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);
export const most = (values) => values.reduce((a, b) => (b > a ? b : a), -Infinity);

const positive = (values) => values.filter((v) => v > 0);

// Whether a scale of powers shows numbers better: none is negative, and those above zero span much.
export function isWide(values, span = 20) {
  const above = positive(values);
  return above.length > 1 && values.every((v) => v >= 0) && most(above) / least(above) > span;
}

// The lowest place of a scale of powers, where zeros stand: powers have none for them.
export const floorOf = (values) => least(positive(values)) / 3;

// The scale of an axis for these values: powers of ten where they span much.
export function scaleOf(values, power = isWide(values)) {
  if (!power) return { type: "linear" };
  const above = positive(values);
  const span = most(above) / least(above);
  return { type: "log", tickformat: "~g", dtick: span > 30 ? 1 : span > 5 ? "D2" : undefined };
}

// What an axis of these values shows at most, however far their intervals reach.
export function limits(values) {
  const [low, high] = [least(values), most(values)];
  const margin = 0.1 * (high - low || Math.abs(high));
  return { autorangeoptions: { clipmin: low - margin, clipmax: high + margin } };
}

export function axis(title, extra = {}) {
  return {
    title: { text: title, font: { size: 13 } },
    gridcolor: style("--line"),
    linecolor: style("--line"),
    zeroline: false,
    automargin: true,
    ...extra,
  };
}

// Draw into an element; `make` returns traces and layout, and is called again in another light.
export function draw(element, make) {
  drawn.set(element, make);
  if (element.closest("details:not([open])")) return; // it is drawn when it is opened
  const { traces, layout } = make();
  return window.Plotly.react(
    element,
    traces,
    {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: style("--ink") },
      hoverlabel: { font: { family: "system-ui, sans-serif" } },
      margin: { l: 10, r: 10, t: 10, b: 10 },
      ...layout,
      // What a person zoomed stays zoomed, while the axes are the same.
      uirevision: [layout.uirevision, layout.xaxis?.type, layout.yaxis?.type, layout.xaxis?.title?.text].join(),
    },
    { responsive: true, displaylogo: false, displayModeBar: false },
  );
}

function redraw(inside) {
  for (const [element, make] of drawn) if (inside.contains(element)) draw(element, make);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(document));
document.addEventListener("toggle", (event) => event.target.open && redraw(event.target), true);

// Fill an element with a table. Everything is text: names come from people.
export function fill(element, heads, rows) {
  const table = document.createElement("table");
  const add = (parent, tag, text) => {
    const made = parent.appendChild(document.createElement(tag));
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const head = add(add(table, "thead"), "tr");
  const isNumber = heads.map((_, place) => place && rows.every((row) => typeof (row[place] ?? 0) === "number"));
  heads.forEach((words, place) => {
    const made = add(head, "th", words);
    made.scope = "col";
    if (isNumber[place]) made.className = "number";
  });
  const body = add(table, "tbody");
  for (const row of rows) {
    const line = add(body, "tr");
    row.forEach((cell, place) => {
      const made = add(line, place ? "td" : "th", digits(cell));
      if (isNumber[place]) made.className = "number";
      if (!place) made.scope = "row";
    });
  }
  element.replaceChildren(table);
}

// Draw intervals that hold at every look against the number of seeds, one line for each of `series`:
// its name, and its looks with seeds, mean, low and high. `within` is the smallest difference of
// interest. Where nothing is excluded yet there is a mean and no band.
export function drawLooks(element, series, named, within) {
  draw(element, () => {
    const traces = series.flatMap(({ name, looks }, at) => {
      const known = looks.filter((look) => look.low !== null);
      const line = { color: colour(at), width: 1 };
      const marker = { symbol: "line-ew-open", size: 12, color: line.color };
      const mode = known.length > 1 ? "lines" : "markers"; // one alone makes no line
      const edge = { mode, line, marker, hoverinfo: "skip", showlegend: false, x: known.map((look) => look.seeds) };
      return [
        { ...edge, y: known.map((look) => look.low) },
        { ...edge, y: known.map((look) => look.high), fill: "tonexty", fillcolor: `${colour(at)}33` },
        {
          name: plain(name),
          x: looks.map((look) => look.seeds),
          y: looks.map((look) => look.mean),
          mode: "lines+markers",
          line: { ...line, width: 2 },
          customdata: looks.map((look) => look.e_value),
          hovertemplate: "%{x} seeds: %{y:.4g}, e = %{customdata:.3g}<extra>%{fullData.name}</extra>",
        },
      ];
    });
    const longest = most(series.flatMap(({ looks }) => looks.map((look) => look.seeds)));
    const level = (y, dash) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: style("--quiet"), width: 1, dash } });
    const levels = [level(0, "solid"), ...(within ? [level(within, "dot"), level(-within, "dot")] : [])];
    return {
      traces,
      layout: {
        shapes: levels,
        height: 320,
        xaxis: axis("seeds", { tickformat: "d", ...(longest <= 20 && { dtick: 1 }) }),
        yaxis: axis(plain(named)),
        legend: { orientation: "h", y: -0.25 },
        showlegend: true,
      },
    };
  });
}

// Text that plotly shows as it is: it reads a few tags.
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
