// The embeddings of many nodes in two dimensions, as the daemon projects them: what lies close together is alike.

import { atMost, get, pageOf } from "./api.js";
import { color, series } from "./colors.js";
import { circle, Drawing } from "./drawing.js";
import { count, percent } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { useLoaded } from "./load.js";
import { Empty, Legend, nodeLink, Panel, Problem, Table } from "./parts.js";

const SIZES = [500, 1000, 2000, 5000];
const MARGIN = 16;
const LISTED = 10;
// The share of nodes at either end of an axis that may be drawn at the edge.
const CUT = 0.005;

// The word before the first digit or sign of a key: what kind of node it is, where keys are named so.
const kindOf = (node) => (typeof node === "number" ? "numbers" : (/^[^\d\W]+/.exec(node)?.[0] ?? "others"));

// Names of groups, the most frequent first, and the group of each node.
function groups(nodes, of) {
  const names = nodes.map(of);
  const sizes = new Map();
  for (const name of names) sizes.set(name, (sizes.get(name) ?? 0) + 1);
  const ordered = [...sizes.keys()].sort((one, other) => sizes.get(other) - sizes.get(one));
  return { ordered, names };
}

// A group of its own for each power of ten.
const degrees = (node) =>
  node.degree < 10 ? "0–9 edges" : node.degree < 100 ? "10–99" : node.degree < 1000 ? "100–999" : "1000 and more";

// How nodes are colored: the color of each, and what the colors mean.
const COLORINGS = {
  degree: (nodes) => {
    const names = ["0–9 edges", "10–99", "100–999", "1000 and more"];
    const shade = [35, 55, 78, 100].map(
      (share) => `color-mix(in oklab, ${color("series-1")} ${share}%, ${color("panel")})`,
    );
    return {
      colors: nodes.map((node) => shade[names.indexOf(degrees(node))]),
      legend: names.map((name, at) => [name, shade[at]]),
    };
  },
  role: (nodes) => {
    const names = ["destination of events", "source only"];
    const colors = series();
    return {
      colors: nodes.map((node) => colors[node.destination ? 1 : 0]),
      legend: [
        [names[1], colors[0]],
        [names[0], colors[1]],
      ],
    };
  },
  name: (nodes) => {
    const colors = series();
    const { ordered, names } = groups(nodes, ({ node }) => kindOf(node));
    const places = new Map(ordered.map((name, at) => [name, Math.min(at, colors.length - 1)]));
    const shown = ordered.slice(0, colors.length);
    const legend = shown.map((name, at) => [
      at === colors.length - 1 && ordered.length > colors.length ? "others" : name,
      colors[at],
    ]);
    return { colors: names.map((name) => colors[places.get(name)]), legend };
  },
};

// Where all but a few values lie: one node far away would press all others together.
function middle(values) {
  const sorted = values.slice().sort((one, other) => one - other);
  const cut = Math.floor(sorted.length * CUT);
  return [sorted[cut], sorted[sorted.length - 1 - cut]];
}

function drawMap(nodes, coloring) {
  return (context, width, height) => {
    const [left, right] = middle(nodes.map(({ x }) => x));
    const [low, high] = middle(nodes.map(({ y }) => y));
    // One scale for both axes: distances are distances.
    const scale = Math.min((width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN) / (high - low || 1));
    const at = (value, from, to, size) =>
      Math.min(Math.max(size / 2 + (value - (from + to) / 2) * scale, MARGIN / 2), size - MARGIN / 2);
    const { colors } = COLORINGS[coloring](nodes);
    const radius = nodes.length > 2000 ? 2.2 : 3.2;
    context.globalAlpha = 0.85;
    return nodes.map((node, index) => {
      const [x, y] = [at(node.x, left, right, width), height - at(node.y, low, high, height)];
      circle(context, x, y, radius, colors[index]);
      return { x, y, words: `${node.node}, ${count(node.degree)} edges`, href: pageOf(node.node), id: node.node };
    });
  };
}

function Drawn({ data, coloring }) {
  const { nodes, explained } = data;
  const draw = useMemo(() => drawMap(nodes, coloring), [nodes, coloring]);
  const { legend } = useMemo(() => COLORINGS[coloring](nodes), [nodes, coloring]);
  const rows = useMemo(() => {
    const largest = nodes.slice().sort((one, other) => other.degree - one.degree);
    const row = (node) => [nodeLink(node.node), count(node.degree), node.destination ? "destination" : "source only"];
    return largest.slice(0, LISTED).map(row);
  }, [nodes]);
  const shares = `the axes hold ${explained.map(percent).join(" and ")} of the variance`;
  return html`
    <${Panel} title="${count(nodes.length)} of ${count(data.nodes_total)} nodes" aside=${shares}>
      <${Drawing} label="Map of ${nodes.length} nodes by their embeddings; ${shares}" ratio=${0.6} draw=${draw} />
      <${Legend} items=${[...legend, ["the farthest nodes are drawn at the edge", "transparent"]]} />
    <//>
    <${Panel} title="Nodes of the map with the most edges">
      <${Table} label="Largest nodes of the map" columns=${[["Node"], ["Edges", true], ["Role"]]} rows=${rows} />
    <//>
  `;
}

export function MapPage() {
  const [size, setSize] = useState(1000);
  const [coloring, setColoring] = useState("role");
  const [turn, setTurn] = useState(0);
  const load = async (signal) => get(`v1/map?limit=${await atMost(size)}`, { signal });
  const { data, error, loading } = useLoaded(load, [size, turn]);
  return html`
    <div class="title"><h1>Map</h1><span class="quiet small">principal components of embeddings as of now</span></div>
    <section class="panel" aria-label="What is shown">
      <div class="actions">
        <label class="field">Nodes
          <select id="map-size" value=${size} onChange=${(event) => setSize(Number(event.target.value))}>
            ${SIZES.map((one) => html`<option value=${one} selected=${one === size}>up to ${count(one)}</option>`)}
          </select>
        </label>
        <label class="field">Colored by
          <select id="map-coloring" value=${coloring} onChange=${(event) => setColoring(event.target.value)}>
            <option value="degree">number of edges</option>
            <option value="role">role in events</option>
            <option value="name">beginning of the key</option>
          </select>
        </label>
        <button class="plain" disabled=${loading} onClick=${() => setTurn(turn + 1)}>
          ${loading ? "Computing …" : "Compute again"}
        </button>
      </div>
    </section>
    <${Problem} error=${error} />
    ${data?.nodes.length === 0 && html`<${Empty}>There are no nodes yet. They come with the first events.<//>`}
    ${data?.nodes.length > 0 && html`<${Drawn} data=${data} coloring=${coloring} />`}
    ${!data && !error && html`<${Empty}>Computing embeddings …<//>`}
  `;
}
