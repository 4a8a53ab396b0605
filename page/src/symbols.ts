/** Symbols on the map, drawn in WebGL: discs and diamonds where trips begin and end, crosses at what is closed or broken. */

import { attribute, compile, corners, rgb, use, VIEW, type View } from "./gl";

export interface Symbol {
  x: number; // metres
  y: number;
  shape: "disc" | "diamond" | "cross";
  radius: number; // pixels of the page
  colour: string;
  alpha: number;
}

const SHAPES = ["disc", "diamond", "cross"];
const FLOATS = 8; // of a vertex: place, radius, shape, colour

const VERTEX = `${VIEW}
uniform float ratio;
in vec2 place;
in vec2 look;  // radius, shape
in vec4 paint;
flat out float radius;
flat out float shape;
flat out vec4 colour;
out vec2 at;
void main() {
  radius = look.x * ratio;
  shape = look.y;
  colour = paint;
  vec2 corner = vec2(gl_VertexID & 1, (gl_VertexID >> 1) & 1) * 2.0 - 1.0;
  at = corner * (1.3 * radius + 2.0 * ratio);
  gl_Position = clip(onScreen(place) + at);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform vec3 rim;
uniform float ratio;
flat in float radius;
flat in float shape;
flat in vec4 colour;
in vec2 at;
out vec4 fragment;
void main() {
  float beyond = shape < 0.5 ? length(at) - radius
    : shape < 1.5 ? (abs(at.x) + abs(at.y) - 1.25 * radius) * 0.7
    : max(abs(abs(at.x) - abs(at.y)) * 0.7 - 0.22 * radius, max(abs(at.x), abs(at.y)) - radius);
  float inside = clamp(0.5 - beyond, 0.0, 1.0), outside = clamp(0.5 + 1.2 * ratio - beyond, 0.0, 1.0);
  float alpha = outside * colour.a;
  fragment = vec4(mix(rim, colour.rgb, inside) * alpha, alpha);
}`;

export class Symbols {
  private program!: WebGLProgram;
  private array!: WebGLVertexArrayObject;
  private buffer!: WebGLBuffer;
  private list: Symbol[] = [];
  private room = 0; // symbols that the index buffer has room for
  private gl: WebGL2RenderingContext | null = null;

  get count(): number {
    return this.list.length;
  }

  add(gl: WebGL2RenderingContext): void {
    this.gl = gl;
    this.program = compile(gl, VERTEX, FRAGMENT);
    this.array = gl.createVertexArray()!;
    this.buffer = gl.createBuffer()!;
    this.fill();
  }

  set(list: Symbol[]): void {
    this.list = list;
    if (this.gl) this.fill();
  }

  draw(gl: WebGL2RenderingContext, view: View, rim: string): void {
    if (!this.list.length) return;
    const at = use(gl, this.program, view);
    gl.uniform1f(at("ratio"), view.ratio);
    gl.uniform3f(at("rim"), ...rgb(rim));
    gl.bindVertexArray(this.array);
    gl.drawElements(gl.TRIANGLES, 6 * this.list.length, gl.UNSIGNED_INT, 0);
    gl.bindVertexArray(null);
  }

  private fill(): void {
    const gl = this.gl!;
    const floats = new Float32Array(4 * FLOATS * this.list.length);
    this.list.forEach(({ x, y, shape, radius, colour, alpha }, i) => {
      const vertex = [x, y, radius, SHAPES.indexOf(shape), ...rgb(colour), alpha];
      for (let corner = 0; corner < 4; corner++) floats.set(vertex, (4 * i + corner) * FLOATS);
    });
    gl.bindVertexArray(this.array);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffer);
    gl.bufferData(gl.ARRAY_BUFFER, floats, gl.STATIC_DRAW);
    attribute(gl, this.program, "place", 2, 4 * FLOATS, 0);
    attribute(gl, this.program, "look", 2, 4 * FLOATS, 8);
    attribute(gl, this.program, "paint", 4, 4 * FLOATS, 16);
    if (this.list.length > this.room) corners(gl, (this.room = 2 * this.list.length));
    gl.bindVertexArray(null);
  }
}
