// A canvas that fits its place and the screen, in light and dark, with words for the point under the pointer, or that
// the arrow keys lead to. What it shows is told in words by its label, and by a table beside it.

import { watchScheme } from "./colors.js";
import { html, useEffect, useRef, useState } from "./html.js";

const NEAR = 14;

// `draw(context, width, height)` returns the points as { x, y, words, href, id }.
export function Drawing({ label, ratio, draw }) {
  const [canvas, points, pointer, chosen] = [useRef(null), useRef([]), useRef(null), useRef(null)];
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
    // What is drawn anew under the pointer, or was chosen by keys, keeps its words.
    setNear(pointer.current ? find() : (points.current[place()] ?? null));
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
  const place = () => points.current.findIndex(({ id }) => id === chosen.current);
  const go = (index) => {
    pointer.current = null;
    chosen.current = points.current[index]?.id ?? null;
    setNear(points.current[index] ?? null);
  };
  const press = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const count = points.current.length;
    if (step && count) {
      event.preventDefault();
      go((Math.max(place(), step < 0 ? 0 : -1) + step + count) % count);
    }
    if (event.key === "Enter" && near?.href) location.hash = near.href;
  };
  const tip = near && {
    left: `${Math.min(near.x + 12, Math.max(0, width - 190))}px`,
    top: `${Math.max(0, near.y - 34)}px`,
  };
  return html`
    <div class="drawing">
      <canvas ref=${canvas} role="application" aria-label="${label}; arrow keys go from point to point" tabindex="0"
        onPointerMove=${point} onPointerLeave=${() => point(null)} onClick=${follow} onKeyDown=${press}
        onBlur=${() => go(-1)}></canvas>
      <div role="status">${near && html`<div class="tip" style=${tip}>${near.words}</div>`}</div>
    </div>
  `;
}

export function circle(context, x, y, radius, fill) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = fill;
  context.fill();
}
