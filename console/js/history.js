// The curves of a page: those that the daemon sent when the page opened, and what came since. As in the daemon, there
// are never more than so many points: when they are all taken, every second one goes.

const COLUMNS = {
  at_unix_ms: (figures) => figures.at_unix_ms,
  stored_events: ({ status }) => status.log.durable_position,
  learned_events: ({ status }) => status.learner.applied_position,
  lag_events: ({ status }) => status.learner.lag_events,
  freshness_p50_seconds: ({ status }) => status.learner.end_to_end_freshness_p50_seconds,
  freshness_p99_seconds: ({ status }) => status.learner.end_to_end_freshness_p99_seconds,
  average_precision: ({ status }) => status.learner.average_precision,
  edgebank_average_precision: ({ status }) => status.learner.edgebank_average_precision,
};
const DECISIONS_MAX = 50;
const RATE_TICKS = 5;

// A roll-back can have the position of the promotion that it undoes.
const isSame = (one, other) =>
  one?.position === other.position &&
  one.verdict === other.verdict &&
  one.candidate_version === other.candidate_version;

export class History {
  constructor(sent) {
    this.stride = sent.stride;
    this.pointsMax = sent.points_max;
    this.columns = {};
    for (const name of Object.keys(COLUMNS)) this.columns[name] = sent[name].slice();
    this.decisions = sent.decisions.slice();
    // The figures that come with the curves are a moment younger than their last point: too close for one more.
    this.isNew = true;
    this.ticks = 0;
  }

  add(figures) {
    this.note(figures.status.learner.gate?.last);
    const isNew = this.isNew;
    this.isNew = false;
    if (isNew || figures.restoring || this.ticks++ % this.stride !== 0) return;
    if (this.columns.at_unix_ms.length >= this.pointsMax) this.thin();
    for (const [name, of] of Object.entries(COLUMNS)) this.columns[name].push(of(figures) ?? null);
  }

  note(last) {
    if (!last || isSame(this.decisions.at(-1), last)) return;
    this.decisions.push(last);
    if (this.decisions.length > DECISIONS_MAX) this.decisions.shift();
  }

  thin() {
    this.stride *= 2;
    for (const name of Object.keys(COLUMNS)) {
      this.columns[name] = this.columns[name].filter((_, index) => index % 2 === 0);
    }
  }

  get seconds() {
    return this.columns.at_unix_ms.map((at) => at / 1000);
  }

  // What a count grew by per second, over some seconds up to each point: batches come in one piece, and are no bursts.
  // A count that falls is that of a daemon which was restarted on other data.
  rates(name) {
    const [at, counts] = [this.columns.at_unix_ms, this.columns[name]];
    const points = Math.ceil(RATE_TICKS / this.stride);
    return counts.map((count, index) => {
      const from = Math.max(0, index - points);
      const [seconds, grown] = [(at[index] - at[from]) / 1000, count - counts[from]];
      return seconds > 0 && grown >= 0 ? grown / seconds : null;
    });
  }
}
