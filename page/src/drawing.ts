/** Draws roads and intersections in WebGL, inside MapLibre: geometry goes to the graphics card once, a step sends one number a road. */

import type { CustomLayerInterface, Map as MapLibre } from "maplibre-gl";
import { attribute, compile, corners, rgb, use, VIEW, type View } from "./gl";
import type { Network } from "./network";
import type { Class } from "./scale";
import { type Symbol, Symbols } from "./symbols";

const TEXTURE_WIDTH = 1024;
const MISSING = -1e30;
const MAX_CLASSES = 8;

/** What a road or node is beside its value. */
export const CLOSED = 1, CHOSEN = 2, RING = 4;

const SHARED = `${VIEW}
uniform sampler2D values;  // value, mark
uniform float edges[${MAX_CLASSES}];
uniform int classes;
vec2 valueOf(uint row) { return texelFetch(values, ivec2(row % ${TEXTURE_WIDTH}u, row / ${TEXTURE_WIDTH}u), 0).rg; }
int classOf(float value) {
  if (value < ${MISSING.toExponential()} * 0.5) return -1;
  int found = 0;
  for (int k = 0; k < ${MAX_CLASSES}; k++) if (k < classes - 1 && value >= edges[k]) found = k + 1;
  return found;
}
`;

const ROAD_VERTEX = `${SHARED}
uniform vec4 palette[${MAX_CLASSES}];  // colour, width
uniform vec4 plain;  // of a road without a value
uniform float stretch;  // of widths
uniform float casing;  // pixels around; 0: the road itself
in vec2 from;
in vec2 to;
in uint what;  // row, whether there is a road the other way (1 bit), corner (2 bits)
flat out vec4 colour;
flat out float halfWidth;
flat out float dashed;
out vec2 at;  // pixels along and across
void main() {
  vec2 value = valueOf(what >> 3);
  int group = classOf(value.x);
  vec4 style = group < 0 ? plain : palette[group];
  int mark = int(value.y);
  float width = max(style.a * stretch, (mark & 3) != 0 ? 3.0 * stretch : 0.6);
  colour = vec4(style.rgb, group < 0 ? 0.75 : 1.0);
  dashed = (mark & 1) != 0 ? 1.0 : 0.0;
  if (casing > 0.0 && (mark & 2) == 0) { gl_Position = vec4(2.0, 2.0, 2.0, 1.0); return; }
  halfWidth = 0.5 * width + casing;
  vec2 a = onScreen(from), b = onScreen(to);
  float length_ = max(distance(a, b), 0.01);
  vec2 along = (b - a) / length_;
  vec2 right = vec2(-along.y, along.x);
  vec2 corner = vec2(what & 1u, (what >> 1) & 1u) * 2.0 - 1.0;
  float reach = halfWidth + 1.0;
  float shift = (what & 4u) != 0u ? 0.5 * width + 0.4 * stretch : 0.0;
  float end = min(halfWidth, 0.5 * length_) * 0.7;  // covers the gap at a bend
  at = vec2(corner.x > 0.0 ? length_ + end : -end, corner.y * reach);
  gl_Position = clip(a + along * at.x + right * (at.y + shift));
}`;

const ROAD_FRAGMENT = `#version 300 es
precision highp float;
uniform vec4 chosen;
uniform float casing;
uniform vec4 shut;
flat in vec4 colour;
flat in float halfWidth;
flat in float dashed;
in vec2 at;
out vec4 fragment;
void main() {
  float cover = clamp(halfWidth - abs(at.y) + 0.5, 0.0, 1.0);
  vec4 paint = casing > 0.0 ? chosen : dashed > 0.5 ? shut : colour;
  if (casing == 0.0 && dashed > 0.5 && mod(at.x, 9.0) > 5.0) discard;
  float alpha = paint.a * cover;
  fragment = vec4(paint.rgb * alpha, alpha);
}`;

