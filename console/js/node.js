// One node: its edges in time, how old its embedding is, its likeliest destinations and the nodes most like it.

import { atMost, get, info, inPath, pageOf, send } from "./api.js";
import { color } from "./colors.js";
import { Drawing } from "./drawing.js";
import { count, eventTime, fixed, joined, NONE, seconds, span } from "./format.js";
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { useLoaded, useTurns } from "./load.js";
import { drawNeighborhood } from "./neighborhood.js";
import { Empty, Figure, Legend, nodeLink, Panel, Pill, Problem, Table } from "./parts.js";

const EDGES_MAX = 200;
const LISTED_MAX = 12;
const RESULTS = 10;
const REFRESH_MS = 5000;
// A ranking looks at every row of the live index.
const RANKINGS_REFRESH_MS = 60_000;
const SAMPLED = 50;
const SUGGESTED = 12;

// Those with the most edges in a small sample of all nodes: where one can begin.
function Suggestions() {
  const load = async (signal) => get(`v1/map?limit=${await atMost(SAMPLED)}`, { signal });
  const { data } = useLoaded(load, []);
  const nodes = (data?.nodes ?? [])
    .slice()
    .sort((one, other) => other.degree - one.degree)
    .slice(0, SUGGESTED);
  return (
    nodes.length > 0 &&
    html`<p class="empty">
      Some with many edges: ${nodes.map(({ node }, at) => html`${at > 0 && ", "}${nodeLink(node)}`)}
    </p>`
  );
}

function Search({ name }) {
  const input = useRef(null);
  useEffect(() => {
    if (input.current) input.current.value = name ?? "";
  }, [name]);
  const submit = (event) => {
    event.preventDefault();
    const text = input.current.value.trim();
    if (text) location.hash = pageOf(text);
  };
  return html`
    <section class="panel" aria-label="Search">
      <form class="line" role="search" onSubmit=${submit}>
        <label class="field">
          Node key<input id="node-key" type="text" autocomplete="off" spellcheck=${false} required ref=${input} />
        </label>
        <button>Look up</button>
      </form>
      ${!name && html`<${Empty}>A key as events name it, such as <code>user-1</code>.<//>`}
      ${!name && html`<${Suggestions} />`}
    </section>
  `;
}

function Facts({ node, unit }) {
  const { degree, last_event: last, learned_event: learned, freshness } = node;
  const behind = last === null || learned === null ? null : last - learned;
  const moment = (time) => html`<span class="small">${eventTime(time, unit)}</span>`;
  const old = behind === 0 ? "its latest event" : `${span(behind, unit)} before its latest event`;
  const age = learned === null ? "no event yet: it is cold" : old;
  const waiting = freshness.indexed_position - freshness.applied_position;
  return html`
    <dl class="figures">
      <${Figure} id="degree" name="Edges" value=${count(degree)} note="in the graph now" />
      <${Figure} id="last-event" name="Latest event" value=${moment(last)}
        note=${last === null ? "none that is kept" : "event time"} />
      <${Figure} id="embedding-age" name="Its embedding reflects" value=${moment(learned)} note=${age} />
      <${Figure} id="node-version" name="Model version" value=${freshness.model_version || NONE}
        note="${count(waiting)} events are not learned yet" />
    </dl>
  `;
}

function Neighborhood({ name, edges, unit, now }) {
  const draw = useMemo(() => drawNeighborhood(name, edges, now, unit), [name, edges, unit]);
  const columns = [["Neighbor"], ["Direction"], ["Time", true], ["Age", true]];
  const rows = edges
    .slice(0, LISTED_MAX)
    .map((edge) => [
      nodeLink(edge.node),
      edge.direction === "out" ? "to neighbor" : "from neighbor",
      eventTime(edge.time, unit),
      span(Math.max(0, now - edge.time), unit),
    ]);
  if (!edges.length) return html`<${Panel} title="Neighbors in time"><${Empty}>No edges of it are kept.<//><//>`;
  const neighbors = new Set(edges.map((edge) => edge.node)).size;
  return html`
    <div class="columns">
      <${Panel} title="Neighbors in time" aside="further out is older">
        <${Drawing} label="The ${edges.length} newest edges of ${name}, to ${neighbors} neighbors" ratio=${0.85}
          draw=${draw} />
        <${Legend} items=${[
          ["an event to the neighbor", color("series-1")],
          ["an event from the neighbor", color("series-2")],
        ]} />
      <//>
      <${Panel} title="Newest edges" aside="${rows.length} of ${edges.length} that are drawn">
        <${Table} label="Newest edges" columns=${columns} rows=${rows} />
      <//>
    </div>
  `;
}

// For how long the oldest row has been missing something.
const age = ({ oldest_row_seconds: old }) =>
  old === 0 ? "rows are as of now" : `rows up to ${joined(seconds(old))} old`;

