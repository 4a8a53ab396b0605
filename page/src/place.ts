/** The panel about what is selected: an intersection, a road, a street; or the city. */

import { type App, at, cityFacts, textOf } from "./app";
import { chart, type ChartOptions, HOURS_AXIS, type Line, timesAxis } from "./chart";
import { count, h, number, percent } from "./dom";
import type { Frames } from "./frames";
import { ends, type Values } from "./layers";
import type { Found } from "./mapview";
import { type NodeId, type Unit, unitText } from "./network";
import type { NodeDetails, RoadName, Trips } from "./service";

/** Values of a place over the frames of a layer. */
export interface FramesChart {
  title: string;
  unit: Unit;
  frames: Frames;
  lines: { name: string; css: string; values: ArrayLike<number> }[];
  compare?: boolean; // say by how much the second line exceeds the first
  band?: { lower: ArrayLike<number>; upper: ArrayLike<number>; level: number };
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
  /** The trips that pass a road, or a node that is a road; null where they are not known. */
  trips: (what: Found) => Promise<Trips> | null;
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
    const shown = kind === undefined ? [h("b", {}, number(value)), ` ${unitText(values.unit)}`] : [h("span", { class: "kind" }, kind)];
    const sure = ends(values, frame, row);
    const between = sure ? [h("small", { class: "sure" }, `${values.band!.level} % interval: ${number(sure[0])} to ${number(sure[1])}`)] : [];
    return [...shown, ...between, h("small", {}, when ? `${layer.title}, ${when}` : layer.title)];
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
function framesChart(app: App, { title, unit, frames, lines, compare, band }: FramesChart): HTMLElement {
  return following(app, () => {
    const shown = app.layer.frames;
    const kind = frames.perHour && shown.perHour ? shown.kindOf(app.frame) : 0;
    const points = (values: ArrayLike<number>) => Array.from({ length: frames.positions }, (_, i): [number, number] => [frames.x(i), values[frames.at(kind, i)]]);
    const name = frames.perHour ? `${title}, ${frames.kinds[kind]}` : title;
    const drawn = lines.map(({ name, css, values }) => ({ name, css, points: points(values) }));
    const sure = band ? points(band.lower).map(([x, low], i): [number, number, number] => [x, low, band.upper[frames.at(kind, i)]]).filter(([, low, high]) => Number.isFinite(low) && Number.isFinite(high)) : [];
    const bandName = band ? `${band.level} % interval` : "";
    const made = chart({ title: name, unit: unitText(unit), lines: drawn, band: sure, bandName, mark: markOf(app, frames), ...axis(app, frames) });
    return compare && lines.length === 2 ? [made, difference(lines, Math.min(app.frame, frames.count - 1))] : [made];
  });
}

function difference([first, second]: FramesChart["lines"], frame: number): Node {
  const [a, b] = [first.values[frame], second.values[frame]];
  const share = a > 0 ? `, ${percent(Math.abs(b / a - 1))} ${b >= a ? "more" : "less"}` : "";
  return h("p", {}, `${number(a)} ${first.name}, ${number(b)} ${second.name}${share}.`);
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
    following(app, () => spreadWords(app.layer.nodes, app.frame, row)),
    ...(network.onRoads && roads.length ? source.actions(roads) : []),
    details,
    network.onRoads && frameChart(app, app.layer.nodes, row),
    network.onRoads && tripsBox(app, source, { node: row }),
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
    following(app, () => spreadWords(app.layer.roads, app.frame, road)),
    stillValues(app, "roads", road),
    ...source.actions([road]),
    frameChart(app, app.layer.roads, road),
    tripsBox(app, source, { road }),
  );
}

/** How far an estimate depends on which trips were sampled. */
function spreadWords(values: Values | null, frame: number, row: number): Node[] {
  if (!values?.spread) return [];
  const [value, factor] = [at(values, frame)[row], Math.exp(values.spread[row])];
  if (!(value > 0)) return [];
  return [h("p", { class: "note" }, `Route sets differ: ${number(value / factor)} to ${number(value * factor)} (one standard deviation).`)];
}

