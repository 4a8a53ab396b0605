/** When each sensor reported: a row for each sensor, or for several, and a column for each interval of time. */

import { h, type LocalTime, svg } from "./dom";
import { sized, timeTicks } from "./axis";

export interface Gaps {
  kind: "gaps";
  start: string;
  end: string;
  shades: string[]; // share of the readings that are there; the last: none
  one_each: boolean; // a row is one sensor
  rows: { name: string; title: string; cells: string; stuck: [number, number] | null }[];
}

const [TOP, BOTTOM, RIGHT] = [4, 22, 8];
const NAMED_ROWS = 40; // with more, rows have no names
const LETTER_PX = 6;

export function gapChart(time: LocalTime, gaps: Gaps): HTMLElement {
  const { rows, shades } = gaps;
  const none = shades.length - 1;
  const named = rows.length <= NAMED_ROWS;
  const rowHeight = Math.min(18, Math.max(2.5, 480 / rows.length));
  const height = TOP + rowHeight * rows.length + BOTTOM;
  const [start, end] = [Date.parse(gaps.start), Date.parse(gaps.end)];
  const said = h("p", { class: "note", "aria-live": "polite" }, "Point at a row for its sensor.");
  const drawing = sized((width) => {
    const left = Math.min(named ? 8 + LETTER_PX * Math.max(...rows.map(({ name }) => name.length)) : 80, 0.3 * width);
    const x = (share: number) => left + share * (width - left - RIGHT);
    const y = (row: number) => TOP + (row + 0.5) * rowHeight;
    const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Readings by sensor and time" });
    made.append(svg("path", { class: "back", d: `M${left} ${TOP}H${width - RIGHT}V${height - BOTTOM}H${left}Z` }));
    const strokes = shades.map(() => "");
    rows.forEach(({ cells }, row) => {
      for (let first = 0, k = 0; first < cells.length; first = k) {
        while (k < cells.length && cells[k] === cells[first]) k++;
        strokes[Number(cells[first])] += `M${x(first / cells.length).toFixed(1)} ${y(row).toFixed(1)}H${x(k / cells.length).toFixed(1)}`;
      }
    });
    const thick = rowHeight >= 8 ? rowHeight - 1 : rowHeight + 0.5; // overlap, so that no seams show
    strokes.forEach((d, shade) => d && shade < none && made.append(svg("path", { class: `cell ${shades[shade]}`, "stroke-width": thick, d })));
    const stuck = rows.map(({ stuck }, row) => stuck && `M${x(stuck[0]).toFixed(1)} ${y(row).toFixed(1)}H${x(stuck[1]).toFixed(1)}`).filter(Boolean).join("");
    if (stuck) made.append(svg("path", { class: "stuck", "stroke-width": Math.max(1.5, 0.35 * rowHeight), d: stuck }));
    rows.forEach(({ title }, row) => made.append(svg("path", {
      class: "row", d: `M0 ${TOP + row * rowHeight}h${width}v${rowHeight}h${-width}Z`,
      onpointerenter: () => { said.textContent = title; },
    })));
    const text = (at: number, words: string) => made.append(svg("text", { class: "end", x: left - 5, y: at }, words));
    if (named) rows.forEach(({ name }, row) => text(y(row) + 4, shortened(name, (left - 8) / LETTER_PX)));
    else [["most missing", TOP + 10], ["least missing", height - BOTTOM - 2]].forEach(([words, at]) => text(Number(at), String(words)));
    for (const { at, text } of timeTicks(time, start, end, width - left)) {
      const place = x((at - start) / (end - start));
      made.append(svg("path", { class: "grid", d: `M${place} ${height - BOTTOM}v4` }), svg("text", { class: "mid", x: Math.min(place, width - 18), y: height - 6 }, text));
    }
    return made;
  });
  return h("figure", { class: "chart gaps" },
    drawing,
    h("div", { class: "key" }, h("span", {}, "readings present:"),
      ...shades.map((shade, k) => h("span", {}, h("i", { class: k < none ? `cell ${shade}` : "blank" }), shade)),
      rows.some(({ stuck }) => stuck) && h("span", {}, h("i", { class: "stuck" }), "stuck at one value")),
    said,
  );
}

function shortened(name: string, letters: number): string {
  return name.length <= letters + 1 ? name : `${name.slice(0, Math.max(1, Math.floor(letters) - 1))}…`;
}
