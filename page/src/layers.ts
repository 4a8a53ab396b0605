/** What the map can show: values of roads and nodes at some times, with their classes. */

import type { Network, NodeId } from "./network";
import { changeScale, flowScale, type Scale } from "./scale";
import type { Container } from "./wire";

export interface Layer {
  key: string;
  title: string;
  unit: string;
  scale: Scale;
  times: number[]; // of the frames, milliseconds; one frame may have none
  ahead: number; // the first frame that is forecast; 0: all are
  roads: Float32Array[] | null;
  nodes: Float32Array[] | null;
  note: string;
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
}

export class Forecast {
  readonly meta: ForecastMeta;
  readonly issued: number;
  readonly layer: Layer;
  readonly lower: Float32Array[] | null;
  readonly upper: Float32Array[] | null;
  readonly traffic: Float32Array; // mean forecast of each line

  constructor(container: Container<ForecastMeta>, network: Network) {
    this.meta = container.meta;
    this.issued = Date.parse(this.meta.issued_at);
    const roads = container.rows("road_forecast");
    const nodes = container.rows("forecast");
    this.traffic = mean(network.onRoads ? nodes : roads);
    this.lower = container.has("lower") ? container.rows("lower") : null;
    this.upper = container.has("upper") ? container.rows("upper") : null;
    this.layer = {
      key: "forecast",
      title: "Forecast",
      unit: network.unit,
      scale: flowScale([...roads, ...nodes], network.meta.quantity === "count"),
      times: [...this.meta.past_times, ...this.meta.times].map((time) => Date.parse(time)),
      ahead: this.meta.past_times.length,
      roads: [...container.rows("road_past"), ...roads],
      nodes: [...container.rows("past"), ...nodes],
      note: "",
    };
  }
}

/** The same values before and after roads close, and the difference. */
export function beforeAndAfter(
  parts: { before: Float32Array[]; after: Float32Array[]; roadBefore: Float32Array[]; roadAfter: Float32Array[] },
  about: { unit: string; times: number[]; skewed: boolean; prefix: string },
): Layer[] {
  const minus = (after: Float32Array[], before: Float32Array[]) => after.map((row, h) => row.map((value, i) => value - before[h][i]));
  const [roads, nodes] = [minus(parts.roadAfter, parts.roadBefore), minus(parts.after, parts.before)];
  const flow = flowScale([...parts.roadBefore, ...parts.before], about.skewed);
  const shared = { unit: about.unit, times: about.times, ahead: 0, note: "" };
  return [
    { key: "change", title: `${about.prefix}: change`, scale: changeScale(roads), roads, nodes, ...shared },
    { key: "after", title: `${about.prefix}: after`, scale: flow, roads: parts.roadAfter, nodes: parts.after, ...shared },
    { key: "before", title: `${about.prefix}: before`, scale: flow, roads: parts.roadBefore, nodes: parts.before, ...shared },
  ];
}

export function mean(rows: Float32Array[]): Float32Array {
  const total = new Float32Array(rows[0]?.length ?? 0);
  for (const row of rows) for (let i = 0; i < row.length; i++) total[i] += row[i] / rows.length;
  return total;
}
