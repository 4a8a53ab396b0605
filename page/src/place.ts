/** The panel about what is selected: an intersection, a road, a street; or the city. */

import { type App, cityFacts } from "./app";
import { chart, type Line } from "./chart";
import { count, h, number, percent } from "./dom";
import type { NodeId } from "./network";
import type { NodeDetails, Trips } from "./service";

export interface PlaceSource {
  /** Shown where nothing is selected. */
  intro: () => Node;
  /** A chart of a node and the sensors its forecast is based on. */
  node: (row: number) => Promise<{ lines: Line[]; band?: [number, number, number][]; now?: number; mainSensors: NodeDetails["main_sensors"]; words?: string[] }>;
  trips: ((road: number) => Promise<Trips>) | null;
  /** Buttons under what can be closed, with its roads. */
  actions: (roads: number[]) => Node[];
}

const LISTED = 6;

export function placePanel(app: App, source: PlaceSource): Node {
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

/** What the map shows of a node or road at the time of the slider. */
function valueNow(app: App, of: "nodes" | "roads", row: number): HTMLElement {
  const shown = h("p", { class: "value" });
  const update = () => {
    const { layer, frame } = app;
    const values = layer[of];
    if (!values) shown.replaceChildren();
    else shown.replaceChildren(h("b", {}, number(values[Math.min(frame, values.length - 1)][row])), ` ${layer.unit}`, h("small", {}, layer.times.length ? `${layer.title}, ${app.time.day(layer.times[frame])}` : layer.title));
  };
  app.onFrame(() => shown.isConnected && update());
  update();
  return shown;
}

function nodePanel(app: App, source: PlaceSource, row: number): Node {
  const { network } = app;
  const streets = network.streetsAt(row);
  const sensor = network.sensor[row] === 1;
  const details = h("div", { class: "loading" }, "Loading…");
  source.node(row).then(
    ({ lines, band, now, mainSensors, words = [] }) => {
      const rows = mainSensors.map(({ node }) => network.node(node)).filter((node) => node !== undefined);
      if (app.selection && "node" in app.selection && app.selection.node === row) app.ring(rows);
      details.className = "";
      details.replaceChildren(
        chart({ title: "History and forecast", unit: network.unit, lines, band, now, xText: (x) => app.time.hour(x) }),
        ...words.map((text) => h("p", {}, text)),
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
    ...(network.onRoads && roads.length ? source.actions(roads) : []),
    details,
    h("details", {}, h("summary", {}, count(roads.length, network.onRoads ? "turn" : "road")), h("ul", { class: "list" }, ...roads.map((road) => h("li", {}, app.roadLink(road))))),
  );
}

function supportText({ distance_m: d, share }: NodeDetails["main_sensors"][number]): string {
  if (share !== undefined) return `passed by ${percent(share)} of its vehicles`;
  return d === null ? "" : d < 1000 ? `${Math.round(d)} m by road` : `${(d / 1000).toFixed(1)} km by road`;
}

function roadPanel(app: App, source: PlaceSource, road: number): Node {
  const { network } = app;
  const back = network.opposite(road);
  const [from, to] = [network.source[road], network.target[road]];
  const box = h("div", {});
  if (source.trips) {
    box.append(h("p", { class: "loading" }, "Looking for the trips that pass…"));
    source.trips(road).then(
      (trips) => {
        box.replaceChildren(...tripsPanel(app, trips));
        if (app.selection && "road" in app.selection && app.selection.road === road)
          app.setSpots([...trips.to.map((end) => ({ ...end, css: "to" })), ...trips.from.map((end) => ({ ...end, css: "from" }))]);
      },
      (error: Error) => box.replaceChildren(h("p", { class: "note" }, error.message)),
    );
  }
  const { layer } = app;
  const lines: Line[] = layer.roads && layer.times.length > 1 ? [
    { name: layer.ahead ? "estimate" : layer.title, css: layer.ahead ? "issued" : "forecast", points: layer.times.slice(0, layer.ahead || undefined).map((time, t) => [time, layer.roads![t][road]]) },
    ...(layer.ahead ? [{ name: "forecast", css: "forecast", points: layer.times.slice(layer.ahead).map((time, t): [number, number] => [time, layer.roads![t + layer.ahead][road]]) }] : []),
  ] : [];
  return h("div", {},
    h("h2", {}, network.roadName(road)),
    h("p", {}, "From ", app.nodeLink(from, network.nodeWord(network.ids[from])), " to ", app.nodeLink(to, network.nodeWord(network.ids[to])), ". ",
      back !== undefined && h("button", { type: "button", class: "link", onclick: () => app.select({ road: back }) }, "The other way")),
    valueNow(app, "roads", road),
    ...source.actions([road]),
    lines.length > 0 && chart({ title: "Flow on this road", unit: layer.unit, lines, now: layer.ahead ? layer.times[layer.ahead] : undefined, xText: (x) => app.time.hour(x) }),
    box,
  );
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

/** Lines of a node's chart from what the service says. */
export function nodeLines(details: NodeDetails): { lines: Line[]; band: [number, number, number][] } {
  const points = (rows: { time: string; value: number | null }[]) => rows.map(({ time, value }): [number, number] => [Date.parse(time), value ?? NaN]);
  const band = details.forecast
    .filter(({ lower, upper }) => typeof lower === "number" && typeof upper === "number")
    .map(({ time, lower, upper }): [number, number, number] => [Date.parse(time), lower!, upper!]);
  return {
    lines: [
      { name: "forecast", css: "forecast", points: points(details.forecast) },
      { name: "had been forecast", css: "issued", points: points(details.issued) },
      { name: "observed", css: "observed", points: points(details.history) },
    ],
    band,
  };
}

export function introPanel(app: App, made: number, notices: string[]): Node {
  return h("div", {},
    h("h2", {}, "The next hour, everywhere"),
    h("p", {}, cityFacts(app.network)),
    h("p", {}, `Forecast made at ${app.time.day(made)}.`),
    ...notices.map((text) => h("p", { class: "note" }, text)),
    h("p", {}, app.network.onRoads ? "Click a road, or search for one. Move the slider to see another time." : "Click an intersection or a road, or search for one. Move the slider to see another time."),
    h("p", { class: "note" }, "Keys: / searches, space plays, arrows move the map or the slider, Esc clears the selection."),
  );
}