const NODE_VERTEX = `${SHARED}
uniform vec4 palette[${MAX_CLASSES}];
uniform vec4 plain;
uniform float radius;
uniform float sensorRadius;
in vec2 place;
in uint what;  // row, whether it is a sensor (1 bit), corner (2 bits)
flat out vec4 colour;
flat out vec2 shape;  // radius, whether it is a square
flat out float mark;
out vec2 at;
void main() {
  vec2 value = valueOf(what >> 3);
  bool sensor = (what & 4u) != 0u;
  int group = classOf(value.x);
  mark = value.y;
  bool marked = (int(mark) & 6) != 0;
  float r = sensor ? sensorRadius : radius;
  if (marked) r = max(r, 5.0 * 1.2);
  if (r <= 0.0) { gl_Position = vec4(2.0, 2.0, 2.0, 1.0); return; }
  colour = group < 0 ? vec4(plain.rgb, 0.0) : vec4(palette[group].rgb, 1.0);
  if (group < 0 && !sensor && !marked) r *= 0.6;
  shape = vec2(r, sensor ? 1.0 : 0.0);
  vec2 corner = vec2(what & 1u, (what >> 1) & 1u) * 2.0 - 1.0;
  at = corner * (r + (marked ? 6.0 : 2.5));
  gl_Position = clip(onScreen(place) + at);
}`;

const NODE_FRAGMENT = `#version 300 es
precision highp float;
uniform vec4 ink;
uniform vec4 chosen;
uniform vec4 ground;
uniform vec4 plain;
flat in vec4 colour;
flat in vec2 shape;
flat in float mark;
in vec2 at;
out vec4 fragment;
void main() {
  float square = max(abs(at.x), abs(at.y)), away = mix(length(at), square, shape.y);
  float rim = shape.y > 0.5 ? 1.5 : 1.0;
  float inside = clamp(shape.x - away + 0.5, 0.0, 1.0), outside = clamp(shape.x + rim - away + 0.5, 0.0, 1.0);
  vec3 fill = colour.a > 0.5 ? colour.rgb : shape.y > 0.5 ? ground.rgb : plain.rgb;
  vec3 edge = shape.y > 0.5 ? ink.rgb : ground.rgb;
  float alpha = outside;
  vec3 paint = mix(edge, fill, inside);
  if ((int(mark) & 6) != 0) {
    float width = (int(mark) & 2) != 0 ? 3.0 : 1.6;
    float ring = clamp(0.5 * width + 0.5 - abs(away - shape.x - 4.0), 0.0, 1.0);
    if (ring > 0.0) { paint = mix(paint, chosen.rgb, ring); alpha = max(alpha, ring); }
  }
  fragment = vec4(paint * alpha, alpha);
}`;

/** Colours of the page that the drawing needs. */
export interface Ground {
  ink: string;
  ground: string;
  plain: string;
  shut: string;
  chosen: string;
}

/** The classes of values, and what lies between them. */
export interface Style {
  classes: Class[];
  edges: number[];
}

interface Sheet {
  data: Float32Array; // value and mark of each row
  texture: WebGLTexture | null;
  changed: boolean;
}

export class Drawing implements CustomLayerInterface {
  readonly id = "traffic";
  readonly type = "custom";
  private map!: MapLibre;
  private gl!: WebGL2RenderingContext;
  private programs!: { road: WebGLProgram; node: WebGLProgram };
  private arrays!: { road: WebGLVertexArrayObject; node: WebGLVertexArrayObject };
  private pieces!: WebGLBuffer;
  private order: Uint32Array | null = null; // of the roads: those drawn last lie on top
  private readonly numPieces: number;
  private readonly roads: Sheet;
  private readonly nodes: Sheet;
  private readonly below = new Symbols(); // symbols under the roads
  private readonly above = new Symbols(); // and over them
  private styles: { roads: Style; nodes: Style } = { roads: { classes: [], edges: [] }, nodes: { classes: [], edges: [] } };
  private colours: Ground = { ink: "#000000", ground: "#ffffff", plain: "#cccccc", shut: "#cc0000", chosen: "#cc00cc" };
  private nodesFirst = false;
  private sensorsShown = false;
  private anyChosen = false;

  constructor(private readonly network: Network) {
    this.numPieces = network.lineXY.length / 2 - network.lines;
    this.roads = sheet(network.lines);
    this.nodes = sheet(network.nodes);
  }

  /** Pixels between neighbouring intersections, typically. */
  get spacing(): number {
    return this.network.typicalLength * this.scale;
  }

  /** Widths grow as the map is zoomed in. */
  get stretch(): number {
    return Math.max(0.4, Math.min(2, Math.sqrt(this.spacing / 40)));
  }

  /** The radius of a dot in pixels: of a sensor, and of another intersection; 0 where it is not shown. */
  radii(): [number, number] {
    const size = Math.max(1.6, Math.min(7, this.spacing * 0.11));
    const shown = this.nodesFirst ? 0 : 40;
    const sensors = this.nodesFirst || this.sensorsShown || this.spacing > 22;
    return [sensors ? size * 0.95 : 0, this.spacing > shown && !this.network.onRoads ? size : 0];
  }