/** The flow on a road over the frames of the layer: of hours, a line for each kind of day. */
function frameChart(app: App, values: Values | null, row: number): HTMLElement | null {
  const { frames, title } = app.layer;
  if (!values || frames.count < 2) return null;
  const points = (first: number, end: number) => Array.from({ length: end - first }, (_, i): [number, number] => [frames.x(first + i), values.rows[first + i][row]]);
  const { ahead } = frames;
  const lines: Line[] = frames.perHour
    ? frames.kinds.map((name, k) => ({ name, css: k ? `other o${k}` : "forecast", points: points(frames.at(k, 0), frames.at(k + 1, 0)) }))
    : [
        { name: ahead ? "estimate" : title, css: ahead ? "issued" : "forecast", points: points(0, ahead || frames.count) },
        ...(ahead ? [{ name: "forecast", css: "forecast", points: points(ahead, frames.count) }] : []),
      ];
  const now = ahead ? frames.times[ahead] : undefined;
  const options = { title: "Flow on this road", unit: unitText(values.unit), lines, now, ...axis(app, frames) };
  return following(app, () => [chart({ ...options, mark: markOf(app, frames) })]);
}

/** The trips that pass a road, in words and as spots on the map. */
function tripsBox(app: App, source: PlaceSource, what: Found): HTMLElement | null {
  const asked = source.trips(what);
  if (!asked) return null;
  const box = h("div", {}, h("p", { class: "loading" }, "Looking for the trips that pass…"));
  const { selection } = app;
  asked.then(
    (trips) => {
      if (app.selection !== selection) return;
      box.replaceChildren(...tripsPanel(app, trips));
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
  const { network } = app;
  const place = (id: NodeId) => {
    const row = network.node(id);
    const [street] = row === undefined ? [] : network.streetsAt(row);
    return street ? `${street}, ${id}` : `${id}`;
  };
  const ends = (title: string, css: string, of: Trips["from"]) => [
    h("h3", {}, h("i", { class: `spot ${css}` }), title),
    h("ul", { class: "list" }, ...of.slice(0, LISTED).map((end) => h("li", {}, app.nodeLink(network.node(end.node), place(end.node)), h("span", {}, percent(end.share))))),
  ];
  const road = ({ source, target }: RoadName) => {
    const row = network.road(source, target);
    return row === undefined ? h("span", {}, `${source} → ${target}`) : app.roadLink(row);
  };
  const movements = trips.movements.map(({ origin, destination, vehicles_per_day: daily }) =>
    h("tr", {}, h("td", { class: "left" }, road(origin)), h("td", { class: "left" }, road(destination)), h("td", {}, number(daily))));
  return [
    h("h3", {}, "Trips through here"),
    h("p", {}, `By the estimated trips, ${number(trips.vehicles_per_hour)} vehicles an hour pass, and ${number(trips.vehicles_per_day)} a day, averaged over the week.`),
    ...(app.layerTitle("through") && app.layer.key !== "through" ? [h("p", {}, h("button", { type: "button", onclick: () => app.showLayer("through", { keep: true }) }, "Show their routes on the map"))] : []),
    h("div", { class: "pair" }, h("div", {}, ...ends("From", "from", trips.from)), h("div", {}, ...ends("To", "to", trips.to))),
    ...(movements.length ? [
      h("h3", {}, `The largest of ${trips.movements_in_all.toLocaleString("en-GB")} movements, vehicles a day`),
      h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "The largest movements" }, h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "left" }, "from"), h("th", { scope: "col", class: "left" }, "to"), h("th", { scope: "col" }, "a day"))),
        h("tbody", {}, ...movements))),
    ] : [h("p", { class: "note" }, "No estimated trip passes.")]),
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
    bandName: details.level ? `${details.level} % interval` : "",
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
