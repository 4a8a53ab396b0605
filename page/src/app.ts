/** The page around the map: header with search, layers and legend, time bar, panels. It knows nothing of where data come from. */

import { count, h, LocalTime, number } from "./dom";
import { CHOSEN, CLOSED, type Ground, RING } from "./drawing";
import type { Frames } from "./frames";
import type { Layer, Values } from "./layers";
import { legend } from "./legend";
import { type Found, isSmall, MapView } from "./mapview";
import { type Network, unitText } from "./network";
import type { Theme } from "./scale";
import { searchBox } from "./search";
import type { Symbol } from "./symbols";
import "./style.css";
import { TimeBar } from "./timebar";

export type Selection = Found | { street: number } | null;

/** A place where trips begin or end, with its share of them. */
export interface Spot {
  node: number;
  share: number;
  begins: boolean;
}

interface Tab {
  key: string;
  title: string;
  render: () => Node;
}

export interface AppOptions {
  title: string;
  workerUrl: string;
  tabs: (app: App) => Tab[];
  /** A click on what can be closed that the page makes use of otherwise. */
  takes?: (what: Found) => boolean;
}

const MAX_SPOT_PX = 11;
const SPOT_COLOURS = { from: "#d55e00", to: "#009e73" };

export class App {
  readonly time: LocalTime;
  selection: Selection = null;
  layer!: Layer;
  frame = 0;
  private timed?: { frames: Frames; frame: number }; // the last one of a layer with several, to come back to
  private layers: Layer[] = [];
  private closed: number[] = []; // now, whatever the layer
  private draft: number[] = []; // in what-if
  private shownClosed: number[] | null = null;
  private shownLayer: Layer | null = null;
  private rings: number[] = [];
  private spots: Spot[] = [];
  private tab = "";
  private theme: Theme;
  private readonly tabs: Tab[];
  private readonly map: MapView;
  private readonly bar: TimeBar;
  private listeners: { of: HTMLElement; update: () => void }[] = [];

  private readonly tablist = h("div", { role: "tablist", "aria-label": "Panels" });
  private readonly panel = h("div", { role: "tabpanel", id: "panel", tabindex: "0" });
  private readonly fold = h("button", { class: "fold", type: "button", "aria-label": "Show or hide the panel", onclick: () => this.setFolded(!this.aside.classList.contains("folded")) });
  private readonly widen = h("button", { class: "widen", type: "button", "aria-label": "Widen the panel", "aria-pressed": "false", onclick: () => this.setWide(!this.aside.classList.contains("wide")) }, "⇤");
  private readonly aside = h("aside", { "aria-label": "Details" }, h("div", { class: "tabs" }, this.tablist, this.widen, this.fold), this.panel);
  private readonly legend = h("div", { class: "legend" });
  private readonly chooser = h("select", { "aria-label": "What the map shows", onchange: () => this.showLayer(this.chooser.value) });
  private readonly tip = h("div", { class: "tip", hidden: true });
  readonly status = h("span", { class: "status", role: "status" });
  readonly notice = h("div", { class: "notice", role: "status", hidden: true });

