// The counts of the last seconds, for rates as of now. The points of a curve are further and further apart; these are
// not.

const KEPT_MS = 5500;
const KEPT_MAX = 64;
// Over less than that, a rate would be that of a single batch.
const LEAST_SECONDS = 0.5;

const COUNTS = {
  stored: ({ status }) => status.log.durable_position,
  learned: ({ status }) => status.learner.applied_position,
};

export class Latest {
  constructor() {
    this.kept = [];
  }

  add(figures) {
    const counts = { at: figures.at_unix_ms };
    for (const [name, of] of Object.entries(COUNTS)) counts[name] = of(figures);
    const isRecent = ({ at }) => at <= counts.at && counts.at - at <= KEPT_MS;
    this.kept = [...this.kept.filter(isRecent), counts].slice(-KEPT_MAX);
  }

  // What a count grew by per second; null while that is unknown. A count that falls is that of a daemon which was
  // restarted on other data.
  rate(name) {
    const [from, to] = [this.kept[0], this.kept.at(-1)];
    if (!from) return null;
    const [seconds, grown] = [(to.at - from.at) / 1000, to[name] - from[name]];
    return seconds >= LEAST_SECONDS && grown >= 0 ? grown / seconds : null;
  }
}
