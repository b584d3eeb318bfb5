// What an operator does: each with what will happen, in the figures of now, and a question before it does.

import { get, send } from "./api.js";
import { count, quality } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Kept } from "./kept.js";
import { key } from "./key.js";
import { Empty, Notice, Panel, Problem, sentence } from "./parts.js";
import { SourceState } from "./overview.js";

const DONE_MAX = 10;

const outcomes = new Kept(DONE_MAX);

// Every operation is { id, title, what, button, question, request, done, impossible, check }. `check` looks, once it is
// confirmed, whether it still does what was asked about, and throws if not.
const sourceOperation = (source) => {
  const paused = source.paused_by !== null;
  const pushes = source.name === "http";
  const resumed = pushes
    ? "If you resume it, pushes are accepted again. Those that were refused come only if they are sent again."
    : "If you resume it, it goes on from where it stopped, and reads what has come meanwhile.";
  const stopped = pushes ? "pushes are refused" : "it reads nothing";
  return {
    id: `source-${source.name}`,
    title: html`<span class="key">${source.name}</span> <${SourceState} source=${source} />`,
    what: paused ? resumed : `If you pause it, ${stopped} until it is resumed, across restarts too.`,
    button: paused ? "Resume" : "Pause",
    question: `${paused ? "Resume" : "Pause"} the source ${source.name}?`,
    request: ["PUT", `v1/admin/sources/${encodeURIComponent(source.name)}`, { paused: !paused }],
    done: (result) => `the source ${result.source} is ${result.paused ? "paused" : "resumed"}`,
  };
};

const checkpoint = ({ learner }) => ({
  id: "checkpoint",
  title: "Checkpoint",
  what: `Weights, optimizer and node memory as of position ${count(learner.applied_position)} are written to disk.
    Learning pauses while they are copied; requests do not wait.`,
  button: "Write",
  question: "Write a checkpoint now?",
  request: ["POST", "v1/admin/checkpoints"],
  impossible: learner.applied_position === 0 ? "Nothing was learned yet, so there is nothing to keep." : null,
  done: (result) => `checkpoint ${result.name} is durable, as of position ${count(result.position)}`,
});

const training = ({ learner }) => ({
  id: "training",
  title: "Training",
  what: learner.training
    ? `It goes on. If you pause it, weights stay as they are until it is resumed, across restarts too. Node memory still
      follows the events, so responses stay fresh.`
    : `It is paused, here or by learner.train in the settings. If you resume it, weights are trained on events from then
      on, not on those that came meanwhile.`,
  button: learner.training ? "Pause" : "Resume",
  question: `${learner.training ? "Pause" : "Resume"} training?`,
  request: ["PUT", "v1/admin/training", { paused: learner.training }],
  done: (result) => `training is ${result.paused ? "paused" : "resumed"}`,
});

const served = ({ model_version: version }) => (version ? ` in place of version ${version}` : "");

const promote = ({ learner }) => {
  const last = learner.gate?.last;
  const published = last?.published_average_precision ?? null;
  const beside = published === null ? "" : `, the published version ${quality(published)}`;
  const judged =
    last &&
    ` At the latest decision the candidate had an average precision of
    ${quality(last.candidate_average_precision)}${beside}.`;
  return {
    id: "promote",
    title: "Promote the candidate",
    what: `If you promote it, the weights in training are served${served(learner)}, without a decision of the
      gate, which goes on from there.${judged ?? ""}`,
    button: "Promote",
    question: "Serve the weights in training?",
    request: ["POST", "v1/admin/model/promote", {}],
    done: (result) => `version ${result.model_version} is served`,
    impossible: learner.gate ? null : "There is no promotion gate: every version is served at once.",
  };
};

