// Push an event and watch it: stored, in the graph, reflected in responses, each with the time it took.

import { get, info, inPath, open, send } from "./api.js";
import { count, fixed, joined, NONE, seconds } from "./format.js";
import { html, useRef, useState } from "./html.js";
import { Kept } from "./kept.js";
import { live, watch } from "./live.js";
import { Empty, nodeLink, Panel, Problem } from "./parts.js";

const KEPT = 10;
const WAIT_MS = 10_000;

const pushed = new Kept(KEPT);

const score = async (src, dst, position) => {
  const wait = position === undefined ? {} : { min_position: position };
  const found = await send("POST", "v1/links/score", { pairs: [{ src, dst }], unknown: "prior", ...wait });
  return { value: found.scores[0]?.score ?? null, source: found.source };
};

// The body of the push. The time goes in as it was typed: nanoseconds are beyond what numbers hold exactly here.
function body({ src, dst, time, type, features }) {
  const more = [
    ...(type ? [`"type": ${JSON.stringify(type)}`] : []),
    ...(features.length ? [`"features": ${JSON.stringify(features)}`] : []),
  ];
  return `{${[`"src": ${JSON.stringify(src)}`, `"dst": ${JSON.stringify(dst)}`, `"ts": ${time}`, ...more].join(", ")}}`;
}

// A time after the latest one. Beyond the whole numbers that are exact here, the latest one was rounded, by less than
// the distance to the next number.
function after(latest) {
  if (Number.isSafeInteger(latest)) return String(latest + 1);
  const exponent = Math.floor(Math.log2(Math.abs(latest))) - 52;
  return String(BigInt(latest) + 2n ** BigInt(exponent));
}

// `latest` is null while the graph has no event: which unit its times will have, only their sender knows.
function read(form, latest) {
  const of = (name) => form.elements[name].value.trim();
  const time = of("time") || (latest === null ? "" : after(latest));
  if (!time) throw new Error("there is no event yet whose time could be followed: give a time");
  if (!/^-?\d+$/.test(time)) throw new Error("the time must be a whole number");
  const features = of("features")
    ? of("features")
        .split(/[\s,]+/)
        .map(Number)
    : [];
  if (features.some((value) => !Number.isFinite(value)))
    throw new Error("features must be numbers, separated by spaces");
  return { src: of("src"), dst: of("dst"), time, type: of("type"), features };
}

// Waits until responses reflect every event below `end`: for a while in the daemon, to the millisecond, and then by the
// figures that come in any case, once `later` was called.
async function reflected(node, end, later) {
  const wait = Math.min(WAIT_MS, (await info()).limits.wait_ms_max);
  try {
    await get(`v1/nodes/${inPath(node)}?neighbors=0&min_position=${end}&wait_ms=${wait}`);
  } catch (problem) {
    if (problem.type !== "not_yet_visible") throw problem;
    later();
    await new Promise((resolve) => {
      const ended = watch(() => live.figures.status.learner.applied_position >= end && (ended(), resolve()));
    });
  }
}

// Pushes, then waits until responses reflect it; `step` takes what is known so far, `later` is called if it takes long.
async function push(event, step, later) {
  const before = await score(event.src, event.dst).catch(() => null);
  const sent = performance.now();
  const response = await open("v1/events", {
    method: "POST",
    text: body(event),
    more: { "idempotency-key": crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` },
  });
  const stored = await response.json();
  step({
    stored: (performance.now() - sent) / 1000,
    position: stored.first_position,
    duplicate: stored.duplicates > 0,
    before,
  });
  await reflected(event.src, stored.end_position, later);
  step({ visible: (performance.now() - sent) / 1000 });
  const after = await score(event.src, event.dst, stored.end_position).catch(() => null);
  step({ after });
}

const Step = ({ time, children }) =>
  html`<li>
    <span class="number quiet">${time === undefined ? "…" : joined(seconds(time))}</span><span>${children}</span>
  </li>`;

function Pushed({ event, stored, position, duplicate, visible, before, after, error }) {
  const change = before?.value != null && after?.value != null;
  const place = `at position ${count(position)}${duplicate ? ", as a duplicate" : ""}`;
  const seen =
    visible === undefined ? "to be reflected in responses" : html`<b class="visible">visible</b>: responses reflect it`;
  const by = after?.source === "baseline" ? ", by EdgeBank" : "";
  return html`
    <section class="panel pushed" aria-label="Event from ${event.src} to ${event.dst}">
      <header>
        <h2>${nodeLink(event.src)} → ${nodeLink(event.dst)}</h2>
        <span class="quiet small">
          time <span class="number">${event.time}</span>${event.type && `, type ${event.type}`}
        </span>
      </header>
      <ol class="steps">
        <${Step} time=${0}>sent<//>
        <${Step} time=${stored}>${stored === undefined ? "to be stored" : `durable and in the graph, ${place}`}<//>
        ${stored !== undefined && html`<${Step} time=${visible}>${seen}<//>`}
      </ol>
      ${
        change &&
        html`<p class="quiet small">
          Its score: ${fixed(before.value, 4)} before, <b class="number">${fixed(after.value, 4)}</b> after${by}.
        </p>`
      }
      <${Problem} error=${error} />
    </section>
  `;
}

export function Events({ live }) {
  const form = useRef(null);
  const all = pushed.use();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  if (!live.figures) return html`<${Empty}>Waiting for the first figures.<//>`;
  const latest = live.figures.status.graph.latest_event_time ?? null;
  const submit = async (action) => {
    action.preventDefault();
    let event;
    try {
      event = read(form.current, latest);
    } catch (problem) {
      return setError(problem);
    }
    const id = crypto.randomUUID?.() ?? Math.random();
    const step = (changes) => pushed.change((all) => all.map((one) => (one.id === id ? { ...one, ...changes } : one)));
    setError(null);
    setBusy(true);
    pushed.change((all) => [{ id, event }, ...all]);
    await push(event, step, () => setBusy(false)).catch((problem) => step({ error: problem }));
    setBusy(false);
  };
  const text = { type: "text", autocomplete: "off", spellcheck: false };
  return html`
    <div class="title"><h1>Events</h1><span class="quiet small">push one and watch when it becomes visible</span></div>
    <section class="panel" aria-label="New event">
      <form class="line" ref=${form} onSubmit=${submit}>
        <label class="field">Source<input name="src" required ...${text} /></label>
        <label class="field">Destination<input name="dst" required ...${text} /></label>
        <label class="field">
          Time<input name="time" inputmode="numeric" required=${latest === null}
            placeholder=${latest === null ? NONE : after(latest)} ...${text} />
        </label>
        <label class="field">Type, if any<input name="type" ...${text} /></label>
        <label class="field">Features, if any<input name="features" ...${text} /></label>
        <button disabled=${busy}>${busy ? "Waiting …" : "Push"}</button>
      </form>
      <p class="empty small">
        Without a time it gets one right after the latest event's. What is pushed is learned from, like any other event.
      </p>
    </section>
    <${Problem} error=${error} />
    ${all.map((one) => html`<${Pushed} key=${one.id} ...${one} />`)}
    ${!all.length && html`<${Empty}>Nothing was pushed from this page yet.<//>`}
  `;
}
