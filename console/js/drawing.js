// A canvas that fits its place and the screen, in light and dark, with words for the point under the pointer. What it
// shows is told in words by its label, and its points are links in a table beside it: nothing needs the pointer.

import { watchScheme } from "./colors.js";
import { html, useEffect, useRef, useState } from "./html.js";

const NEAR = 14;

// `draw(context, width, height)` returns the points as { x, y, words, href }.
export function Drawing({ label, ratio, draw }) {
  const [canvas, points, pointer] = [useRef(null), useRef([]), useRef(null)];
  const [width, setWidth] = useState(0);
  const [scheme, setScheme] = useState(0);
  const [near, setNear] = useState(null);
  const height = Math.round(Math.min(width * ratio, 560));
  useEffect(() => watchScheme(() => setScheme((number) => number + 1)), []);
  useEffect(() => {
    const place = canvas.current.parentElement;
    const resized = new ResizeObserver(() => setWidth(place.clientWidth));
    resized.observe(place);
    return () => resized.disconnect();
  }, []);
  useEffect(() => {
    if (width === 0) return;
    const scale = devicePixelRatio || 1;
    Object.assign(canvas.current, { width: width * scale, height: height * scale });
    canvas.current.style.height = `${height}px`;
    const context = canvas.current.getContext("2d");
    context.scale(scale, scale);
    context.clearRect(0, 0, width, height);
    points.current = draw(context, width, height);
    // What is drawn anew under the pointer keeps its words.
    setNear(find());
  }, [width, scheme, draw]);
  const find = () => {
    if (!pointer.current) return null;
    const box = canvas.current.getBoundingClientRect();
    const [x, y] = [pointer.current.x - box.left, pointer.current.y - box.top];
    let [best, least] = [null, NEAR ** 2];
    for (const point of points.current) {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  };
  const point = (event) => {
    pointer.current = event && { x: event.clientX, y: event.clientY };
    setNear(find());
  };
  const follow = (event) => {
    pointer.current = { x: event.clientX, y: event.clientY };
    const found = find();
    if (found?.href) location.hash = found.href;
  };
  const tip = near && {
    left: `${Math.min(near.x + 12, Math.max(0, width - 190))}px`,
    top: `${Math.max(0, near.y - 34)}px`,
  };
  return html`
    <div class="drawing">
      <canvas ref=${canvas} role="img" aria-label=${label} onPointerMove=${point}
        onPointerLeave=${() => point(null)} onClick=${follow}></canvas>
      ${near && html`<div class="tip" style=${tip}>${near.words}</div>`}
    </div>
  `;
}

export function circle(context, x, y, radius, fill) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = fill;
  context.fill();
}