  /** Pixels a metre. */
  private get scale(): number {
    return (512 * 2 ** this.map.getZoom()) / this.network.metres;
  }

  /** Nodes may have classes of their own; then their sensors are shown from afar. `nodesFirst`: so are all nodes. */
  setStyle(styles: { roads: Style; nodes: Style }, colours: Ground, nodesFirst: boolean): void {
    [this.styles, this.colours, this.nodesFirst, this.sensorsShown] = [styles, colours, nodesFirst, styles.roads !== styles.nodes];
    this.map?.triggerRepaint();
  }

  setSymbols(below: Symbol[], above: Symbol[]): void {
    this.below.set(below);
    this.above.set(above);
    this.map?.triggerRepaint();
  }

  setValues(roads: Float32Array | null, nodes: Float32Array | null): void {
    for (const [of, values] of [[this.roads, this.network.onRoads ? nodes : roads], [this.nodes, nodes]] as const) {
      const rows = of === this.roads ? this.network.lines : this.network.nodes;
      for (let i = 0; i < rows; i++) {
        const value = values ? values[i] : NaN;
        of.data[2 * i] = value === value ? value : MISSING;
      }
      of.changed = true;
    }
    this.map?.triggerRepaint();
  }

  setMarks(roads: Map<number, number>, nodes: Map<number, number>): void {
    this.anyChosen = [...roads.values(), ...nodes.values()].some((mark) => mark & (CHOSEN | RING));
    for (const [of, marks] of [[this.roads, this.network.onRoads ? nodes : roads], [this.nodes, nodes]] as const) {
      for (let i = 1; i < of.data.length; i += 2) of.data[i] = 0;
      for (const [row, mark] of marks) of.data[2 * row + 1] = mark;
      of.changed = true;
    }
    this.map?.triggerRepaint();
  }

  /** Which lines lie on top: those with the most traffic. */
  setOrder(traffic: Float32Array): void {
    const known = traffic.map((value) => (value === value ? value : -1));
    this.order = new Uint32Array(known.length).map((_, e) => e).sort((a, b) => known[a] - known[b]);
    if (this.gl) this.fillPieces();
  }

