/** A line chart over time or over steps, drawn as SVG: lines with gaps, a band, a mark for now, values under the pointer. */

import { h, number, svg } from "./dom";
import { roundStep } from "./scale";

export interface Line {
  name: string;
  css: string; // observed, forecast, issued, other
  points: [number, number][]; // x and value; NaN leaves a gap
}

export interface ChartOptions {
  title: string;
  unit: string;
  lines: Line[];
  band?: [number, number, number][]; // x, low, high
  now?: number; // where the forecast begins
  mark?: number; // the time of the slider
  xText: (x: number) => string;
  xTicks?: number[];
  height?: number;
}

const WIDTH = 330, LEFT = 38, RIGHT = 8, TOP = 8, BOTTOM = 22;

export function chart({ title, unit, lines, band = [], now, mark, xText, xTicks, height = 150 }: ChartOptions): HTMLElement {
  const shown = lines.filter((line) => line.points.some(([, value]) => Number.isFinite(value)));
  if (!shown.length) return h("p", { class: "note" }, "No values yet.");
  const xs = shown.flatMap((line) => line.points.map(([x]) => x));
  const ys = [...shown.flatMap((line) => line.points.map(([, y]) => y)), ...band.flatMap(([, low, high]) => [low, high])].filter(Number.isFinite);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const step = roundStep((Math.max(...ys, 0) - Math.min(...ys, 0) || 1) / 4);
  const [low, high] = [Math.floor(Math.min(...ys, 0) / step + 1e-9) * step, Math.ceil(Math.max(...ys, 0) / step - 1e-9) * step || step];
  const x = (value: number) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value: number) => height - BOTTOM - ((value - low) / (high - low)) * (height - TOP - BOTTOM);
  const last = shown[0].points.filter(([, value]) => Number.isFinite(value)).at(-1);
  const label = `${title}. ${last ? `${shown[0].name} ${number(last[1])} ${unit} at ${xText(last[0])}` : ""}`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label });
  for (let k = Math.round(low / step); k <= Math.round(high / step); k++) {
    drawing.append(svg("path", { class: "grid", d: `M${LEFT} ${y(k * step)}H${WIDTH - RIGHT}` }));
    drawing.append(svg("text", { class: "end", x: LEFT - 5, y: y(k * step) + 4 }, number(k * step)));
  }
  for (const tick of xTicks ?? timeTicks(x0, x1)) drawing.append(svg("text", { class: "mid", x: Math.max(LEFT + 8, Math.min(WIDTH - 18, x(tick))), y: height - 6 }, xText(tick)));
  if (band.length) {
    const edge = [...band.map(([at, , top]) => [at, top]), ...[...band].reverse().map(([at, bottom]) => [at, bottom])];
    drawing.append(svg("path", { class: "band", d: `M${edge.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}Z` }));
  }
  if (now !== undefined && now >= x0 && now <= x1) drawing.append(svg("path", { class: "now", d: `M${x(now)} ${TOP}V${height - BOTTOM}` }));
  if (mark !== undefined && mark >= x0 && mark <= x1) drawing.append(svg("path", { class: "mark", d: `M${x(mark)} ${TOP}V${height - BOTTOM}` }));
  for (const line of shown) {
    let d = "";
    line.points.forEach(([at, value], i) => {
      if (!Number.isFinite(value)) return;
      const follows = i > 0 && Number.isFinite(line.points[i - 1][1]);
      const alone = !follows && !Number.isFinite(line.points[i + 1]?.[1] ?? NaN);
      d += `${follows ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}${alone ? "h.1" : ""}`;
    });
    drawing.append(svg("path", { class: `line ${line.css}`, d }));
  }
  const cursor = svg("path", { class: "cursor" });
  drawing.append(cursor);
  const key = shown.map((line) => {
    const value = h("b");
    return { line, value, element: h("span", {}, h("i", { class: `stroke ${line.css}` }), line.name, " ", value) };
  });
  const when = h("span", { class: "when" }, unit);
  const tell = (at: number | undefined) => {
    when.textContent = at === undefined ? unit : `${xText(at)}, ${unit}`;
    for (const { line, value } of key) value.textContent = at === undefined ? "" : number(line.points.find(([point]) => point === at)?.[1] ?? NaN).replace("–", "");
  };
  const marked = mark !== undefined && xs.includes(mark) ? mark : undefined;
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const at = x0 + ((((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * (x1 - x0);
    const nearest = xs.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
    cursor.setAttribute("d", `M${x(nearest)} ${TOP}V${height - BOTTOM}`);
    tell(nearest);
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.removeAttribute("d");
    tell(marked);
  });
  tell(marked);
  return h("figure", { class: "chart" }, h("figcaption", {}, title), drawing, h("div", { class: "key" }, ...key.map(({ element }) => element), when));
}

/** Round times, five at most. */
function timeTicks(from: number, to: number): number[] {
  const minute = 60_000;
  const step = [10, 15, 30, 60, 120, 180, 360, 720, 1440].map((m) => m * minute).find((s) => (to - from) / s <= 5) ?? (to - from) / 4;
  const ticks: number[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return ticks;
}
