/** The same page without a service: a report of one run, with all of its data in the file (`frigate/pages/run_page.py`). */

import workerCode from "maplibre-gl/dist/maplibre-gl-worker.mjs?raw";
import { App, cityFacts } from "./app";
import { chart } from "./chart";
import { h } from "./dom";
import { beforeAndAfter, type Layer, mean } from "./layers";
import { Network, type NetworkMeta, type NodeId } from "./network";
import { placePanel } from "./place";
import { flowScale, Scale } from "./scale";
import type { Change } from "./service";
import { largestChanges } from "./whatif";
import { Container } from "./wire";

interface Group {
  names: string[];
  lines: { name: string; kind: string; values: (number | null)[] }[];
}

interface Trust {
  lead: string;
  notes: string[];
  tiles: { title: string; value: string; detail: string }[];
  verdict: string;
  scores: string;
  columns: string[];
  rows: { kind: string; cells: string[] }[];
  footnote: string;
  unit: string;
  by_step: Group;
  by_hops: Group | null;
  picked: { node: NodeId; why: string }[];
  baseline: string | null;
  glossary: [string, string][];
}

interface DayMeta {
  times: string[];
  words: string[];
  closed: number[][]; // sets of roads; `closed_set` says which holds at each time
}

interface ClosureMeta {
  title: string;
  words: string[];
  notices: string[];
  roads: number[];
  times: string[];
  note: string;
  unit: string;
  largest: Change[];
}

async function read<Meta>(id: string): Promise<Container<Meta> | null> {
  const text = document.getElementById(id)?.textContent?.trim();
  if (!text) return null;
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Container(await new Response(plain).arrayBuffer());
}

async function start(): Promise<void> {
  const [roads, day, closure] = await Promise.all([read<NetworkMeta>("network"), read<DayMeta>("day"), read<ClosureMeta>("closure")]);
  const trust = JSON.parse(document.getElementById("trust")?.textContent ?? "null") as Trust | null;
  if (!roads || !day || !trust) {
    document.body.append(h("p", { class: "wait" }, "This file is the empty form of a report. Write one with: frigate report RUN -o report.html"));
    return;
  }
  const network = new Network(roads);
  const layers = [...dayLayers(network, day, trust), ...(closure ? closureLayers(network, day, closure) : [])];
  const times = layers[0].times;
  const supports = day.array<Int32Array>("main_sensors");
  const [shares, metres] = ["main_sensors_share", "main_sensors_m"].map((name) => (day.has(name) ? day.array(name) : null));
  const each = supports.length / Math.max(1, network.nodes);

  const app = new App(network, {
    workerUrl: URL.createObjectURL(new Blob([workerCode], { type: "text/javascript" })),
    tabs: (app) => [
      { key: "trust", title: "How accurate is it?", render: () => trustPanel(trust) },
      { key: "place", title: "Place", render: () => placePanel(app, {
        intro: () => intro(app, trust, day.meta),
        node: async (row) => {
          const line = (name: string, css: string, rows: Float32Array[]) => ({ name, css, points: rows.map((values, t): [number, number] => [times[t], values[row]]) });
          const mainSensors = Array.from({ length: each }, (_, k) => row * each + k)
            .filter((i) => supports[i] >= 0 && supports[i] !== row)
            .map((i) => ({ node: network.ids[supports[i]], distance_m: metres ? metres[i] : null, share: shares?.[i] }));
          return {
            lines: [
              line("forecast", "forecast", day.rows("forecast")),
              ...(trust.baseline && day.has("baseline") ? [line(trust.baseline, "other", day.rows("baseline"))] : []),
              line("observed", "observed", day.rows("observed")),
            ],
            mainSensors,
          };
        },
        trips: null,
        actions: () => [],
      }) },
      ...(closure ? [{ key: "closure", title: "Closure", render: () => closurePanel(app, closure, layers) }] : []),
    ],
  });
  app.setTraffic(mean(day.rows(network.onRoads ? "forecast" : "road_forecast")));
  app.setLayers(layers, undefined, busiest(layers[0], network.meta.quantity));
  const closedSet = day.array<Uint32Array>("closed_set");
  let shown = "";
  const showClosed = () => {
    const { layer, frame } = app;
    const then = layer.times.length ? day.meta.closed[closedSet[frame]] : [];
    const planned = closure && /^closure-.*(after|change)|simulated/.test(layer.key) ? closure.meta.roads : [];
    const key = `${then}|${planned}`;
    if (key !== shown) app.setClosed(then, planned);
    shown = key;
  };
  app.onFrame(showClosed);
  showClosed();
}

function dayLayers(network: Network, day: Container<DayMeta>, trust: Trust): Layer[] {
  const times = day.meta.times.map((time) => Date.parse(time));
  const [forecast, observed, roads] = [day.rows("forecast"), day.rows("observed"), day.rows("road_forecast")];
  const skewed = network.meta.quantity === "count";
  const flow = { unit: network.unit, times, ahead: 0, note: "", scale: flowScale([...roads, ...forecast, ...observed], skewed) };
  const still = { times: [], ahead: 0, roads: null, note: "Mean of the test period" };
  const error = [day.array("error")];
  const layers: Layer[] = [
    { key: "forecast", title: "Forecast", roads, nodes: forecast, ...flow },
    { key: "truth", title: "Observed", roads: null, nodes: observed, ...flow },
    { key: "error", title: "Error relative to traffic", unit: "% of the traffic there", scale: new Scale([5, 10, 20, 35, 50, 100], "error"), nodes: error, ...still },
  ];
  if (day.has("skill")) {
    const skill = [day.array("skill")];
    const scale = new Scale([-50, -20, -5, 5, 20, 50], "change", ["half the error or less", "20 to 50 % less", "5 to 20 % less", "about the same", "5 to 20 % more", "20 to 50 % more", "over 50 % more"]);
    layers.push({ key: "skill", title: `Skill against ${trust.baseline}`, unit: `error, beside ${trust.baseline}`, scale, nodes: skill, ...still });
  }
  return layers;
}

