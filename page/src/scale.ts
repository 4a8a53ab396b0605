/** Classes of values: round numbers between them, a colour and a width each. Safe for colour-blind eyes. */

export type Colours = "flow" | "error" | "change" | "kind" | "fit";
export type Theme = "light" | "dark";

// From least to most; a change goes from less, blue, to more, orange. Kinds have no order; a fit is right, too high, too low
const NONE: Record<Theme, string> = { light: "#c3cad3", dark: "#333d49" }; // no traffic at all
const PALETTES: Record<Theme, Record<Colours, string[]>> = {
  light: {
    flow: ["#a9d8c2", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58"],
    error: ["#fee391", "#fec44f", "#fe9929", "#ec7014", "#cc4c02", "#993404", "#5c1f04"],
    change: ["#1f5fa8", "#4c93c9", "#9cc7e4", "#d3d8de", "#f3b38c", "#df7a45", "#b5401a"],
    kind: ["#d55e00", "#b0578d", "#0072b2"],
    fit: ["#f6f7f9", "#d55e00", "#0072b2"],
  },
  dark: {
    flow: ["#24405f", "#22659a", "#1d91c0", "#41b6c4", "#7fcdbb", "#c7e9b4", "#ffffd9"],
    error: ["#5c3418", "#8c4412", "#cc4c02", "#ec7014", "#fe9929", "#fec44f", "#fff0b3"],
    change: ["#7cc4ff", "#3d8fd1", "#2b5d88", "#39424e", "#8a4a2a", "#d96d35", "#ffb184"],
    kind: ["#f0803c", "#dd93bf", "#56b4e9"],
    fit: ["#12161c", "#f0803c", "#56b4e9"],
  },
};
const WIDTHS: Record<Colours, number[]> = {
  flow: [1, 1.3, 1.7, 2.3, 3, 4, 5.4],
  error: [1, 1.3, 1.7, 2.3, 3, 4, 5.4],
  change: [5.4, 3.8, 2.4, 1, 2.4, 3.8, 5.4],
  kind: [5, 5, 5],
  fit: [1, 1, 1],
};
const KINDS: Colours[] = ["kind", "fit"]; // whose classes have no order
const LITTLE = 1e-9; // more than no traffic
const EVEN_WIDTH = 2.4;
const SHADES = 7;

export interface Class {
  colour: string;
  width: number;
  text: string;
}

export class Scale {
  constructor(
    readonly edges: number[], // where one class ends and the next begins
    readonly colours: Colours,
    private readonly texts?: string[],
    private readonly even = false, // a gauge: no road is wider than another
    private readonly none = false, // the first class is that of no traffic
  ) {}

  /** The class of a value by name, where classes are kinds. */
  kindOf(value: number): string | undefined {
    return KINDS.includes(this.colours) ? this.texts?.[this.edges.filter((edge) => value >= edge).length] : undefined;
  }

  classes(theme: Theme): Class[] {
    if (this.none) return [{ colour: NONE[theme], width: 0.6, text: "none" }, ...new Scale(this.edges.slice(1), this.colours).classes(theme)];
    const ends = this.edges.map((edge) => signed(edge, this.colours === "change"));
    const texts =
      this.texts ??
      (ends.length ? [`below ${ends[0]}`, ...ends.slice(1).map((end, k) => `${ends[k]} to ${end}`), `${ends.at(-1)} or more`] : ["all"]);
    const ordered = !KINDS.includes(this.colours);
    return texts.map((text, k) => {
      const shade = ordered ? Math.round((k * (SHADES - 1)) / Math.max(1, this.edges.length)) : k;
      return { colour: PALETTES[theme][this.colours][shade], width: this.even ? EVEN_WIDTH : WIDTHS[this.colours][shade], text };
    });
  }
}

function signed(value: number, always: boolean): string {
  const text = String(Math.abs(Number(value.toPrecision(3))));
  return value < 0 ? `−${text}` : always && value > 0 ? `+${text}` : text;
}

/** 1, 2, 5, 10, ... up to near the largest value, or even steps for values that are not skewed. */
export function flowScale(rows: Iterable<Float32Array>, skewed: boolean, colours: Colours = "flow"): Scale {
  const [low, high] = spread(rows, 0.995, skewed ? 0 : -Infinity);
  if (!(high > low)) return new Scale([], colours, undefined, !skewed);
  let edges: number[] = [];
  if (skewed && high > 0) {
    const top = Math.floor(Math.log10(high));
    for (let power = top - 3; power <= top; power++) for (const digit of [1, 2, 5]) edges.push(Number(`${digit}e${power}`));
    edges = edges.filter((edge) => edge <= high).slice(1 - SHADES);
  } else {
    const step = roundStep((high - low) / (SHADES - 2));
    for (let k = Math.ceil(low / step); k * step <= high; k++) edges.push(Number((k * step).toPrecision(6)));
    edges = edges.slice(1 - SHADES);
  }
  edges = edges.filter((edge) => edge > low);
  if (skewed && any(rows, (value) => value === 0)) return new Scale([LITTLE, ...edges], colours, undefined, false, true);
  return new Scale(edges, colours, undefined, !skewed);
}

function any(rows: Iterable<Float32Array>, holds: (value: number) => boolean): boolean {
  for (const row of rows) if (row.some(holds)) return true;
  return false;
}

/** The same on both sides of 0. */
export function changeScale(rows: Iterable<Float32Array>): Scale {
  let most = 0;
  const sizes = Array.from(rows, (row) => row.map(Math.abs));
  most = spread(sizes, 0.998)[1];
  const [digits, power] = (most > 0 ? most : 1).toExponential().split("e");
  const top = Number(`${[5, 2, 1].find((digit) => digit <= Number(digits)) ?? 1}e${power}`);
  const steps = [0.1, 0.3, 1].map((share) => Number((share * top).toPrecision(3)));
  return new Scale([...steps.map((step) => -step).reverse(), ...steps], "change");
}

export function roundStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return (([1, 2, 5].find((digit) => digit * power >= rough * (1 - 1e-9)) ?? 10) * power);
}

/** A low and a high quantile of what is known and lies above a value, from a sample. */
function spread(rows: Iterable<Float32Array>, share = 0.995, above = -Infinity): [number, number] {
  const sample: number[] = [];
  for (const row of rows) {
    const stride = Math.max(1, row.length >> 12);
    for (let i = 0; i < row.length; i += stride) if (Number.isFinite(row[i]) && row[i] > above) sample.push(row[i]);
  }
  sample.sort((a, b) => a - b);
  const at = (q: number) => sample[Math.round(q * (sample.length - 1))] ?? NaN;
  return [at(1 - share), at(share)];
}
