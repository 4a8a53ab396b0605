/** The panel about what is selected: an intersection, a road, a street; or the city. */

import { type App, at, cityFacts, textOf } from "./app";
import { chart, type ChartOptions, HOURS_AXIS, type Line, timesAxis } from "./chart";
import { count, h, number, percent } from "./dom";
import type { Frames } from "./frames";
import type { Layer } from "./layers";
import { type NodeId, type Unit, unitText } from "./network";
import type { NodeDetails, Trips } from "./service";

/** Values of a place over the frames of a layer. */
export interface FramesChart {
  title: string;
  unit: Unit;
  frames: Frames;
  lines: { name: string; css: string; values: ArrayLike<number> }[];
}

export interface NodeFacts {
  chart: FramesChart | (() => HTMLElement) | null;
  mainSensors: NodeDetails["main_sensors"];
  words?: string[];
}

export interface PlaceSource {
  /** Shown where nothing is selected. */
  intro: () => HTMLElement;
  node: (row: number) => Promise<NodeFacts>;
  /** The trips that pass a road; null where they are not known. */
  trips: ((road: number) => Promise<Trips> | null) | null;
  /** Buttons under what can be closed, with its roads. */
  actions: (roads: number[]) => Node[];
}

const LISTED = 6;

export function placePanel(app: App, source: PlaceSource): HTMLElement {
  const { selection, network } = app;
  if (!selection) return source.intro();
  if ("node" in selection) return nodePanel(app, source, selection.node);
  if ("road" in selection) return roadPanel(app, source, selection.road);
  const roads = network.roadsOf(selection.street);
  return h("div", {},
    h("h2", {}, network.meta.street_names[selection.street]),
    h("p", {}, `${count(roads.length, "road")} between intersections.`),
    h("ul", { class: "list" }, ...roads.slice(0, 60).map((road) => h("li", {}, app.roadLink(road)))),
  );
}

/** Redraws what depends on the frame that the map shows. */
function following(app: App, draw: () => (Node | string)[], element: HTMLElement = h("div", {})): HTMLElement {
  const update = () => element.replaceChildren(...draw());
  app.onFrame(element, update);
  update();
  return element;
}

/** What the map shows of a node or road at the time of the slider. */
function valueNow(app: App, of: "nodes" | "roads", row: number): HTMLElement {
  const draw = () => {
    const { layer, frame } = app;
    const values = layer[of];
    if (!values) return [];
    const when = layer.frames.text(frame, app.time);
    const value = at(values, frame)[row];
    const kind = values.scale.kindOf(value);
    const shown = kind === undefined ? [h("b", {}, number(value)), ` ${unitText(values.unit)}`] : [h("b", {}, kind)];
    return [...shown, h("small", {}, when ? `${layer.title}, ${when}` : layer.title)];
  };
  return following(app, draw, h("p", { class: "value" }));
}

/** What the layers with one value for each place say of this one. */
function stillValues(app: App, of: "nodes" | "roads", row: number): HTMLElement | null {
  const known = app.stillLayers.flatMap((layer) => {
    const values = layer[of];
    return values && Number.isFinite(values.rows[0][row]) ? [[layer.title, textOf(values, 0, row)]] : [];
  });
  if (!known.length) return null;
  return h("ul", { class: "list" }, ...known.map(([title, text]) => h("li", {}, title, h("span", {}, text))));
}

/** A chart over the frames of a layer. Of hours, it is that of the kind of day that is shown. */
function framesChart(app: App, { title, unit, frames, lines }: FramesChart): HTMLElement {
  return following(app, () => {
    const shown = app.layer.frames;
    const kind = frames.perHour && shown.perHour ? shown.kindOf(app.frame) : 0;
    const points = (values: ArrayLike<number>) => Array.from({ length: frames.positions }, (_, i): [number, number] => [frames.x(i), values[frames.at(kind, i)]]);
    const name = frames.perHour ? `${title}, ${frames.kinds[kind]}` : title;
    const drawn = lines.map(({ name, css, values }) => ({ name, css, points: points(values) }));
    return [chart({ title: name, unit: unitText(unit), lines: drawn, mark: markOf(app, frames), ...axis(app, frames) })];
  });
}

