/** Small helpers of WebGL, and the GLSL that all programs begin with. */

/** Places are metres from the middle of the city, sizes are pixels. */
export const VIEW = `#version 300 es
precision highp float;
uniform vec2 centre;  // metres
uniform float scale;  // pixels a metre
uniform vec2 size;  // pixels
vec2 onScreen(vec2 place) { return (place - centre) * scale; }
vec4 clip(vec2 pixel) { return vec4(pixel * vec2(2.0, -2.0) / size, 0.0, 1.0); }
`;

/** What is seen of the city. */
export interface View {
  centre: [number, number]; // metres
  scale: number; // pixels a metre
  size: [number, number]; // pixels
  ratio: number; // of the screen's pixels to those of the page
}

/** Begin to draw with a program; the answer finds its uniforms. */
export function use(gl: WebGL2RenderingContext, program: WebGLProgram, view: View): (name: string) => WebGLUniformLocation | null {
  const at = (name: string) => gl.getUniformLocation(program, name);
  gl.useProgram(program);
  gl.uniform2f(at("centre"), ...view.centre);
  gl.uniform1f(at("scale"), view.scale);
  gl.uniform2f(at("size"), ...view.size);
  return at;
}

export function compile(gl: WebGL2RenderingContext, vertex: string, fragment: string): WebGLProgram {
  const made = gl.createProgram()!;
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]] as const) {
    const shader = gl.createShader(kind)!;
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader) ?? "a shader does not compile");
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(made) ?? "a program does not link");
  return made;
}

/** An attribute of a vertex: some floats, or one unsigned integer (0 floats). */
export function attribute(gl: WebGL2RenderingContext, program: WebGLProgram, name: string, floats: number, stride: number, offset: number): void {
  const at = gl.getAttribLocation(program, name);
  gl.enableVertexAttribArray(at);
  if (floats) gl.vertexAttribPointer(at, floats, gl.FLOAT, false, stride, offset);
  else gl.vertexAttribIPointer(at, 1, gl.UNSIGNED_INT, stride, offset);
}

/** Two triangles for every four corners. No instances: drawing in software takes each as a call of its own. */
export function corners(gl: WebGL2RenderingContext, count: number): void {
  const index = new Uint32Array(6 * count);
  for (let i = 0; i < count; i++) index.set([0, 1, 2, 2, 1, 3].map((corner) => 4 * i + corner), 6 * i);
  gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
  gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, index, gl.STATIC_DRAW);
}

export function rgb(colour: string): [number, number, number] {
  const number = parseInt(colour.slice(1), 16);
  return [(number >> 16) / 255, ((number >> 8) & 255) / 255, (number & 255) / 255];
}
