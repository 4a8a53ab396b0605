/** What the map can show: values of roads and nodes over some frames, with their classes. */

import { Frames } from "./frames";
import { type Network, type NodeId, type Unit } from "./network";
import { changeScale, type Colours, flowScale, Scale } from "./scale";
import type { Container } from "./wire";

export interface Values {
  rows: Float32Array[]; // of each frame
  unit: Unit;
  scale: Scale;
  spread?: Float32Array; // standard deviation of the logarithm of the values
  band?: Band;
}

/** Intervals of the values of the last frames. */
export interface Band {
  lower: Float32Array[];
  upper: Float32Array[];
  level: number; // percent
}

export interface Layer {
  key: string;
  title: string;
  frames: Frames;
  roads: Values | null;
  nodes: Values | null;
  crossed: { nodes: number[]; roads: number[]; text: string };
  closed: (frame: number) => number[]; // roads; the same array where it is the same roads
  planned: number[]; // roads that the layer takes as closed
}

export interface Closure {
  id: NodeId;
  source: NodeId;
  target: NodeId;
  begin?: string;
  end?: string | null;
  state?: "planned" | "active" | "ended";
}

export interface ForecastMeta {
  issued_at: string;
  past_times: string[];
  times: string[];
  version: string;
  closures: Closure[];
  stale: boolean;
  notices: string[];
  level: number | null; // of the intervals
}

const NONE: number[] = [];

/** A layer with nothing beside its values. */
export function plainLayer(parts: Pick<Layer, "key" | "title" | "frames" | "roads" | "nodes">): Layer {
  return { ...parts, crossed: { nodes: [], roads: [], text: "" }, closed: () => NONE, planned: [] };
}

export class Forecast {
  readonly meta: ForecastMeta;
  readonly issued: number;
  readonly layers: Layer[]; // the values, and how wide their intervals are
  readonly traffic: Float32Array; // mean forecast of each line

  constructor(container: Container<ForecastMeta>, network: Network) {
    this.meta = container.meta;
    this.issued = Date.parse(this.meta.issued_at);
    const roads = container.rows("road_forecast");
    const nodes = container.rows("forecast");
    this.traffic = mean(network.onRoads ? nodes : roads);
    const band = this.meta.level !== null && container.has("lower") ? { lower: container.rows("lower"), upper: container.rows("upper"), level: this.meta.level } : undefined;
    const about = { unit: network.unit, scale: flowScale([...roads, ...nodes], network.counts) };
    const times = [...this.meta.past_times, ...this.meta.times].map((time) => Date.parse(time));
    const forecast = plainLayer({
      key: "forecast",
      title: "Forecast",
      frames: new Frames(times, [], "", this.meta.past_times.length),
      roads: { rows: [...container.rows("road_past"), ...roads], ...about },
      nodes: { rows: [...container.rows("past"), ...nodes], ...about, band },
    });
    this.layers = [forecast, ...(band ? [widthLayer(band, this.meta.times.map((time) => Date.parse(time)), network)] : [])];
  }
}

/** How wide intervals are. */
function widthLayer(band: Band, times: number[], network: Network): Layer {
  const rows = minus(band.upper, band.lower);
  return plainLayer({
    key: "width",
    title: `Width of the ${band.level} % interval`,
    frames: new Frames(times),
    roads: null,
    nodes: { rows, unit: network.unit, scale: flowScale(rows, network.counts, "error") },
  });
}

/** The interval of a value: its two ends; undefined where none is known. */
export function ends({ rows, band }: Values, frame: number, row: number): [number, number] | undefined {
  const at = band ? Math.min(frame, rows.length - 1) - (rows.length - band.lower.length) : -1;
  if (!band || at < 0 || !Number.isFinite(band.upper[at][row])) return undefined;
  return [band.lower[at][row], band.upper[at][row]];
}

/** The routes of the trips through a road, at this hour. */
export function throughLayer(container: Container<unknown>, name: string, network: Network): Layer {
  const [roads, nodes] = [container.array("road_flow"), container.array("node_flow")];
  const about = { unit: { text: network.meta.unit || "vehicles", per_s: 3600 }, scale: flowScale([network.onRoads ? nodes : roads], true) };
  return plainLayer({
    key: "through",
    title: `Trips through ${name}`,
    frames: new Frames([], [], "At this hour, usually"),
    roads: { rows: [roads], ...about },
    nodes: network.onRoads ? { rows: [nodes], ...about } : null,
  });
}

