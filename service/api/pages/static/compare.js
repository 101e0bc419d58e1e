// The pictures of a comparison: its differences against the number of seeds, and the best test value
// of so many trials, against trials and against hours.

import { call } from "./page.js";
import { axis, colour, draw, drawLooks, floorOf, isWide, plain, scaleOf, words } from "./plots.js";

const figure = document.getElementById("looks");

async function show() {
  const given = [...new URLSearchParams(location.search)].map(([name, value]) => [name, value.trim()]);
  const asked = new URLSearchParams(given.filter(([, value]) => value));
  const { pairs, sides, smallest } = await call(`/v1/compare?${asked}`);
  const data = pairs.some((pair) => pair.test.so_far) ? "test" : "valid";
  const series = pairs
    .filter((pair) => pair[data].so_far)
    .map((pair) => ({ name: `${pair.first} − ${pair.second}`, looks: pair[data].so_far.looks }));
  const { name, unit } = sides[0].metric;
  drawLooks(figure.querySelector(".drawing"), series, `${data}: ${words(name)}${unit ? ` (${unit})` : ""}`, smallest);
}

if (figure) show();

function drawEffort(element, sides, metric, hours) {
  const values = sides.flatMap((side) => side.points.map((point) => point.mean));
  const power = isWide(values);
  const floor = power ? floorOf(values) : -Infinity;
  const place = (point) => (hours ? point[hours] : point.trials);
  draw(element, () => ({
    traces: sides.flatMap((side, at) => {
      const tone = colour(at);
      const x = side.points.map(place);
      const around = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", legendgroup: side.name, showlegend: false };
      return [
        { ...around, y: side.points.map((point) => Math.max(floor, point.low)) },
        { ...around, y: side.points.map((point) => Math.max(floor, point.high)), fill: "tonexty", fillcolor: `${tone}2e` },
        {
          x,
          y: side.points.map((point) => Math.max(floor, point.mean)),
          customdata: side.points.map((point) => [point.trials, point.mean]),
          legendgroup: side.name,
          name: plain(side.name),
          mode: x.length > 1 ? "lines" : "markers",
          line: { color: tone, width: 2.2 },
          marker: { color: tone },
          hovertemplate: `${plain(side.name)}, best of %{customdata[0]}: %{customdata[1]:.4g}<extra></extra>`,
        },
      ];
    }),
    layout: {
      hovermode: "closest",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: axis(hours ? words(hours) : "trials", scaleOf(sides.flatMap((side) => side.points.map(place)))),
      yaxis: axis(plain(`test ${words(metric.name)}${metric.unit ? ` (${metric.unit})` : ""}`), scaleOf(values, power)),
    },
  }));
}

const drawing = document.getElementById("by-trials");
if (drawing) {
  const { sides, metric } = JSON.parse(drawing.dataset.effort);
  const shown = sides.filter((side) => side.points.length);
  drawEffort(drawing, shown, metric, null);
  const hours = shown.every((side) => side.gpu_hours) ? "gpu_hours" : "core_hours";
  drawEffort(document.getElementById("by-hours"), shown, metric, hours);
}