const rollBack = ({ learner }) => {
  const previous = learner.gate?.previous_version ?? null;
  return {
    id: "roll-back",
    title: "Roll back",
    what: `If you roll back, version ${previous} is served again${served(learner)}, and training goes on from
      it. Node memory stays as it is.`,
    button: "Roll back",
    question: `Serve version ${previous} again?`,
    request: ["POST", "v1/admin/model/rollback"],
    // The request names no version, and after another promotion another one is the previous.
    check: async () => {
      const { learner: now } = await get("v1/status");
      const found = now.gate?.previous_version ?? null;
      if (found === previous && now.model_version === learner.model_version) return;
      throw new Error(
        `nothing was done: version ${now.model_version} is served by now, and the previous one is ${found ?? "gone"}`,
      );
    },
    done: (result) => `version ${result.model_version} is served again`,
    impossible: previous === null ? "There is no previous version to go back to." : null,
  };
};

const Operation = ({ operation, ask, disabled }) => html`
  <div class="operation">
    <div>
      <h3>${operation.title}</h3>
      <p class="small">${operation.impossible ?? operation.what}</p>
    </div>
    <button id=${operation.id} class="plain" disabled=${disabled || Boolean(operation.impossible)}
      onClick=${() => ask(operation)}>${operation.button}</button>
  </div>
`;

// The question before an operation. The browser keeps the focus inside. Once it is confirmed, there is no way back.
function Question({ operation, decide, busy }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const cancel = (event) => (event.preventDefault(), busy || decide(false));
  return html`
    <dialog ref=${dialog} aria-labelledby="question" onCancel=${cancel} onClose=${() => decide(false)}>
      <h2 id="question">${operation.question}</h2>
      <p>${operation.what}</p>
      <div class="actions">
        <button class="plain" disabled=${busy} onClick=${() => decide(false)}>Cancel</button>
        <button id="confirm" disabled=${busy} onClick=${() => decide(true)}>
          ${busy ? "Waiting …" : operation.button}
        </button>
      </div>
    </dialog>
  `;
}

const Outcome = ({ at, done, error }) =>
  error
    ? html`<${Problem} error=${error} />`
    : html`<${Notice} kind="calm"><span class="number">${at}</span> ${sentence(done)}<//>`;

const NO_KEYS = html`
  <${Notice} kind="calm">
    Operations need a key with the role <code>admin</code>. A daemon without keys takes them from programs on its own
    machine only, not from browsers, so that no foreign page can send them. So set
    ${" "}<code>api.keys_file</code>, or use <code>evergraph</code> on the command line.
  <//>
`;

export function Operations({ live }) {
  const [asked, setAsked] = useState(null);
  const [busy, setBusy] = useState(false);
  const shown = outcomes.use();
  if (!live.figures) return html`<${Empty}>Waiting for the first figures.<//>`;
  const { status } = live.figures;
  const decide = async (isWanted) => {
    if (isWanted) {
      setBusy(true);
      const at = new Date().toLocaleTimeString("en-GB");
      const note = (outcome) => outcomes.change((all) => [{ at, ...outcome }, ...all]);
      const act = async () => {
        await asked.check?.();
        return send(...asked.request);
      };
      await act().then(
        (result) => note({ done: asked.done(result) }),
        (error) => note({ error }),
      );
      setBusy(false);
    }
    setAsked(null);
    // Behind the dialog, once it is gone and the button can be pressed again.
    setTimeout(() => document.getElementById(asked.id)?.focus(), 50);
  };
  const disabled = busy || !key.get();
  const each = (operations) =>
    operations.map(
      (operation) =>
        html`<${Operation} key=${operation.id} operation=${operation} ask=${setAsked} disabled=${disabled} />`,
    );
  const sources = status.ingest.sources;
  return html`
    <div class="title">
      <h1>Operations</h1>
      <span class="quiet small">each asks for confirmation, and is recorded in the audit log</span>
    </div>
    ${!key.get() && NO_KEYS}
    <div role="status" id="outcome">
      ${shown.map((outcome) => html`<${Outcome} ...${outcome} />`)}
    </div>
    <${Panel} title="Sources">
      ${sources.length ? each(sources.map(sourceOperation)) : html`<${Empty}>No source is configured.<//>`}
    <//>
    <${Panel} title="Model">${each([promote(status), rollBack(status), training(status)])}<//>
    <${Panel} title="State">${each([checkpoint(status)])}<//>
    ${asked && html`<${Question} operation=${asked} decide=${decide} busy=${busy} />`}
  `;
}
