// How the daemon is doing, on one page: what comes in, how far behind and how fresh responses are, how good the model
// is beside the baseline, what the gate decided, where memory goes, and where events come from.

import {
  bytes,
  count,
  fixed,
  joined,
  NONE,
  percent,
  quality,
  seconds,
  short,
  signed,
  tick,
  tickSeconds,
} from "./format.js";
import { html } from "./html.js";
import { Empty, Figure, Panel, Pill, Table } from "./parts.js";
import { Plot } from "./plot.js";

const SOURCES = {
  model: "the promoted model",
  candidate: "the model in training",
  baseline: "EdgeBank, until a promotion",
};

function Figures({ status, latest }) {
  const { learner, graph, log } = status;
  const [memory, memoryUnit] = bytes(status.resident_bytes);
  const [p50, p50Unit] = seconds(learner.end_to_end_freshness_p50_seconds);
  const ahead =
    learner.average_precision === null ? null : learner.average_precision - learner.edgebank_average_precision;
  return html`
    <dl class="figures">
      <${Figure} id="events-rate" name="Events stored" value=${short(latest.rate("stored"))} unit="/s"
        note="${count(log.durable_position)} in the log" />
      <${Figure} id="lag" name="Learner lag" value=${short(learner.lag_events)} unit="events"
        note=${learner.catch_up ? caughtUp(learner.catch_up) : `${count(learner.applied_position)} learned`} />
      <${Figure} id="freshness" name="Freshness, p50" value=${p50} unit=${p50Unit}
        note="p99 ${joined(seconds(learner.end_to_end_freshness_p99_seconds))}" />
      <${Figure} id="quality" name="Average precision" value=${quality(learner.average_precision)}
        note="EdgeBank ${quality(learner.edgebank_average_precision)} (${signed(ahead, 4)})" />
      <${Figure} id="version" name="Model version" value=${learner.model_version || NONE}
        note=${SOURCES[learner.score_source] ?? "nothing is served yet"} />
      <${Figure} id="loss" name="Loss" value=${fixed(learner.loss, 4)}
        note=${learner.training ? `${short(learner.skipped_events)} events skipped` : "training is paused"} />
      <${Figure} id="graph" name="Graph" value=${short(graph.edges)} unit="edges" note="${count(graph.nodes)} nodes" />
      <${Figure} id="memory" name="Memory" value=${memory} unit=${memoryUnit}
        note="up for ${joined(seconds(status.uptime_seconds))}" />
    </dl>
  `;
}

function caughtUp({ remaining_events: events, remaining_seconds: left }) {
  return `catching up: ${short(events)} left${left === null ? "" : `, ${joined(seconds(left))}`}`;
}

function Curves({ status: { learner }, history, latest }) {
  if (!history || history.seconds.length < 2) {
    return html`<${Panel} title="Over time"><${Empty}>Curves appear after two measurements.<//><//>`;
  }
  const { columns, seconds: at } = history;
  const time = (value) => joined(seconds(value));
  const [stored, learned] = [latest.rate("stored"), latest.rate("learned")];
  const { average_precision: ap, edgebank_average_precision: edgebank } = learner;
  const { end_to_end_freshness_p50_seconds: p50, end_to_end_freshness_p99_seconds: p99 } = learner;
  return html`
    <${Panel} title="Average precision" aside="over the latest batches, before the model trains on them">
      <${Plot} label="Average precision over time" seconds=${at} format=${tick} shown=${quality}
        lines=${[
          { name: "model", color: "series-1", values: columns.average_precision, now: ap },
          { name: "EdgeBank", color: "series-2", values: columns.edgebank_average_precision, now: edgebank },
        ]} />
    <//>
    <div class="columns narrow">
      <${Panel} title="Throughput" aside="events per second">
        <${Plot} label="Events per second over time" seconds=${at} format=${tick} shown=${short}
          lines=${[
            { name: "stored", color: "series-3", values: history.rates("stored_events"), now: stored },
            { name: "learned", color: "series-1", values: history.rates("learned_events"), now: learned },
          ]} />
      <//>
      <${Panel} title="Learner lag" aside="events that are stored and not learned">
        <${Plot} label="Learner lag over time" seconds=${at} format=${tick} shown=${short}
          lines=${[{ name: "lag", color: "series-2", values: columns.lag_events, now: learner.lag_events }]} />
      <//>
      <${Panel} title="Freshness" aside="from arrival until responses reflect it, over the latest 1,000 events">
        <${Plot} label="End-to-end freshness over time" seconds=${at} format=${tickSeconds} shown=${time}
          lines=${[
            { name: "p50", color: "series-1", values: columns.freshness_p50_seconds, now: p50 },
            { name: "p99", color: "series-4", values: columns.freshness_p99_seconds, now: p99 },
          ]} />
      <//>
    </div>
  `;
}

const VERDICTS = { promoted: ["good", "promoted"], held: ["", "held"], rolled_back: ["bad", "rolled back"] };

const Verdict = ({ word }) => {
  const [kind, shown] = VERDICTS[word] ?? ["", word];
  return html`<${Pill} kind=${kind}>${shown}<//>`;
};

