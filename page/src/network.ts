/** The roads and intersections of a city, sent once: places in metres from the middle, names, and what is near a point. */

import type { Container } from "./wire";

export type NodeId = string | number;

/** What a value counts or measures. */
export interface Unit {
  text: string;
  per_s: number | null; // seconds that vehicles are counted for; null: not a count
}

/** "vehicles per 5 min"; of what is not counted, the unit itself. */
export function unitText({ text, per_s: per }: Unit): string {
  if (per === null) return text;
  return `${text} per ${per === 3600 ? "hour" : per % 3600 === 0 ? `${per / 3600} h` : `${per / 60} min`}`;
}

export interface NetworkMeta {
  version?: string; // as the service names it
  name: string;
  quantity: string;
  unit: string;
  timezone: string;
  step_seconds: number;
  node_ids: NodeId[];
  street_names: string[];
  has_demand: boolean;
  level?: number | null; // percent, of the intervals that are shown; null: the run has none
  detectors?: string[]; // their own names, of each node
  basemap?: string; // tiles, as https://tiles.example/{z}/{x}/{y}.png
  basemap_attribution?: string;
}

const EARTH_M = 40_075_016.686;

export function mercator(lon: number, lat: number): [number, number] {
  const sin = Math.sin((lat * Math.PI) / 180);
  return [(lon + 180) / 360, 0.5 - Math.log((1 + sin) / (1 - sin)) / (4 * Math.PI)];
}

export class Network {
  readonly meta: NetworkMeta;
  readonly ids: string[];
  readonly lon: Float64Array;
  readonly lat: Float64Array;
  readonly sensor: Uint8Array;
  readonly source: Uint32Array;
  readonly target: Uint32Array;
  readonly street: Uint32Array;
  readonly onRoads: boolean; // nodes are roads, and roads are the turns between them
  readonly lineStart: Uint32Array; // of the lines that are drawn: roads, or nodes in a city on roads
  readonly middle: [number, number]; // of the city, in Mercator coordinates from 0 to 1
  readonly metres: number; // of one Mercator unit, here
  readonly nodeXY: Float32Array; // [2N] metres east and south of the middle
  readonly lineXY: Float32Array; // [2P]
  readonly twin: Uint8Array; // of each line, 1: there is one the other way
  readonly typicalLength: number; // median, metres
  readonly bounds: [number, number, number, number]; // west, south, east, north
  private readonly rowOfId: Map<string, number>;
  private readonly rowOfRoad: Map<number, number>;

  constructor(container: Container<NetworkMeta>) {
    this.meta = container.meta;
    this.ids = container.meta.node_ids.map(String);
    this.lon = container.array<Float64Array>("lon");
    this.lat = container.array<Float64Array>("lat");
    this.sensor = container.array<Uint8Array>("sensor");
    this.source = container.array<Uint32Array>("source");
    this.target = container.array<Uint32Array>("target");
    this.street = container.array<Uint32Array>("street");
    this.onRoads = container.has("node_line_start");
    const lines = this.onRoads ? "node_line" : "line";
    this.lineStart = container.array<Uint32Array>(`${lines}_start`);
    const line = container.array<Float64Array>(`${lines}_lonlat`);
    const alternate = (from: number) => (this.onRoads ? line.filter((_, i) => i % 2 === from) : from ? this.lat : this.lon);
    this.bounds = bounds(alternate(0), alternate(1));
    const [west, south, east, north] = this.bounds;
    this.middle = mercator((west + east) / 2, (south + north) / 2);
    this.metres = EARTH_M * Math.cos(((south + north) * Math.PI) / 360);
    this.nodeXY = new Float32Array(2 * this.ids.length);
    for (let i = 0; i < this.ids.length; i++) this.place(this.nodeXY, i, this.lon[i], this.lat[i]);
    this.lineXY = new Float32Array(line.length);
    for (let p = 0; p < line.length / 2; p++) this.place(this.lineXY, p, line[2 * p], line[2 * p + 1]);
    this.rowOfId = new Map(this.ids.map((id, i) => [id, i]));
    this.rowOfRoad = new Map();
    for (let e = 0; e < this.roads; e++) this.rowOfRoad.set(this.key(this.source[e], this.target[e]), e);
    const xy = this.lineXY;
    const ends = (e: number) => [2 * this.lineStart[e], 2 * this.lineStart[e + 1] - 2].map((p) => `${Math.round(xy[p])},${Math.round(xy[p + 1])}`);
    const ways = new Set(this.onRoads ? Array.from({ length: this.lines }, (_, e) => ends(e).join(" ")) : []);
    this.twin = new Uint8Array(this.lines);
    const lengths = new Float32Array(this.lines);
    for (let e = 0; e < this.lines; e++) {
      this.twin[e] = Number(this.onRoads ? ways.has(ends(e).reverse().join(" ")) : this.rowOfRoad.has(this.key(this.target[e], this.source[e])));
      const [a, b] = [2 * this.lineStart[e], 2 * this.lineStart[e + 1] - 2];
      lengths[e] = Math.hypot(xy[a] - xy[b], xy[a + 1] - xy[b + 1]);
    }
    this.typicalLength = lengths.sort()[lengths.length >> 1] || 100;
  }

