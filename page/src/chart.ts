/** A line chart over time or over steps, drawn as SVG: lines with gaps, a band, marks, values under the pointer. */

import { sized, type Tick, timeTicks } from "./axis";
import { h, type LocalTime, number, svg } from "./dom";
import { hour } from "./frames";
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
  bandName?: string;
  now?: number; // where the forecast begins
  mark?: number; // the time of the slider
  xText: (x: number) => string;
  xTicks: (x0: number, x1: number, pixels: number) => Tick[];
  height?: number;
}

const LEFT = 38, RIGHT = 8, TOP = 8, BOTTOM = 22;

export function chart({ title, unit, lines, band = [], bandName = "", now, mark, xText, xTicks, height = 150 }: ChartOptions): HTMLElement {
  const shown = lines.filter((line) => line.points.some(([, value]) => Number.isFinite(value)));
  if (!shown.length) return h("p", { class: "note" }, "No values yet.");
  const xs = shown.flatMap((line) => line.points.map(([x]) => x));
  const ys = [...shown.flatMap((line) => line.points.map(([, y]) => y)), ...band.flatMap(([, low, high]) => [low, high])].filter(Number.isFinite);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const step = roundStep((Math.max(...ys, 0) - Math.min(...ys, 0) || 1) / 4);
  const [low, high] = [Math.floor(Math.min(...ys, 0) / step + 1e-9) * step, Math.ceil(Math.max(...ys, 0) / step - 1e-9) * step || step];
  const y = (value: number) => height - BOTTOM - ((value - low) / (high - low)) * (height - TOP - BOTTOM);
  const last = shown[0].points.filter(([, value]) => Number.isFinite(value)).at(-1);
  const label = `${title}. ${last ? `${shown[0].name} ${number(last[1])} ${unit} at ${xText(last[0])}` : ""}`;
  const key = shown.map((line) => {
    const value = h("b");
    return { line, value, element: h("span", {}, h("i", { class: `stroke ${line.css}` }), line.name, " ", value) };
  });
  const bandValue = h("b");
  const bandKey = band.length && bandName ? [h("span", {}, h("i", { class: "stroke band" }), bandName, " ", bandValue)] : [];
  const when = h("span", { class: "when" }, unit);
  const tell = (at: number | undefined) => {
    when.textContent = at === undefined ? unit : `${xText(at)}, ${unit}`;
    for (const { line, value } of key) value.textContent = at === undefined ? "" : number(line.points.find(([point]) => point === at)?.[1] ?? NaN).replace("–", "");
    const here = band.find(([point]) => point === at);
    bandValue.textContent = here ? `${number(here[1])} to ${number(here[2])}` : "";
  };
  const marked = mark !== undefined && xs.includes(mark) ? mark : undefined;

  const draw = (width: number): SVGElement => {
    const x = (value: number) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (width - LEFT - RIGHT);
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const upright = (css: string, at: number | undefined) => at !== undefined && at >= x0 && at <= x1 && drawing.append(svg("path", { class: css, d: `M${x(at)} ${TOP}V${height - BOTTOM}` }));
    for (let k = Math.round(low / step); k <= Math.round(high / step); k++) {
      drawing.append(svg("path", { class: "grid", d: `M${LEFT} ${y(k * step)}H${width - RIGHT}` }));
      drawing.append(svg("text", { class: "end", x: LEFT - 5, y: y(k * step) + 4 }, number(k * step)));
    }
    for (const { at, text } of xTicks(x0, x1, width - LEFT - RIGHT)) drawing.append(svg("text", { class: "mid", x: Math.max(LEFT + 8, Math.min(width - 18, x(at))), y: height - 6 }, text));
    if (band.length) {
      const edge = [...band.map(([at, , top]) => [at, top]), ...[...band].reverse().map(([at, bottom]) => [at, bottom])];
      drawing.append(svg("path", { class: "band", d: `M${edge.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}Z` }));
    }
    upright("now", now);
    upright("mark", mark);
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
    drawing.addEventListener("pointermove", (event) => {
      const box = drawing.getBoundingClientRect();
      const at = x0 + ((((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
      const nearest = xs.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
      cursor.setAttribute("d", `M${x(nearest)} ${TOP}V${height - BOTTOM}`);
      tell(nearest);
    });
    drawing.addEventListener("pointerleave", () => {
      cursor.removeAttribute("d");
      tell(marked);
    });
    return drawing;
  };
  tell(marked);
  return h("figure", { class: "chart" }, h("figcaption", {}, title), sized(draw), h("div", { class: "key" }, ...key.map(({ element }) => element), ...bandKey, when));
}

/** The hours of a day as an axis. */
export const HOURS_AXIS = {
  xText: (x: number) => hour(Math.floor(x)),
  xTicks: () => [0, 6, 12, 18, 24].map((at) => ({ at, text: hour(at) })),
};

/** Named steps as an axis: some of their names. */
export function namesAxis(names: string[]): Pick<ChartOptions, "xText" | "xTicks"> {
  const room = (pixels: number) => Math.max(2, pixels / Math.max(44, 7 * Math.max(...names.map((name) => name.length))));
  return {
    xText: (x) => names[x] ?? "",
    xTicks: (_, __, pixels) => {
      const every = Math.ceil(names.length / room(pixels));
      return names.map((text, at) => ({ at, text })).filter(({ at }) => at % every === every - 1 || names.length <= room(pixels));
    },
  };
}

/** Times of the city as an axis. */
export function timesAxis(time: LocalTime): Pick<ChartOptions, "xText" | "xTicks"> {
  return { xText: (x) => time.hour(x), xTicks: (x0, x1, pixels) => timeTicks(time, x0, x1, pixels) };
}
