// Lists that outlive their page: it can be left, and its results are there when it is shown again.

import { useEffect, useState } from "./html.js";

export class Kept {
  constructor(most) {
    Object.assign(this, { most, all: [], changed: () => {} });
  }

  change(change) {
    this.all = change(this.all).slice(0, this.most);
    this.changed();
  }

  // For the one page that shows it.
  use() {
    const [, setTurn] = useState(0);
    useEffect(() => {
      this.changed = () => setTurn((turn) => turn + 1);
      return () => (this.changed = () => {});
    }, []);
    return this.all;
  }
}