// Results of the live index, or why there are none.
function Ranked({ title, aside, loaded, rows, column, empty }) {
  const { data, error } = loaded;
  const isOff = error?.type === "index_disabled";
  return html`
    <${Panel} title=${title} aside=${data && `${aside}; ${age(data.index)}`}>
      ${isOff && html`<${Empty}>The live index is off: <code>index.bytes_max</code> turns it on.<//>`}
      ${!isOff && html`<${Problem} error=${error} />`}
      ${data && !rows.length && html`<${Empty}>${empty}<//>`}
      ${rows.length > 0 && html`<${Table} label=${title} columns=${[["Node"], [column, true]]} rows=${rows} />`}
      ${!data && !error && html`<${Empty}>Loading …<//>`}
    <//>
  `;
}

const row = (node, score, cold) => [html`${nodeLink(node)} ${cold && html`<${Pill}>cold<//>`}`, fixed(score, 4)];

// A ranking of a node, loaded again from time to time, and soon while the index has no rows of its nodes yet.
function useRanking(node, path, body, member) {
  const [every, setEvery] = useState(RANKINGS_REFRESH_MS);
  const turn = useTurns(every);
  const load = async (signal) =>
    send("POST", path, { ...body, limit: await atMost(RESULTS) }, { signal });
  const loaded = useLoaded(load, [node, turn]);
  const ranked = loaded.data?.results[0]?.[member] ?? [];
  const isAwaited = !ranked.length && loaded.data?.index.pending_nodes > 0;
  const next = isAwaited || loaded.error?.type === "index_not_ready" ? REFRESH_MS : RANKINGS_REFRESH_MS;
  // The time counts from a response on: a next request would abort one that takes long.
  useEffect(() => setEvery(loaded.loading ? null : next), [loaded.loading, next]);
  return { loaded, ranked };
}

function Destinations({ node }) {
  const { loaded, ranked } = useRanking(node, "v1/links/top", { src: [node] }, "top");
  const by = loaded.data?.source === "baseline" ? "by EdgeBank" : "by the model";
  return html`
    <${Ranked} title="Likeliest destinations" aside=${by} loaded=${loaded} column="Score"
      rows=${ranked.map(({ dst, score, cold }) => row(dst, score, cold))} empty="No candidate was found." />
  `;
}

function Similar({ node }) {
  const { loaded, ranked } = useRanking(node, "v1/nodes/similar", { nodes: [node] }, "similar");
  return html`
    <${Ranked} title="Most similar nodes" aside="by cosine" loaded=${loaded} column="Cosine"
      rows=${ranked.map(({ node: other, score, cold }) => row(other, score, cold))}
      empty="No other node has an embedding yet." />
  `;
}

// Scores of a node that events only lead to would be about what never happens.
const NO_SOURCE = html`
  <${Panel} title="Likeliest destinations">
    <${Empty}>None of its newest edges leads from it, so no destinations are ranked.<//>
  <//>
`;

function Rankings({ node, isSource }) {
  return html`
    <div class="columns">
      ${isSource ? html`<${Destinations} node=${node} />` : NO_SOURCE}
      <${Similar} node=${node} />
    </div>
  `;
}

function Found({ node, live }) {
  const turn = useTurns(REFRESH_MS);
  const load = async (signal) => {
    const path = `v1/nodes/${inPath(node)}`;
    const [{ time_unit: unit }, limit] = await Promise.all([info(), atMost(EDGES_MAX)]);
    const [facts, page] = await Promise.all([
      get(`${path}?neighbors=0`, { signal }),
      get(`${path}/neighbors?limit=${limit}`, { signal }),
    ]);
    return { facts, edges: page.neighbors, unit };
  };
  const { data, error } = useLoaded(load, [node, turn]);
  if (error?.status === 404)
    return html`<${Panel} label="Result"><${Empty}>There is no node <span class="key">${node}</span>.<//><//>`;
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Empty}>Loading …<//>`;
  const newest = data.edges[0]?.time ?? 0;
  const now = Math.max(newest, live.figures?.status.graph.latest_event_time ?? newest);
  return html`
    <${Problem} error=${error} />
    <${Facts} node=${data.facts} unit=${data.unit} />
    <${Neighborhood} name=${node} edges=${data.edges} unit=${data.unit} now=${now} />
    <${Rankings} node=${node} isSource=${data.edges.some(({ direction }) => direction === "out")} />
  `;
}

export function Node({ live, route }) {
  const name = route[1];
  return html`
    <div class="title"><h1>${name ? html`Node <span class="key">${name}</span>` : "Node"}</h1></div>
    <${Search} name=${name} />
    ${name && html`<${Found} key=${name} node=${name} live=${live} />`}
  `;
}