/** The change, and the same values after and before. */
export function beforeAndAfter(
  parts: { before: Float32Array[]; after: Float32Array[]; roadBefore: Float32Array[]; roadAfter: Float32Array[]; bandBefore?: Band; bandAfter?: Band },
  about: { unit: Unit; frames: Frames; counts: boolean; planned: number[] },
): Layer[] {
  const { unit, frames, planned } = about;
  const [roads, nodes] = [minus(parts.roadAfter, parts.roadBefore), minus(parts.after, parts.before)];
  const flow = flowScale([...parts.roadBefore, ...parts.before], about.counts);
  const change = changeScale(roads);
  const layer = (key: string, scale: Scale, road: Float32Array[], node: Float32Array[], closes: boolean, band?: Band): Layer => ({
    ...plainLayer({ key, title: `What if: ${key}`, frames, roads: { rows: road, unit, scale }, nodes: { rows: node, unit, scale, band } }),
    planned: closes ? planned : [],
  });
  return [
    layer("change", change, roads, nodes, true),
    layer("after", flow, parts.roadAfter, parts.after, true, parts.bandAfter),
    layer("before", flow, parts.roadBefore, parts.before, false, parts.bandBefore),
  ];
}

function minus(after: Float32Array[], before: Float32Array[]): Float32Array[] {
  return after.map((row, f) => row.map((value, i) => value - before[f][i]));
}

export function mean(rows: Float32Array[]): Float32Array {
  const total = new Float32Array(rows[0]?.length ?? 0);
  for (const row of rows) for (let i = 0; i < row.length; i++) total[i] += row[i] / rows.length;
  return total;
}

// The layers of a file: `frigate/pages/layers.py` writes them.

interface ValuesMeta {
  of: string;
  minus: string | null;
  at: string | null;
  spread: string | null;
  band: { lower: string; upper: string; level: number } | null;
  unit: Unit;
  palette: Colours;
  edges: number[] | null;
  texts: string[] | null;
  group: string;
}

export interface LayerMeta {
  key: string;
  title: string;
  roads: ValuesMeta | null;
  nodes: ValuesMeta | null;
  times: string[];
  kinds: string[];
  note: string;
  crossed: string | null;
  crossed_roads: string | null;
  crossed_text: string;
  closed: string | null;
  planned: string | null;
}

/** The layers of a file. Values of a group share their classes. */
export function readLayers(container: Container<{ layers: LayerMeta[]; closed_sets: number[][] }>, network: Network): Layer[] {
  const { layers, closed_sets: sets } = container.meta;
  const values = new Map<ValuesMeta, Float32Array[]>();
  const groups = new Map<string, ValuesMeta[]>();
  for (const of of layers.flatMap(({ roads, nodes }) => [roads, nodes])) {
    if (!of) continue;
    values.set(of, readValues(container, of, network.nodes));
    const group = of.group || of.of;
    groups.set(group, [...(groups.get(group) ?? []), of]);
  }
  const scales = new Map<ValuesMeta, Scale>();
  for (const group of groups.values()) {
    const scale = makeScale(group[0], group.flatMap((of) => values.get(of)!), network.counts);
    for (const of of group) scales.set(of, scale);
  }
  const read = (of: ValuesMeta | null): Values | null =>
    of && { rows: values.get(of)!, unit: of.unit, scale: scales.get(of)!, spread: of.spread ? container.array(of.spread) : undefined, band: readBand(container, of.band) };
  const rows = (name: string | null) => (name ? Array.from(container.array<Uint32Array>(name)) : []);
  return layers.map((layer) => {
    const closed = rows(layer.closed);
    return {
      key: layer.key,
      title: layer.title,
      frames: readFrames(layer),
      roads: read(layer.roads),
      nodes: read(layer.nodes),
      crossed: { nodes: rows(layer.crossed), roads: rows(layer.crossed_roads), text: layer.crossed_text },
      closed: (frame) => sets[closed[frame]] ?? NONE,
      planned: rows(layer.planned),
    };
  });
}

export function readBand(container: Container<unknown>, of: ValuesMeta["band"]): Band | undefined {
  return of ? { lower: container.rows(of.lower), upper: container.rows(of.upper), level: of.level } : undefined;
}

export function readFrames(about: { times: string[]; kinds: string[]; note?: string }): Frames {
  return new Frames(about.times.map((time) => Date.parse(time)), about.kinds, about.note);
}

/** Values by frame; where only some rows have values, the others are NaN. */
export function readValues(container: Container<unknown>, of: { of: string; minus?: string | null; at: string | null }, count: number): Float32Array[] {
  const stored = container.rows(of.of);
  const rows = of.minus ? minus(stored, container.rows(of.minus)) : stored;
  if (!of.at) return rows;
  const at = container.array<Uint32Array>(of.at);
  return rows.map((some) => {
    const all = new Float32Array(count).fill(NaN);
    at.forEach((row, i) => (all[row] = some[i]));
    return all;
  });
}

function makeScale({ palette, edges, texts }: ValuesMeta, rows: Float32Array[], counts: boolean): Scale {
  if (edges) return new Scale(edges, palette, texts ?? undefined);
  return palette === "change" ? changeScale(rows) : flowScale(rows, counts, palette);
}