  constructor(readonly network: Network, private readonly options: AppOptions) {
    this.time = new LocalTime(network.meta.timezone);
    this.theme = storedTheme() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.title = `${network.meta.name}: ${options.title}`;
    const stage = h("div", { class: "map" });
    this.bar = new TimeBar(this.time, (frame) => this.setFrame(frame));
    document.body.replaceChildren(
      h("header", {},
        h("h1", {}, network.meta.name),
        searchBox(network, (found) => this.select(found, { fly: true })),
        this.status,
        h("button", { type: "button", class: "theme", "aria-label": "Light or dark", onclick: () => this.setTheme(this.theme === "dark" ? "light" : "dark") }, "◐"),
      ),
      h("main", {},
        h("div", { class: "stage" }, stage, this.notice, h("div", { class: "legendbox" }, this.chooser, this.legend), this.tip, this.bar.element),
        this.aside,
      ),
    );
    document.documentElement.dataset.theme = this.theme;
    this.map = new MapView(stage, network, options.workerUrl, {
      clicked: (found) => found && this.options.takes?.(found) ? undefined : this.select(found),
      pointed: (found, at) => this.pointAt(found, at),
      drawn: () => { document.body.dataset.drawn = `${this.layer.key} ${this.frame}`; },
      ready: () => this.restyle(),
    });
    this.tabs = options.tabs(this);
    this.tab = this.tabs[0].key;
    this.tablist.append(...this.tabs.map(({ key, title }) =>
      h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", onclick: () => { this.show(key); this.setFolded(false); } }, title)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => storedTheme() ?? this.setTheme(event.matches ? "dark" : "light"));
    document.addEventListener("keydown", (event) => this.keyed(event));
    if (isSmall()) this.setFolded(true);
  }

  /** The layers to choose from; the one shown stays, where it is still there, and so does its frame. */
  setLayers(layers: Layer[], { show, frame, keep = false }: { show?: string; frame?: number; keep?: boolean } = {}): void {
    const before = this.layer as Layer | undefined;
    this.layers = layers;
    const wanted = show ?? before?.key;
    this.layer = layers.find(({ key }) => key === wanted) ?? layers[0];
    const { frames } = this.layer;
    if (frame !== undefined) {
      this.frame = frame;
      const timed = layers.find((layer) => layer.frames.count > 1);
      if (timed) this.timed = { frames: timed.frames, frame };
    } else if (before?.key === this.layer.key) this.frame = Math.min(this.frame, frames.count - 1);
    else this.frame = before ? frames.nearest(this.frame, before.frames) : frames.ahead;
    this.chooser.replaceChildren(...layers.map(({ key, title }) => h("option", { value: key, selected: key === this.layer.key }, title)));
    this.chooser.hidden = layers.length < 2;
    this.refreshLayer(keep);
    if (!before) this.show(this.tab);
  }

  /** `keep`: the panel stays as it is. */
  showLayer(key: string, { keep = false } = {}): void {
    const before = this.layer;
    this.layer = this.layers.find((layer) => layer.key === key) ?? before;
    this.chooser.value = this.layer.key;
    const { frames, frame } = before.frames.count === 1 && this.timed ? this.timed : { frames: before.frames, frame: this.frame };
    this.frame = this.layer.frames.nearest(frame, frames);
    this.refreshLayer(keep);
  }

  layerTitle(key: string): string | undefined {
    return this.layers.find((layer) => layer.key === key)?.title;
  }

  /** The layers with one value for each place, other than the one that is shown. */
  get stillLayers(): Layer[] {
    return this.layers.filter((layer) => layer.frames.count === 1 && layer !== this.layer);
  }

  /** Roads that lie on top are those with the most traffic. */
  setTraffic(traffic: Float32Array): void {
    this.map.drawing.setOrder(traffic);
  }

  /** Update an element with every frame, as long as it is on the page. */
  onFrame(of: HTMLElement, update: () => void): void {
    this.listeners.push({ of, update });
  }

  select(what: Selection, { fly = false } = {}): void {
    this.clear();
    this.selection = what;
    this.refreshMarks();
    this.show("place");
    if (what) this.setFolded(false);
    if (fly && what) this.map.flyTo(this.nodesOf(what));
  }

  /** Forget what was selected, and stay where the reader is. */
  clear(): void {
    this.selection = null;
    this.rings = [];
    this.setSpots([]);
    this.refreshMarks();
  }

  /** Nodes that stand out, such as the sensors that a forecast is based on. */
  ring(nodes: number[]): void {
    this.rings = nodes;
    this.refreshMarks();
  }

  setClosed(closed: number[], draft: number[]): void {
    [this.closed, this.draft] = [closed, draft];
    this.refreshMarks();
    this.drawLegend();
  }

  setSpots(spots: Spot[]): void {
    this.spots = spots;
    this.refreshSymbols();
    this.drawLegend();
  }

  /** Show a panel, drawn anew. */
  show(key: string): void {
    this.tab = key;
    if (key !== "place") this.setSpots([]);
    for (const button of this.tablist.children) {
      const here = button.id === `tab-${key}`;
      button.setAttribute("aria-selected", String(here));
      button.setAttribute("tabindex", here ? "0" : "-1");
    }
    this.panel.setAttribute("aria-labelledby", `tab-${key}`);
    this.panel.replaceChildren(this.tabs.find((tab) => tab.key === key)!.render());
    this.panel.scrollTop = 0;
  }

  /** Draw a panel anew if it is the one that is shown. */
  refresh(key: string): void {
    if (this.tab === key) this.show(key);
  }

  get shown(): string {
    return this.tab;
  }

  tell(text: string): void {
    this.notice.hidden = !text;
    this.notice.textContent = text;
  }

  /** A node as a link. */
  nodeLink(row: number | undefined, text: string): HTMLElement {
    if (row === undefined) return h("span", {}, text);
    return h("button", { type: "button", class: "link", onclick: () => this.select({ node: row }, { fly: true }) }, text);
  }

  roadLink(road: number, text = `${this.network.roadName(road)}, ${this.network.roadEnds(road)}`): HTMLElement {
    return h("button", { type: "button", class: "link", onclick: () => this.select({ road }, { fly: true }) }, text);
  }

  /** What the map shows of a place; undefined where the layer says nothing of such places. */
  valueText(what: Found): string | undefined {
    const values = "node" in what ? this.layer.nodes : this.layer.roads;
    return values ? textOf(values, this.frame, "node" in what ? what.node : what.road) : undefined;
  }

  private setFrame(frame: number): void {
    this.frame = frame;
    if (this.layer.frames.count > 1) this.timed = { frames: this.layer.frames, frame };
    const { roads, nodes } = this.layer;
    this.map.drawing.setValues(roads && at(roads, frame), nodes && at(nodes, frame));
    this.bar.set(this.layer.frames, frame);
    const closed = this.layer.closed(frame);
    if (closed !== this.shownClosed || this.layer !== this.shownLayer) {
      [this.shownClosed, this.shownLayer] = [closed, this.layer];
      this.refreshMarks();
      this.drawLegend();
    }
    this.listeners = this.listeners.filter(({ of }) => of.isConnected);
    for (const { update } of this.listeners) update();
  }

  private refreshLayer(keep = false): void {
    this.restyle();
    this.setFrame(Math.max(0, Math.min(this.frame, this.layer.frames.count - 1)));
    if (!keep) this.refresh("place");
  }

  private get colours(): Ground {
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(name).trim();
    return { ink: colour("--ink"), ground: colour("--ground"), plain: colour("--road"), shut: colour("--shut"), chosen: colour("--chosen") };
  }

  private restyle(): void {
    const { roads, nodes } = this.layer;
    const style = (of: Values | null) => (of ? { classes: of.scale.classes(this.theme), edges: of.scale.edges } : { classes: [], edges: [] });
    const first = style(roads ?? nodes);
    const own = roads && nodes && nodes.scale !== roads.scale ? style(nodes) : first;
    this.map.drawing.setStyle({ roads: first, nodes: own }, this.colours, roads === null && !this.network.onRoads);
    this.map.paint(this.colours);
    this.refreshSymbols();
  }

  private drawLegend(): void {
    const marks = { onRoads: this.network.onRoads, closed: this.shut.length > 0, planned: this.planned.length > 0, trips: this.spots.length > 0 };
    this.legend.replaceChildren(legend(this.layer, this.theme, marks));
  }

  /** Roads that are closed in what is shown. */
  private get shut(): number[] {
    return [...new Set([...this.closed, ...this.layer.closed(this.frame)])];
  }

  private get planned(): number[] {
    const shut = this.shut;
    return [...new Set([...this.draft, ...this.layer.planned])].filter((road) => !shut.includes(road));
  }

  private refreshMarks(): void {
    const [roads, nodes] = [new Map<number, number>(), new Map<number, number>()];
    const add = (to: Map<number, number>, row: number, mark: number) => to.set(row, (to.get(row) ?? 0) | mark);
    for (const road of [...this.shut, ...this.planned]) add(roads, road, CLOSED);
    for (const node of this.rings) add(nodes, node, RING);
    const { selection } = this;
    if (selection && "node" in selection) add(nodes, selection.node, CHOSEN);
    if (selection && "road" in selection) add(roads, selection.road, CHOSEN);
    if (selection && "street" in selection) for (const road of this.network.roadsOf(selection.street)) add(roads, road, CHOSEN);
    this.map.drawing.setMarks(roads, nodes);
    this.refreshSymbols();
  }

  private refreshSymbols(): void {
    const { network, layer } = this;
    const { shut } = this.colours;
    const cross = ([lon, lat]: [number, number], alpha: number): Symbol => {
      const [x, y] = network.local(lon, lat);
      return { x, y, shape: "cross", radius: 6.5, colour: shut, alpha };
    };
    const place = (node: number): [number, number] => [network.lon[node], network.lat[node]];
    const most = Math.max(...this.spots.map(({ share }) => share), 1e-9);
    const closed = this.shut.map((road) => cross(network.roadMiddle(road), 1));
    const planned = this.planned.map((road) => cross(network.roadMiddle(road), 0.75));
    const spots = this.spots.map(({ node, share, begins }): Symbol => {
      const [x, y] = network.local(...place(node));
      const shape = begins ? "disc" : "diamond";
      return { x, y, shape, radius: Math.max(1, MAX_SPOT_PX * Math.sqrt(share / most)), colour: SPOT_COLOURS[begins ? "from" : "to"], alpha: 0.8 };
    });
    const crossed = [...layer.crossed.nodes.map((node) => cross(place(node), 1)), ...layer.crossed.roads.map((road) => cross(network.roadMiddle(road), 1))];
    this.map.drawing.setSymbols(spots, [...crossed, ...closed, ...planned]);
    Object.assign(document.body.dataset, { spots: spots.length, crosses: closed.length + planned.length + crossed.length });
  }

  private nodesOf(what: NonNullable<Selection>): number[] {
    const { network } = this;
    if ("node" in what) return [what.node];
    return ("road" in what ? [what.road] : network.roadsOf(what.street)).flatMap((e) => [network.source[e], network.target[e]]);
  }

  private pointAt(found: Found | null, { x, y }: { x: number; y: number }): void {
    this.tip.hidden = found === null;
    if (!found) return;
    const { network } = this;
    const name = "node" in found ? `${network.nodeName(network.ids[found.node])}${network.sensor[found.node] ? ", sensor" : ""}` : `${network.roadName(found.road)}, ${network.roadEnds(found.road)}`;
    this.tip.replaceChildren(h("b", {}, name), h("br"), this.valueText(found) ?? "no value");
    this.tip.style.transform = `translate(${x}px, ${y}px) translate(-50%, calc(-100% - 14px))`;
  }

  private keyed(event: KeyboardEvent): void {
    const inField = event.target instanceof HTMLElement && event.target.matches("input:not([type=range]), select, textarea");
    if (event.key === "Escape" && !inField) this.select(null);
    if (event.target instanceof HTMLElement && event.target.role === "tab" && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      const next = this.tabs.findIndex(({ key }) => key === this.tab) + (event.key === "ArrowRight" ? 1 : -1);
      this.show(this.tabs[(next + this.tabs.length) % this.tabs.length].key);
      this.tablist.querySelector<HTMLElement>("[aria-selected=true]")?.focus();
    }
    if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      document.querySelector<HTMLInputElement>("#search")?.focus();
      event.preventDefault();
    }
    if (event.key === " " && !(event.target instanceof HTMLButtonElement) && !(event.target instanceof HTMLElement && event.target.matches("summary"))) {
      this.bar.toggle();
      event.preventDefault();
    }
  }

  private setFolded(folded: boolean): void {
    this.aside.classList.toggle("folded", folded);
    this.fold.textContent = folded ? "▴" : "▾";
    this.fold.setAttribute("aria-expanded", String(!folded));
    this.map.resize();
  }

  /** Room for tables and charts. */
  private setWide(wide: boolean): void {
    this.aside.classList.toggle("wide", wide);
    this.widen.textContent = wide ? "⇥" : "⇤";
    this.widen.setAttribute("aria-pressed", String(wide));
    this.map.resize();
  }

  private setTheme(theme: Theme): void {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("frigate-theme", theme);
    } catch {
      // a page opened from a file may not keep anything
    }
    this.restyle();
    this.drawLegend();
  }
}

/** The values of a frame; those of a layer with one frame hold in all. */
export function at({ rows }: Values, frame: number): Float32Array {
  return rows[Math.min(frame, rows.length - 1)];
}

/** A value in words: with its unit, or the name of its class where classes are kinds. */
export function textOf(values: Values, frame: number, row: number): string {
  const value = at(values, frame)[row];
  if (!Number.isFinite(value)) return "no value";
  return values.scale.kindOf(value) ?? `${number(value)} ${unitText(values.unit)}`;
}

function storedTheme(): Theme | null {
  try {
    const kept = localStorage.getItem("frigate-theme");
    return kept === "light" || kept === "dark" ? kept : null;
  } catch {
    return null;
  }
}

export function cityFacts(network: Network): string {
  const sensors = network.sensor.reduce((a, b) => a + b, 0);
  const [nodes, roads] = network.onRoads ? ["road", "turn"] : ["intersection", "road"];
  return `${count(network.nodes, nodes)}, ${count(sensors, "sensor")}, ${count(network.roads, roads)}.`;
}
