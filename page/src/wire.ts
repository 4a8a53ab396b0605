/** The binary container of the API; `frigate/pages/wire.py` writes it. */

export type Values = Float32Array | Float64Array | Uint32Array | Int32Array | Uint8Array;

const KINDS = { f32: Float32Array, f64: Float64Array, u32: Uint32Array, i32: Int32Array, u8: Uint8Array };

interface Entry {
  dtype: keyof typeof KINDS;
  shape: number[];
  offset: number;
}

/** Meta data and arrays by name; the arrays are views into the bytes. */
export class Container<Meta> {
  readonly meta: Meta;
  private readonly table: Record<string, Entry>;
  private readonly start: number;

  constructor(private readonly bytes: ArrayBuffer) {
    const view = new DataView(bytes);
    if (bytes.byteLength < 8 || view.getUint32(0) !== 0x46524731) throw new Error("the answer is not a Frigate container");
    this.start = 8 + view.getUint32(4, true);
    const { arrays, ...meta } = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, this.start - 8)));
    this.table = arrays;
    this.meta = meta;
  }

  has(name: string): boolean {
    return name in this.table;
  }

  array<T extends Values = Float32Array>(name: string): T {
    const entry = this.table[name];
    if (!entry) throw new Error(`the container has no array "${name}"`);
    const length = entry.shape.reduce((a, b) => a * b, 1);
    return new KINDS[entry.dtype](this.bytes, this.start + entry.offset, length) as T;
  }

  /** The rows of a [rows, columns] array. */
  rows(name: string): Float32Array[] {
    const { shape } = this.table[name];
    const all = this.array(name);
    return Array.from({ length: shape[0] }, (_, i) => all.subarray(i * shape[1], (i + 1) * shape[1]));
  }
}
