// What pages are made of: panels, figures, tables, notices.

import { pageOf } from "./api.js";
import { html } from "./html.js";

export const Panel = ({ title, aside, children, label }) => html`
  <section class="panel" aria-label=${label ?? title}>
    ${title && html`<header><h2>${title}</h2>${aside && html`<span class="quiet small">${aside}</span>`}</header>`}
    ${children}
  </section>
`;

// A value and its unit, what it is, and what puts it in proportion. `id` names it for tests and for links.
export const Figure = ({ id, name, value, unit, note }) => html`
  <div class="figure" id=${id}>
    <dt>${name}</dt>
    <dd class="figure-value">
      <span class="value">${value}</span>${unit && html`<span class="figure-unit">${unit}</span>`}
    </dd>
    <dd class="figure-note">${note}</dd>
  </div>
`;

// `columns` are [name, isNumber], rows are lists of cells. Wide tables are scrolled, by keyboard too.
export const Table = ({ label, columns, rows }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label="Table: ${label}">
    <table>
      <thead>
        <tr>
          ${columns.map(([name, isNumber]) => html`<th scope="col" class=${isNumber ? "number" : ""}>${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (cells) =>
            html`<tr>${cells.map((cell, at) => html`<td class=${columns[at][1] ? "number" : ""}>${cell}</td>`)}</tr>`,
        )}
      </tbody>
    </table>
  </div>
`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Notice = ({ kind, children }) => html`<div class="notice ${kind ?? ""}" role="status">${children}</div>`;

export const Problem = ({ error }) => error && html`<${Notice} kind="bad">${sentence(error.message)}<//>`;

// What the daemon says begins in lower case and has no full stop, as log lines do.
export const sentence = (text) => text && text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

export const Pill = ({ kind, children }) => html`<span class="pill ${kind ?? ""}">${children}</span>`;

export const Legend = ({ items }) => html`
  <ul class="legend">
    ${items.map(([name, color]) => html`<li><span class="swatch" style=${{ background: color }}></span>${name}</li>`)}
  </ul>
`;

export const nodeLink = (node) => html`<a class="key" href=${pageOf(node)}>${node}</a>`;
