// A chart over time, by uPlot. New points go into the chart that is there; it is made anew where its colors change.

import uPlot from "../vendor/uplot.js";
import { color, watchScheme } from "./colors.js";
import { moment } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Legend } from "./parts.js";

const HEIGHT = 180;

// Whether times of day come more than once.
const isLong = (first, last) => last - first > 86_400;

function options(width, lines, format) {
  const axis = {
    stroke: color("quiet"),
    grid: { stroke: color("grid"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  const [time, day] = [uPlot.fmtDate("{HH}:{mm}:{ss}"), uPlot.fmtDate("{MM}-{DD} {HH}:{mm}")];
  const times = ({ scales: { x } }, at) =>
    at.map((second) => (isLong(x.min, x.max) ? day : time)(new Date(second * 1000)));
  const ticks = (_, values, axisAt, space, step) => values.map((value) => format(value, step));
  return {
    width,
    height: HEIGHT,
    padding: [8, 24, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
    scales: { x: { time: true }, y: { range: (_, low, high) => room(low, high) } },
    axes: [
      { ...axis, size: 28, space: 90, values: times },
      { ...axis, size: 62, space: 36, values: ticks },
    ],
    series: [
      {},
      ...lines.map((line) => ({ stroke: color(line.color), width: 1.5, spanGaps: false, points: { show: false } })),
    ],
  };
}

// Some room above and below the curves; a flat one is drawn in the middle, and nothing below zero that is never there.
function room(low, high) {
  if (low === null) return [0, 1];
  const margin = (high - low) * 0.12 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

// `lines` are { name, color, values, now }, where `now` is the current value. `format` writes a value of the axis,
// given the step to the next one; `shown` a value in words.
export function Plot({ label, seconds, lines, format, shown }) {
  const [place, chart] = [useRef(null), useRef(null)];
  const [scheme, setScheme] = useState(0);
  const [at, setAt] = useState(null);
  useEffect(() => watchScheme(() => setScheme((number) => number + 1)), []);
  useEffect(() => {
    const setup = options(place.current.clientWidth || 300, lines, format);
    setup.hooks = { setCursor: [({ cursor }) => setAt(cursor.idx ?? null)] };
    chart.current = new uPlot(setup, [seconds, ...lines.map((line) => line.values)], place.current);
    const resized = new ResizeObserver(() => {
      const width = place.current?.clientWidth;
      if (width && width !== chart.current.width) chart.current.setSize({ width, height: HEIGHT });
    });
    resized.observe(place.current);
    return () => (resized.disconnect(), chart.current.destroy());
  }, [scheme]);
  useEffect(() => chart.current.setData([seconds, ...lines.map((line) => line.values)]));
  const value = (line) => shown((at === null ? line.now : line.values[at]) ?? null);
  const summary = lines.map((line) => `${line.name} ${shown(line.now ?? null)}`).join(", ");
  const pointed = seconds[at] === undefined ? "" : moment(seconds[at], isLong(seconds[0], seconds.at(-1)));
  return html`
    <figure>
      <div class="plot" ref=${place} role="img" aria-label="${label}: ${summary}"></div>
      <${Legend}
        items=${[
          ...lines.map((line) => [html`${line.name} <span class="number">${value(line)}</span>`, color(line.color)]),
          ...(pointed ? [[pointed, "transparent"]] : []),
        ]}
      />
    </figure>
  `;
}