/** Where the time of the slider lies on the axis of some frames. */
function markOf(app: App, frames: Frames): number | undefined {
  const shown = app.layer.frames;
  if (shown.perHour !== frames.perHour || shown.count < 2) return undefined;
  return shown.x(app.frame);
}

function axis(app: App, frames: Frames): Pick<ChartOptions, "xText" | "xTicks"> {
  return frames.perHour ? HOURS_AXIS : timesAxis(app.time);
}

function nodePanel(app: App, source: PlaceSource, row: number): HTMLElement {
  const { network } = app;
  const streets = network.streetsAt(row);
  const sensor = network.sensor[row] === 1;
  const details = h("div", { class: "loading" }, "Loading…");
  source.node(row).then(
    ({ chart: history, mainSensors, words = [] }) => {
      const rows = mainSensors.map(({ node }) => network.node(node)).filter((node) => node !== undefined);
      if (app.selection && "node" in app.selection && app.selection.node === row) app.ring(rows);
      details.className = "";
      details.replaceChildren(
        ...words.map((text) => h("p", {}, text)),
        ...(history ? [typeof history === "function" ? following(app, () => [history()]) : framesChart(app, history)] : []),
        ...(mainSensors.length && !sensor ? [
          h("h3", {}, "Based on these sensors"),
          h("ul", { class: "list" }, ...mainSensors.map((support) => h("li", {}, app.nodeLink(network.node(support.node), network.nodeName(support.node)), h("span", {}, supportText(support))))),
        ] : []),
      );
    },
    (error: Error) => details.replaceChildren(h("p", { class: "error" }, error.message)),
  );
  const roads = network.roadsAt(row);
  return h("div", {},
    h("h2", {}, network.nodeName(network.ids[row])),
    h("p", {}, h("span", { class: sensor ? "badge sensor" : "badge" }, sensor ? "has a sensor" : "no sensor: inferred"), " ", streets.join(" / ")),
    network.meta.detectors?.[row] && h("p", { class: "note" }, `Detector ${network.meta.detectors[row]}`),
    valueNow(app, "nodes", row),
    stillValues(app, "nodes", row),
    ...(network.onRoads && roads.length ? source.actions(roads) : []),
    details,
    h("details", {}, h("summary", {}, count(roads.length, network.onRoads ? "turn" : "road")), h("ul", { class: "list" }, ...roads.map((road) => h("li", {}, app.roadLink(road))))),
  );
}

function supportText({ distance_m: d, share }: NodeDetails["main_sensors"][number]): string {
  if (share !== undefined) return `passed by ${percent(share)} of its vehicles`;
  return d === null ? "" : d < 1000 ? `${Math.round(d)} m by road` : `${(d / 1000).toFixed(1)} km by road`;
}

function roadPanel(app: App, source: PlaceSource, road: number): HTMLElement {
  const { network } = app;
  const back = network.opposite(road);
  const [from, to] = [network.source[road], network.target[road]];
  return h("div", {},
    h("h2", {}, network.roadName(road)),
    h("p", {}, "From ", app.nodeLink(from, network.nodeWord(network.ids[from])), " to ", app.nodeLink(to, network.nodeWord(network.ids[to])), ". ",
      back !== undefined && h("button", { type: "button", class: "link", onclick: () => app.select({ road: back }) }, "The other way")),
    valueNow(app, "roads", road),
    following(app, () => spreadWords(app, road)),
    stillValues(app, "roads", road),
    ...source.actions([road]),
    roadChart(app, app.layer, road),
    tripsBox(app, source, road),
  );
}

/** How far an estimate depends on which trips were sampled. */
function spreadWords({ layer, frame }: App, road: number): Node[] {
  const { roads, spread } = layer;
  if (!roads || !spread) return [];
  const [value, factor] = [at(roads, frame)[road], Math.exp(spread[road])];
  if (!(value > 0)) return [];
  return [h("p", { class: "note" }, `Route sets differ: ${number(value / factor)} to ${number(value * factor)} (one standard deviation).`)];
}