function Gate({ gate, decisions }) {
  if (!gate) {
    return html`<${Panel} title="Promotion gate"><${Empty}>It is disabled: every version is served at once.<//><//>`;
  }
  const counts = `${gate.promoted} promoted, ${gate.held} held, ${gate.rolled_back} rolled back since the start`;
  const number = [
    ["Verdict"],
    ["Position", true],
    ["Candidate", true],
    ["AP of candidate", true],
    ["Published version", true],
    ["AP of published", true],
    ["Anchor's AP", true],
    ["EdgeBank's AP", true],
    ["Log loss", true],
    ["Log loss of published", true],
  ];
  const rows = decisions
    .slice(-8)
    .reverse()
    .map((one) => [
      html`<${Verdict} word=${one.verdict} />`,
      count(one.position),
      one.candidate_version,
      quality(one.candidate_average_precision),
      one.published_version ?? NONE,
      quality(one.published_average_precision),
      quality(one.anchor_average_precision),
      quality(one.edgebank_average_precision),
      fixed(one.candidate_log_loss, 4),
      fixed(one.published_log_loss, 4),
    ]);
  return html`
    <${Panel} title="Promotion gate" aside=${counts}>
      ${
        rows.length
          ? html`<${Table} label="Decisions of the promotion gate" columns=${number} rows=${rows} />`
          : html`<${Empty}>No decision yet: the gate compares weights once enough batches were measured.<//>`
      }
    <//>
  `;
}

const sum = (parts) => Object.values(parts ?? {}).reduce((total, part) => total + part, 0);

const Bar = ({ share }) =>
  html`<span class="bar" aria-hidden="true"><span style=${{ width: `${Math.min(100, 100 * share)}%` }}></span></span>`;

// Memory by what is in it and by tier. Stores with a budget spill the rest to disk.
function Memory({ status }) {
  const { graph, learner, memory } = status;
  const { graph_copy: copy = 0, ...learned } = learner.bytes;
  const { features = 0, dictionary = 0, ...edges } = graph.bytes;
  const parts = [
    ["Graph", memory.graph?.memory_bytes ?? sum(edges), memory.graph],
    ["Feature rows", memory.rows?.memory_bytes ?? features, memory.rows],
    ["Names", dictionary],
    ["Learner", sum(learned)],
    ["Published node states", learner.node_state_bytes],
    ...(copy > 0 ? [["Graph's copy for the GPU", copy]] : []),
  ];
  const rows = parts.map(([name, held, tier]) => [
    name,
    joined(bytes(held)),
    tier ? joined(bytes(tier.disk_bytes)) : NONE,
    tier ? joined(bytes(tier.budget_bytes)) : NONE,
    tier ? percent(tier.memory_bytes / tier.budget_bytes) : NONE,
    tier && html`<${Bar} share=${tier.memory_bytes / tier.budget_bytes} />`,
  ]);
  const failing = Object.entries(memory).filter(([, tier]) => tier.failing);
  const columns = [["Part"], ["Memory", true], ["Disk", true], ["Budget", true], ["Used", true], ["of budget"]];
  const [resident, ofLog] = [status.resident_bytes, status.log.bytes].map((held) => joined(bytes(held)));
  return html`
    <${Panel} title="Memory by tier" aside="${resident} resident, ${ofLog} of log on disk">
      <${Table} label="Memory by part and tier" columns=${columns} rows=${rows} />
      ${failing.map(([name, tier]) => html`<p class="notice bad">${name}: ${tier.failing}</p>`)}
    <//>
  `;
}

const STATES = { running: "good", connecting: "warn", paused: "warn", degraded: "warn", failed: "bad" };

export const SourceState = ({ source }) =>
  html`<${Pill} kind=${STATES[source.state] ?? ""}>
    ${source.paused_by ? `paused by ${source.paused_by}` : source.state}
  <//>`;

function Sources({ ingest }) {
  const columns = [
    ["Source"],
    ["State"],
    ["Received", true],
    ["Stored", true],
    ["Duplicates", true],
    ["Rejected", true],
    ["Behind", true],
    ["Detail"],
  ];
  const rows = ingest.sources.map((source) => [
    html`<span class="key">${source.name}</span>`,
    html`<${SourceState} source=${source} />`,
    count(source.received_events),
    count(source.accepted_events),
    count(source.duplicate_events),
    count(source.rejected_events),
    Object.keys(source.lag_records).length ? count(sum(source.lag_records)) : NONE,
    html`<span class="quiet">${source.detail}</span>`,
  ]);
  return html`
    <${Panel} title="Sources" aside="${ingest.queue_batches} of ${ingest.queue_batches_max} batches wait for the log">
      ${
        rows.length
          ? html`<${Table} label="Sources" columns=${columns} rows=${rows} />`
          : html`<${Empty}>No source is configured: see <code>[ingest]</code> in the settings.<//>`
      }
    <//>
  `;
}

export function Overview({ live }) {
  const { figures, history, latest } = live;
  if (!figures) return html`<${Empty}>Waiting for the first figures.<//>`;
  const { status } = figures;
  return html`
    <div class="title"><h1>Overview</h1><span class="quiet small" id="device">${status.device}</span></div>
    <${Figures} status=${status} latest=${latest} />
    <${Curves} status=${status} history=${history} latest=${latest} />
    <${Gate} gate=${status.learner.gate} decisions=${history?.decisions ?? []} />
    <div class="columns">
      <${Memory} status=${status} />
      <${Sources} ingest=${status.ingest} />
    </div>
  `;
}