  /** Lines that are drawn. */
  get lines(): number {
    return this.lineStart.length - 1;
  }

  /** "Intersection 41"; in a city on roads "Road 41>42". */
  nodeName(id: NodeId): string {
    return `${this.onRoads ? "Road" : "Intersection"} ${id}`;
  }

  /** The same inside a sentence; ids keep their letters. */
  nodeWord(id: NodeId): string {
    return `${this.onRoads ? "road" : "intersection"} ${id}`;
  }

  get nodes(): number {
    return this.ids.length;
  }

  get roads(): number {
    return this.source.length;
  }

  /** Of the readings. */
  get unit(): Unit {
    const { quantity, unit, step_seconds: step } = this.meta;
    return this.counts ? { text: unit || "count", per_s: step } : { text: unit || quantity, per_s: null };
  }

  /** Whether readings are counts, which are mostly small; else they are a gauge, such as speeds. */
  get counts(): boolean {
    return this.meta.quantity === "count";
  }

  node(id: NodeId): number | undefined {
    return this.rowOfId.get(String(id));
  }

  road(source: NodeId, target: NodeId): number | undefined {
    const [a, b] = [this.node(source), this.node(target)];
    return a === undefined || b === undefined ? undefined : this.rowOfRoad.get(this.key(a, b));
  }

  /** The road the other way. */
  opposite(road: number): number | undefined {
    return this.rowOfRoad.get(this.key(this.target[road], this.source[road]));
  }

  roadName(road: number): string {
    return this.meta.street_names[this.street[road]] || (this.onRoads ? "Turn" : "Unnamed road");
  }

  roadEnds(road: number): string {
    return `${this.ids[this.source[road]]} → ${this.ids[this.target[road]]}`;
  }

  /** Roads out of a node and into it. */
  roadsAt(node: number): number[] {
    const found: number[] = [];
    for (let e = 0; e < this.roads; e++) if (this.source[e] === node || this.target[e] === node) found.push(e);
    return found;
  }

  /** Names of the streets that meet at a node. */
  streetsAt(node: number): string[] {
    const names = this.roadsAt(node).map((e) => this.meta.street_names[this.street[e]]);
    return [...new Set(names)].filter(Boolean);
  }

  roadsOf(street: number): number[] {
    const found: number[] = [];
    for (let e = 0; e < this.roads; e++) if (this.street[e] === street) found.push(e);
    return found;
  }

  /** The middle of a road's line: longitude and latitude. */
  roadMiddle(road: number): [number, number] {
    const { lineXY: xy, lineStart } = this;
    if (this.onRoads) return [(this.lon[this.source[road]] + this.lon[this.target[road]]) / 2, (this.lat[this.source[road]] + this.lat[this.target[road]]) / 2];
    const [first, last] = [lineStart[road], lineStart[road + 1] - 1];
    let left = 0;
    for (let p = first; p < last; p++) left += distance(xy, p) / 2;
    for (let p = first; p < last; p++) {
      const length = distance(xy, p);
      if (left <= length || p === last - 1) {
        const share = length ? Math.min(1, left / length) : 0;
        const x = xy[2 * p] + share * (xy[2 * p + 2] - xy[2 * p]);
        const y = xy[2 * p + 1] + share * (xy[2 * p + 3] - xy[2 * p + 1]);
        return this.lonLat(x, y);
      }
      left -= length;
    }
    return [this.lon[this.source[road]], this.lat[this.source[road]]];
  }

  lonLat(x: number, y: number): [number, number] {
    const [mx, my] = [this.middle[0] + x / this.metres, this.middle[1] + y / this.metres];
    return [mx * 360 - 180, (Math.atan(Math.sinh(Math.PI * (1 - 2 * my))) * 180) / Math.PI];
  }

  local(lon: number, lat: number): [number, number] {
    const [mx, my] = mercator(lon, lat);
    return [(mx - this.middle[0]) * this.metres, (my - this.middle[1]) * this.metres];
  }