/** Before is the day's own forecast, unless the closure brings another. */
function closureLayers(network: Network, day: Container<DayMeta>, closure: Container<ClosureMeta>): Layer[] {
  const { meta } = closure;
  const times = meta.times.map((time) => Date.parse(time));
  const own = closure.has("before");
  const parts = {
    before: own ? closure.rows("before") : day.rows("forecast"), after: closure.rows("after"),
    roadBefore: own ? closure.rows("road_before") : day.rows("road_forecast"), roadAfter: closure.rows("road_after"),
  };
  const layers = beforeAndAfter(parts, { unit: meta.unit, times, skewed: network.meta.quantity === "count", prefix: meta.title });
  if (closure.has("road_simulated")) {
    const simulated = closure.rows("road_simulated");
    const change = closure.rows("road_simulated_change");
    const shared = { unit: meta.unit, times, ahead: 0, nodes: null };
    layers.push({ key: "simulated", title: `${meta.title}: after, simulated`, scale: layers[1].scale, roads: simulated, ...shared, note: "" });
    layers.push({ key: "simulated-change", title: `${meta.title}: change, simulated`, scale: layers[0].scale, roads: change, ...shared, note: "" });
  }
  return layers.map((layer) => ({ ...layer, key: `closure-${layer.key}`, note: meta.note }));
}

/** The frame with the most traffic: of speeds, that with the lowest. */
function busiest(layer: Layer, quantity: string): number {
  const sign = quantity === "speed" ? -1 : 1;
  const totals = layer.nodes!.map((row) => row.reduce((sum, value) => sum + (value === value ? sign * value : 0), 0));
  return totals.indexOf(Math.max(...totals));
}

function intro(app: App, trust: Trust, day: DayMeta): Node {
  return h("div", {},
    h("h2", {}, "A day, everywhere"),
    h("p", {}, cityFacts(app.network)),
    ...day.words.map((text) => h("p", {}, text)),
    h("p", {}, app.network.onRoads ? "Click a road, or search for one." : "Click an intersection or a road, or search for one."),
    trust.picked.length > 0 && h("h3", {}, `Some ${app.network.onRoads ? "roads" : "intersections"}, not picked for their accuracy`),
    h("ul", { class: "list" }, ...trust.picked.map(({ node, why }) => h("li", {}, app.nodeLink(app.network.node(node), app.network.nodeName(node)), h("span", {}, why)))),
  );
}

function trustPanel(trust: Trust): Node {
  const css = (kind: string, k: number) => (kind === "model" ? "forecast" : kind === "yardstick" ? "observed" : `other o${k}`);
  const grouped = (title: string, group: Group) => chart({
    title, unit: trust.unit, height: 190,
    lines: group.lines.map(({ name, kind, values }, k) => ({ name, css: css(kind, k), points: values.map((value, i): [number, number] => [i, value ?? NaN]) })),
    xText: (x) => group.names[x] ?? "", xTicks: group.names.map((_, i) => i).filter((i) => group.names.length < 8 || i % 3 === 2),
  });
  return h("div", {},
    h("h2", {}, "How accurate is it?"),
    h("p", {}, trust.lead),
    h("div", { class: "tiles" }, ...trust.tiles.map(({ title, value, detail }) => h("div", {}, h("span", {}, title), h("b", {}, value), h("span", {}, detail)))),
    h("p", { class: "verdict" }, trust.verdict),
    ...trust.notes.map((text) => h("p", { class: "note" }, text)),
    h("p", {}, trust.scores),
    h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Scores" }, h("table", {},
      h("thead", {}, h("tr", {}, ...trust.columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...trust.rows.map(({ kind, cells }) => h("tr", { class: kind }, h("th", { scope: "row" }, cells[0]), ...cells.slice(1).map(cell)))),
    )),
    h("p", { class: "note" }, trust.footnote),
    grouped("Error by time ahead", trust.by_step),
    trust.by_hops && grouped("Error by number of roads to the nearest sensor", trust.by_hops),
    h("details", {}, h("summary", {}, "Glossary"), h("dl", {}, ...trust.glossary.flatMap(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]))),
  );
}

function cell(text: string): Node {
  const [value, rest] = text.split(" [");
  return h("td", {}, value, rest ? h("small", {}, `[${rest}`) : null);
}

function closurePanel(app: App, { meta }: Container<ClosureMeta>, layers: Layer[]): Node {
  const views = layers.filter(({ key }) => key.startsWith("closure")).map(({ key, title }) => h("button", { type: "button", onclick: () => app.showLayer(key) }, title.slice(meta.title.length + 2)));
  return h("div", {},
    h("h2", {}, `${meta.title} closes`),
    ...meta.words.map((text) => h("p", {}, text)),
    ...meta.notices.map((text) => h("p", { class: "note" }, text)),
    h("h3", {}, "On the map"),
    h("div", { class: "confirm" }, ...views),
    largestChanges(app, meta.largest, meta.unit),
  );
}

void start();