/** The flow on a road over the frames of a layer: of hours, a line for each kind of day. */
function roadChart(app: App, { title, roads, frames }: Layer, road: number): HTMLElement | null {
  if (!roads || frames.count < 2) return null;
  const value = (frame: number) => roads.rows[frame][road];
  const points = (first: number, end: number) => Array.from({ length: end - first }, (_, i): [number, number] => [frames.x(first + i), value(first + i)]);
  const { ahead } = frames;
  const lines: Line[] = frames.perHour
    ? frames.kinds.map((name, k) => ({ name, css: k ? `other o${k}` : "forecast", points: points(frames.at(k, 0), frames.at(k + 1, 0)) }))
    : [
        { name: ahead ? "estimate" : title, css: ahead ? "issued" : "forecast", points: points(0, ahead || frames.count) },
        ...(ahead ? [{ name: "forecast", css: "forecast", points: points(ahead, frames.count) }] : []),
      ];
  const now = ahead ? frames.times[ahead] : undefined;
  const options = { title: "Flow on this road", unit: unitText(roads.unit), lines, now, ...axis(app, frames) };
  return following(app, () => [chart({ ...options, mark: markOf(app, frames) })]);
}

/** The trips that pass a road, in words and as spots on the map. */
function tripsBox(app: App, source: PlaceSource, road: number): HTMLElement | null {
  const asked = source.trips?.(road);
  if (!asked) return null;
  const box = h("div", {}, h("p", { class: "loading" }, "Looking for the trips that pass…"));
  asked.then(
    (trips) => {
      box.replaceChildren(...tripsPanel(app, trips));
      if (!app.selection || !("road" in app.selection) || app.selection.road !== road) return;
      const spots = (ends: Trips["from"], begins: boolean) => ends.flatMap(({ node: id, share }) => {
        const node = app.network.node(id);
        return node === undefined ? [] : [{ node, share, begins }];
      });
      app.setSpots([...spots(trips.to, false), ...spots(trips.from, true)]);
    },
    (error: Error) => box.replaceChildren(h("p", { class: "note" }, error.message)),
  );
  return box;
}

function tripsPanel(app: App, trips: Trips): Node[] {
  const place = (id: NodeId) => {
    const row = app.network.node(id);
    const [street] = row === undefined ? [] : app.network.streetsAt(row);
    return street ? `${street}, ${id}` : `${id}`;
  };
  const list = (title: string, css: string, ends: Trips["from"]) => [
    h("h3", {}, h("i", { class: `spot ${css}` }), title),
    h("ul", { class: "list" }, ...ends.slice(0, LISTED).map((end) => h("li", {}, app.nodeLink(app.network.node(end.node), place(end.node)), h("span", {}, percent(end.share))))),
  ];
  return [
    h("h3", {}, "Trips through this road"),
    h("p", {}, `${number(trips.vehicles_per_hour)} vehicles per hour pass, by the estimated trips.`),
    h("div", { class: "pair" }, h("div", {}, ...list("From", "from", trips.from)), h("div", {}, ...list("To", "to", trips.to))),
  ];
}

/** The chart of a node from what the service says: readings, earlier forecasts, and the forecast with its band. */
export function historyChart(app: App, details: NodeDetails, issued: number): HTMLElement {
  const points = (rows: { time: string; value: number | null }[]) => rows.map(({ time, value }): [number, number] => [Date.parse(time), value ?? NaN]);
  const band = details.forecast
    .filter(({ lower, upper }) => typeof lower === "number" && typeof upper === "number")
    .map(({ time, lower, upper }): [number, number, number] => [Date.parse(time), lower!, upper!]);
  return chart({
    title: "History and forecast",
    unit: unitText(app.network.unit),
    lines: [
      { name: "forecast", css: "forecast", points: points(details.forecast) },
      { name: "had been forecast", css: "issued", points: points(details.issued) },
      { name: "observed", css: "observed", points: points(details.history) },
    ],
    band,
    now: issued,
    mark: markOf(app, app.layer.frames),
    ...timesAxis(app.time),
  });
}

export function introPanel(app: App, made: number, notices: string[]): HTMLElement {
  return h("div", {},
    h("h2", {}, "The next hour, everywhere"),
    h("p", {}, cityFacts(app.network)),
    h("p", {}, `Forecast made at ${app.time.day(made)}.`),
    ...notices.map((text) => h("p", { class: "note" }, text)),
    h("p", {}, app.network.onRoads ? "Click a road, or search for one. Move the slider to see another time." : "Click an intersection or a road, or search for one. Move the slider to see another time."),
    h("p", { class: "note" }, "Keys: / searches, space plays, arrows move the map or the slider, Esc clears the selection."),
  );
}
