// A node's edges around it: each neighbor has a direction, and the further out a dot is, the older is its event. Ages
// are on a logarithmic scale, since most neighborhoods have a few events of now and many of long ago.

import { pageOf } from "./api.js";
import { color } from "./colors.js";
import { circle } from "./drawing.js";
import { eventTime, span } from "./format.js";

const RINGS = [1 / 3, 2 / 3, 1];
const LABELS_MAX = 10;
// Pixels between rings whose ages can be read.
const RING_LABELS_MIN = 40;

// A scale from ages to 0..1, and back. The tenth part of all ages is where it becomes logarithmic.
function scaleOf(ages) {
  const sorted = ages.slice().sort((one, other) => one - other);
  const bend = Math.max(1, sorted[Math.floor(sorted.length / 10)]);
  const most = Math.log1p(Math.max(sorted.at(-1), 1) / bend);
  return { place: (age) => Math.log1p(age / bend) / most, age: (place) => bend * Math.expm1(place * most) };
}

// What `Drawing` draws: `edges` of the node `name`, as of the event time `now`, in `unit`.
export function drawNeighborhood(name, edges, now, unit) {
  return (context, width, height) => {
    const [x, y] = [width / 2, height / 2];
    const [inner, outer] = [26, Math.min(width, height) / 2 - 26];
    const ages = edges.map((edge) => Math.max(0, now - edge.time));
    const scale = scaleOf(ages);
    const radius = (age) => inner + (outer - inner) * scale.place(age);
    rings(context, x, y, radius, scale, unit);
    const rays = new Map();
    for (const { node } of edges) if (!rays.has(node)) rays.set(node, rays.size);
    const angle = (node) => -Math.PI / 2 + (2 * Math.PI * rays.get(node)) / rays.size;
    const points = edges.map((edge, at) => {
      const [turn, far] = [angle(edge.node), radius(ages[at])];
      const way = edge.direction === "out" ? "to" : "from";
      const words = `${way} ${edge.node}, ${span(ages[at], unit)} ago, ${eventTime(edge.time, unit)}`;
      const href = pageOf(edge.node);
      return { x: x + far * Math.cos(turn), y: y + far * Math.sin(turn), words, href, id: edge.position, edge, turn };
    });
    lines(context, x, y, points);
    for (const point of points)
      circle(context, point.x, point.y, 4, color(point.edge.direction === "out" ? "series-1" : "series-2"));
    circle(context, x, y, 8, color("text"));
    labels(context, points, width, height);
    write(context, String(name), x, y + 22, "center", color("text"));
    return points;
  };
}

function rings(context, x, y, radius, scale, unit) {
  let last = 0;
  for (const place of RINGS) {
    const age = scale.age(place);
    const far = radius(age);
    context.lineWidth = 1;
    context.strokeStyle = color("line");
    context.beginPath();
    context.arc(x, y, far, 0, 2 * Math.PI);
    context.stroke();
    if (far - last < RING_LABELS_MIN) continue;
    last = far;
    write(context, span(Math.round(age), unit), x, y + far + 4, "center", color("quiet"));
  }
}

// A line to each dot: those of one neighbor lie over one another, and the longest leads to its oldest event.
function lines(context, x, y, points) {
  context.strokeStyle = color("line");
  context.lineWidth = 1;
  for (const point of points) {
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(point.x, point.y);
    context.stroke();
  }
}

// The names of the newest neighbors, as long as they do not lie over one another.
function labels(context, points, width, height) {
  const taken = [];
  const named = new Set();
  for (const { x, y, turn, edge } of points) {
    if (taken.length === LABELS_MAX) return;
    const text = String(edge.node).slice(0, 24);
    const long = context.measureText(text).width;
    const left = Math.cos(turn) < 0 ? x - 9 - long : x + 9;
    const lies = (other) =>
      Math.abs(other.y - y) < 15 && left < other.left + other.long + 6 && other.left < left + long + 6;
    if (named.has(edge.node) || left < 2 || left + long > width - 2 || y < 8 || y > height - 8 || taken.some(lies))
      continue;
    named.add(edge.node);
    taken.push({ left, y, long });
    write(context, text, left, y + 4, "left", color("text"));
  }
}

// Text in front of lines, with a rim that keeps these away.
function write(context, text, x, y, align, fill) {
  Object.assign(context, { font: "12px system-ui, sans-serif", textAlign: align, lineWidth: 4, lineJoin: "round" });
  context.strokeStyle = color("panel");
  context.strokeText(text, x, y);
  context.fillStyle = fill;
  context.fillText(text, x, y);
}