  onAdd(map: MapLibre, gl: WebGL2RenderingContext): void {
    this.map = map;
    this.gl = gl;
    this.programs = { road: compile(gl, ROAD_VERTEX, ROAD_FRAGMENT), node: compile(gl, NODE_VERTEX, NODE_FRAGMENT) };
    this.below.add(gl);
    this.above.add(gl);
    this.roads.texture = gl.createTexture();
    this.nodes.texture = gl.createTexture();
    this.roads.changed = this.nodes.changed = true;
    const [road, node] = [gl.createVertexArray()!, gl.createVertexArray()!];
    this.arrays = { road, node };
    this.pieces = gl.createBuffer()!;
    this.fillPieces();
    gl.bindVertexArray(road);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.pieces);
    attribute(gl, this.programs.road, "from", 2, 20, 0);
    attribute(gl, this.programs.road, "to", 2, 20, 8);
    attribute(gl, this.programs.road, "what", 0, 20, 16);
    corners(gl, this.numPieces);
    gl.bindVertexArray(node);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, this.dots(), gl.STATIC_DRAW);
    attribute(gl, this.programs.node, "place", 2, 12, 0);
    attribute(gl, this.programs.node, "what", 0, 12, 8);
    corners(gl, this.network.nodes);
    gl.bindVertexArray(null);
  }

  render(gl: WebGL2RenderingContext): void {
    for (const each of [this.roads, this.nodes]) if (each.changed) this.upload(each);
    const view = this.view(gl);
    const { ratio } = view;
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    gl.disable(gl.DEPTH_TEST);
    gl.disable(gl.STENCIL_TEST);
    gl.disable(gl.CULL_FACE);
    const { ink, ground, plain, shut, chosen } = this.colours;
    const begin = (program: WebGLProgram, of: Sheet, { classes, edges }: Style) => {
      const at = use(gl, program, view);
      gl.activeTexture(gl.TEXTURE0);
      gl.bindTexture(gl.TEXTURE_2D, of.texture);
      gl.uniform1i(at("values"), 0);
      gl.uniform1fv(at("edges"), padded(edges, MAX_CLASSES));
      gl.uniform1i(at("classes"), classes.length);
      gl.uniform4fv(at("palette"), padded(classes.flatMap((c) => [...rgb(c.colour), c.width]), 4 * MAX_CLASSES));
      gl.uniform4f(at("plain"), ...rgb(plain), 0.8);
      gl.uniform4f(at("ink"), ...rgb(ink), 1);
      gl.uniform4f(at("chosen"), ...rgb(chosen), 1);
      return at;
    };
    this.below.draw(gl, view, ground);
    let at = begin(this.programs.road, this.roads, this.network.onRoads ? this.styles.nodes : this.styles.roads);
    gl.uniform1f(at("stretch"), this.stretch * ratio);
    gl.uniform4f(at("shut"), ...rgb(shut), 1);
    gl.bindVertexArray(this.arrays.road);
    for (const casing of this.anyChosen ? [3 * ratio, 0] : [0]) {
      gl.uniform1f(at("casing"), casing);
      gl.drawElements(gl.TRIANGLES, 6 * this.numPieces, gl.UNSIGNED_INT, 0);
    }
    const [sensor, other] = this.radii();
    if (sensor || other || this.anyChosen) {
      at = begin(this.programs.node, this.nodes, this.styles.nodes);
      gl.uniform4f(at("ground"), ...rgb(ground), 1);
      gl.uniform1f(at("radius"), other * ratio);
      gl.uniform1f(at("sensorRadius"), sensor * ratio);
      gl.bindVertexArray(this.arrays.node);
      gl.drawElements(gl.TRIANGLES, 6 * this.network.nodes, gl.UNSIGNED_INT, 0);
    }
    gl.bindVertexArray(null);
    this.above.draw(gl, view, ground);
  }

  private view(gl: WebGL2RenderingContext): View {
    const { network } = this;
    const size: [number, number] = [gl.drawingBufferWidth, gl.drawingBufferHeight];
    const ratio = size[0] / this.map.getCanvas().clientWidth;
    const { lng, lat } = this.map.getCenter();
    return { centre: network.local(lng, lat), scale: this.scale * ratio, size, ratio };
  }

  /** The pieces of all lines, in the order in which they are drawn. */
  private fillPieces(): void {
    const { network, gl } = this;
    const bytes = new ArrayBuffer(4 * 20 * this.numPieces);
    const [floats, ints] = [new Float32Array(bytes), new Uint32Array(bytes)];
    let i = 0;
    for (let k = 0; k < network.lines; k++) {
      const e = this.order ? this.order[k] : k;
      for (let p = network.lineStart[e]; p < network.lineStart[e + 1] - 1; p++) {
        for (let corner = 0; corner < 4; corner++, i += 5) {
          for (let c = 0; c < 4; c++) floats[i + c] = network.lineXY[2 * p + c];
          ints[i + 4] = (e << 3) | (network.twin[e] << 2) | corner;
        }
      }
    }
    gl.bindBuffer(gl.ARRAY_BUFFER, this.pieces);
    gl.bufferData(gl.ARRAY_BUFFER, bytes, gl.STATIC_DRAW);
  }

  private dots(): ArrayBuffer {
    const { nodes, nodeXY, sensor } = this.network;
    const bytes = new ArrayBuffer(4 * 12 * nodes);
    const [floats, ints] = [new Float32Array(bytes), new Uint32Array(bytes)];
    const order = Array.from(sensor, (_, n) => n).sort((a, b) => sensor[a] - sensor[b]); // sensors lie on top
    for (let k = 0, i = 0; k < nodes; k++) {
      const n = order[k];
      for (let corner = 0; corner < 4; corner++, i += 3) {
        floats[i] = nodeXY[2 * n];
        floats[i + 1] = nodeXY[2 * n + 1];
        ints[i + 2] = (n << 3) | (sensor[n] << 2) | corner;
      }
    }
    return bytes;
  }

  private upload(of: Sheet): void {
    const { gl } = this;
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, of.texture);
    gl.pixelStorei(gl.UNPACK_FLIP_Y_WEBGL, false);
    gl.pixelStorei(gl.UNPACK_PREMULTIPLY_ALPHA_WEBGL, false);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    const height = of.data.length / 2 / TEXTURE_WIDTH;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RG32F, TEXTURE_WIDTH, height, 0, gl.RG, gl.FLOAT, of.data);
    of.changed = false;
  }
}

function sheet(rows: number): Sheet {
  const height = Math.max(1, Math.ceil(rows / TEXTURE_WIDTH));
  return { data: new Float32Array(2 * TEXTURE_WIDTH * height).fill(0), texture: null, changed: true };
}

function padded(values: number[], length: number): Float32Array {
  const all = new Float32Array(length);
  all.set(values.slice(0, length));
  return all;
}
