/** Panels that a file brings as data (`frigate/pages/panels.py`): headings, words, tables, charts. All text is shown as text. */

import { type App, cityFacts } from "./app";
import { chart, HOURS_AXIS, type Line, namesAxis } from "./chart";
import { h, number, percent } from "./dom";
import { gapChart, type Gaps } from "./gaps";
import { type NodeId, type Unit, unitText } from "./network";

/** A node that changes, as the service and reports name it. */
export interface Change {
  node: NodeId;
  street: string;
  before: number;
  after: number;
}

type Cell = string | { text: string; small?: string; node?: number; road?: number };

export type Block =
  | { kind: "heading"; text: string; level: 2 | 3 }
  | { kind: "words"; text: string; style: string }
  | { kind: "facts" }
  | { kind: "tiles"; tiles: { title: string; value: string; detail: string }[] }
  | { kind: "table"; label: string; columns: string[]; rows: Cell[][]; styles: string[]; left: number }
  | { kind: "items"; items: [Cell, string][] }
  | { kind: "terms"; terms: [string, string][] }
  | { kind: "details"; summary: string; blocks: Block[]; open: boolean }
  | { kind: "chart"; title: string; unit: Unit; lines: { name: string; style: string; values: (number | null)[] }[]; names: string[]; hours: number }
  | { kind: "bars"; label: string; rows: [string, number, string][] }
  | Gaps
  | { kind: "layers"; layers: Record<string, string> }
  | { kind: "changes"; unit: Unit; changes: Change[] };

export function panelOf(app: App, blocks: Block[]): HTMLElement {
  return h("div", {}, ...blocks.map((block) => draw(app, block)));
}

function draw(app: App, block: Block): Node {
  switch (block.kind) {
    case "heading": return block.level === 2 ? h("h2", {}, block.text) : h("h3", {}, block.text);
    case "words": return h("p", { class: block.style || undefined }, block.text);
    case "facts": return h("p", {}, cityFacts(app.network));
    case "tiles": return h("div", { class: "tiles" }, ...block.tiles.map(({ title, value, detail }) => h("div", {}, h("span", {}, title), h("b", {}, value), h("span", {}, detail))));
    case "table": return table(app, block);
    case "items": return h("ul", { class: "list" }, ...block.items.map(([what, beside]) => h("li", {}, cell(app, what), h("span", {}, beside))));
    case "terms": return h("dl", {}, ...block.terms.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]));
    case "details": return h("details", { open: block.open }, h("summary", {}, block.summary), ...block.blocks.map((each) => draw(app, each)));
    case "chart": return lineChart(block);
    case "bars": return bars(block);
    case "gaps": return gapChart(app.time, block);
    case "layers": return h("div", { class: "confirm" }, ...Object.entries(block.layers).map(([key, text]) => h("button", { type: "button", onclick: () => app.showLayer(key) }, text)));
    case "changes": return largestChanges(app, block.changes, unitText(block.unit));
  }
}

function cell(app: App, what: Cell): Node {
  if (typeof what === "string") return h("span", {}, what);
  if (what.node !== undefined) return app.nodeLink(what.node, what.text);
  if (what.road !== undefined) return app.roadLink(what.road, what.text);
  return h("span", {}, what.text, what.small !== undefined && h("small", {}, what.small));
}

function table(app: App, { label, columns, rows, styles, left }: Extract<Block, { kind: "table" }>): Node {
  const side = (k: number) => (k < left ? "left" : undefined);
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, ...columns.map((name, k) => h("th", { scope: "col", class: side(k) }, name)))),
    h("tbody", {}, ...rows.map(([first, ...rest], i) =>
      h("tr", { class: styles[i] }, h("th", { scope: "row" }, cell(app, first)), ...rest.map((what, k) => h("td", { class: side(k + 1) }, cell(app, what)))))),
  ));
}

function lineChart({ title, unit, lines, names, hours }: Extract<Block, { kind: "chart" }>): Node {
  const x = (i: number) => (hours ? (i + 0.5) * hours : i);
  const drawn = lines.map(({ name, style, values }, k): Line => ({
    name, css: style === "other" ? `other o${k}` : style, points: values.map((value, i) => [x(i), value ?? NaN]),
  }));
  return chart({ title, unit: unitText(unit), lines: drawn, height: 190, ...(hours ? HOURS_AXIS : namesAxis(names)) });
}

function bars({ label, rows }: Extract<Block, { kind: "bars" }>): Node {
  return h("table", { class: "bars", "aria-label": label }, h("tbody", {}, ...rows.map(([name, share, text]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "bar" }, h("i", { style: `width:${(100 * share).toFixed(1)}%` })), h("td", {}, text)))));
}

/** The largest changes in words. */
export function largestChanges(app: App, largest: Change[], unit: string): Node {
  const words = ({ node, street, before, after }: Change) => {
    const change = after - before;
    const share = before > 0 ? ` (${change > 0 ? "+" : ""}${percent(change / before)})` : "";
    return h("li", {},
      app.nodeLink(app.network.node(node), app.network.nodeName(node)), street ? `, ${street}` : "", h("span", { class: change > 0 ? "more" : "less" }, `${number(before)} → ${number(after)}${share}`));
  };
  if (!largest.length) return h("p", { class: "note" }, "Nothing changes.");
  return h("div", {}, h("h3", {}, `Largest changes, ${unit}`), h("ol", { class: "list changes" }, ...largest.map(words)));
}
