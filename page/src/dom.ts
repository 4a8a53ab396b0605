/** Elements made of plain text: nothing that is shown is ever read as HTML. */

type Child = Node | string | number | null | undefined | false;
type Props = Record<string, unknown>;

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), props, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill<E extends Element>(element: E, props: Props, children: Child[]): E {
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value as EventListener);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child): child is Node | string | number => child !== null && child !== undefined && child !== false).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export function number(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en-GB", { maximumFractionDigits: digits }).replace("-", "−");
}

export function percent(share: number): string {
  return `${Math.round(100 * share)}\u00a0%`.replace("-", "−");
}

/** "1 road", "2 roads" */
export function count(n: number, word: string, plural = `${word}s`): string {
  return `${n.toLocaleString("en-GB")} ${n === 1 ? word : plural}`;
}

/** Times of the city, of one zone. */
export class LocalTime {
  private readonly clock: Intl.DateTimeFormat;
  private readonly full: Intl.DateTimeFormat;
  private readonly days: Intl.DateTimeFormat;
  private readonly months: Intl.DateTimeFormat;
  private readonly years: Intl.DateTimeFormat;
  private readonly parts: Intl.DateTimeFormat;

  constructor(timeZone: string) {
    const format = (options: Intl.DateTimeFormatOptions) => new Intl.DateTimeFormat("en-GB", { timeZone, ...options });
    this.clock = format({ hour: "2-digit", minute: "2-digit" });
    this.full = format({ weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
    this.days = format({ day: "numeric", month: "short" });
    this.months = format({ month: "short", year: "numeric" });
    this.years = format({ year: "numeric" });
    this.parts = format({ year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric", hourCycle: "h23" });
  }

  hour(time: number): string {
    return this.clock.format(time);
  }

  day(time: number): string {
    return this.full.format(time);
  }

  date(time: number): string {
    return this.days.format(time);
  }

  month(time: number): string {
    return this.months.format(time);
  }

  year(time: number): string {
    return this.years.format(time);
  }

  /** Local time minus UTC at a time, in milliseconds. */
  offset(time: number): number {
    const of = Object.fromEntries(this.parts.formatToParts(time).map(({ type, value }) => [type, Number(value)]));
    return Date.UTC(of.year, of.month - 1, of.day, of.hour, of.minute, of.second) - Math.floor(time / 1000) * 1000;
  }
}

/** "in 20 min", "35 min ago" */
export function away(ms: number): string {
  const minutes = Math.round(Math.abs(ms) / 60_000);
  const text = minutes < 120 ? `${minutes} min` : minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
  return minutes === 0 ? "now" : ms > 0 ? `in ${text}` : `${text} ago`;
}
