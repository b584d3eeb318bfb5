// Templates: markup in JavaScript without a build step, and the hooks that components use.

import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export { render };
export const html = htm.bind(h);