  private key(a: number, b: number): number {
    return a * this.ids.length + b;
  }

  private place(into: Float32Array, i: number, lon: number, lat: number): void {
    const [x, y] = this.local(lon, lat);
    into[2 * i] = x;
    into[2 * i + 1] = y;
  }
}

function distance(xy: Float32Array, p: number): number {
  return Math.hypot(xy[2 * p + 2] - xy[2 * p], xy[2 * p + 3] - xy[2 * p + 1]);
}

export function bounds(lon: ArrayLike<number>, lat: ArrayLike<number>): [number, number, number, number] {
  let [west, south, east, north] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let i = 0; i < lon.length; i++) {
    west = Math.min(west, lon[i]);
    east = Math.max(east, lon[i]);
    south = Math.min(south, lat[i]);
    north = Math.max(north, lat[i]);
  }
  return [west, south, east, north];
}

/** Finds the node or road nearest to a point: lines and nodes in the cells of a grid. */
export class Nearby {
  private readonly cell: number;
  private readonly cells = new Map<number, number[]>(); // nodes as -1 - row, points of lines as they are
  private readonly lineOf: Uint32Array; // [P] of each point that begins a piece of line

  constructor(private readonly network: Network) {
    this.cell = Math.max(20, network.typicalLength);
    const { nodeXY, lineXY, lineStart } = network;
    for (let i = 0; i < network.nodes && !network.onRoads; i++) this.put(nodeXY[2 * i], nodeXY[2 * i + 1], -1 - i);
    this.lineOf = new Uint32Array(lineXY.length / 2);
    for (let e = 0; e < network.lines; e++) {
      for (let p = lineStart[e]; p < lineStart[e + 1] - 1; p++) {
        this.lineOf[p] = e;
        const steps = Math.ceil(distance(lineXY, p) / this.cell) || 1;
        let before = NaN;
        for (let k = 0; k <= steps; k++) {
          const x = lineXY[2 * p] + (k / steps) * (lineXY[2 * p + 2] - lineXY[2 * p]);
          const y = lineXY[2 * p + 1] + (k / steps) * (lineXY[2 * p + 3] - lineXY[2 * p + 1]);
          const key = this.key(x, y);
          if (key !== before) this.put(x, y, p);
          before = key;
        }
      }
    }
  }

  /** The nearest node within `nodeReach`, else the nearest road within `roadReach` of its line, which lies `shift` to its right. */
  find(x: number, y: number, nodeReach: number, roadReach: number, shift: number): { node: number } | { road: number } | null {
    const { nodeXY, lineXY, twin } = this.network;
    const reach = Math.max(nodeReach, roadReach + shift);
    let [node, road, nearNode, nearRoad] = [-1, -1, nodeReach, roadReach];
    const [ring, seen] = [Math.ceil(reach / this.cell) + 1, new Set<number>()];
    for (let i = -ring; i <= ring; i++) {
      for (let j = -ring; j <= ring; j++) {
        for (const item of this.cells.get(this.key(x + i * this.cell, y + j * this.cell)) ?? []) {
          if (item < 0) {
            const row = -1 - item;
            const d = Math.hypot(nodeXY[2 * row] - x, nodeXY[2 * row + 1] - y);
            if (d < nearNode) [node, nearNode] = [row, d];
          } else if (!seen.has(item)) {
            seen.add(item);
            const e = this.lineOf[item];
            const d = fromPiece(lineXY, item, x, y, twin[e] ? shift : 0);
            if (d < nearRoad) [road, nearRoad] = [e, d];
          }
        }
      }
    }
    if (node >= 0) return { node };
    if (road < 0) return null;
    return this.network.onRoads ? { node: road } : { road };
  }

  private key(x: number, y: number): number {
    return Math.floor(x / this.cell) * 1_000_003 + Math.floor(y / this.cell);
  }

  private put(x: number, y: number, item: number): void {
    const key = this.key(x, y);
    const there = this.cells.get(key);
    if (there) there.push(item);
    else this.cells.set(key, [item]);
  }
}

/** Distance of a point from a piece of line moved to its right. */
function fromPiece(xy: Float32Array, p: number, x: number, y: number, shift: number): number {
  let [ax, ay, bx, by] = [xy[2 * p], xy[2 * p + 1], xy[2 * p + 2], xy[2 * p + 3]];
  const [dx, dy] = [bx - ax, by - ay];
  const length = Math.hypot(dx, dy) || 1;
  ax -= (dy / length) * shift; // to the right, with y pointing south
  ay += (dx / length) * shift;
  const along = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (length * length)));
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}
