/** The page around the map: header with search, layers and legend, time bar, panels. It knows nothing of where data come from. */

import { Map as MapLibre, Marker, NavigationControl, ScaleControl, setWorkerUrl, type StyleSpecification } from "maplibre-gl";
import "maplibre-gl/dist/maplibre-gl.css";
import { away, count, h, LocalTime, number } from "./dom";
import { CHOSEN, CLOSED, Drawing, RING } from "./drawing";
import type { Layer } from "./layers";
import { bounds, Nearby, type Network } from "./network";
import type { Theme } from "./scale";
import { searchBox } from "./search";
import "./style.css";

export type Selection = { node: number } | { road: number } | { street: number } | null;

interface Tab {
  key: string;
  title: string;
  render: () => Node;
}

export interface AppOptions {
  workerUrl: string;
  tabs: (app: App) => Tab[];
  /** A click on what can be closed that the page makes use of otherwise. */
  takes?: (what: { node: number } | { road: number }) => boolean;
}

const PLAY_MS = 700;

export class App {
  readonly time: LocalTime;
  selection: Selection = null;
  private layers: Layer[] = [];
  layer!: Layer;
  frame = 0;
  private closed: number[] = [];
  private draft: number[] = [];
  private rings: number[] = [];
  private markers: Marker[] = [];
  private spots: Marker[] = [];
  private nearby: Nearby | null = null;
  private tab = "";
  private playing = 0;
  private theme: Theme;
  private readonly tabs: Tab[];
  private readonly map: MapLibre;
  private readonly drawing: Drawing;
  private shownTime = NaN;
  private readonly listeners: (() => void)[] = [];
  private readonly layerListeners: ((layer: Layer) => void)[] = [];

  private readonly tablist = h("div", { role: "tablist", "aria-label": "Panels" });
  private readonly panel = h("div", { role: "tabpanel", id: "panel", tabindex: "0" });
  private readonly fold = h("button", { class: "fold", type: "button", "aria-label": "Show or hide the panel", onclick: () => this.setFolded(!this.aside.classList.contains("folded")) });
  private readonly aside = h("aside", { "aria-label": "Details" }, h("div", { class: "tabs" }, this.tablist, this.fold), this.panel);
  private readonly legend = h("div", { class: "legend" });
  private readonly chooser = h("select", { "aria-label": "What the map shows", onchange: () => this.showLayer(this.chooser.value) });
  private readonly slider = h("input", { type: "range", min: "0", step: "1", "aria-label": "Time", oninput: () => this.setFrame(Number(this.slider.value)) });
  private readonly play = h("button", { type: "button", class: "play", "aria-label": "Play", onclick: () => this.setPlaying(!this.playing) }, "▶");
  private readonly clock = h("output", { class: "clock" });
  private readonly nowMark = h("span", { class: "nowmark" });
  private readonly bar = h("div", { class: "timebar", role: "group", "aria-label": "Time" }, this.play, h("div", { class: "track" }, this.slider, this.nowMark), this.clock);
  private readonly tip = h("div", { class: "tip", hidden: true });
  readonly status = h("span", { class: "status", role: "status" });
  readonly notice = h("div", { class: "notice", role: "status", hidden: true });

  constructor(readonly network: Network, private readonly options: AppOptions) {
    this.time = new LocalTime(network.meta.timezone);
    this.theme = storedTheme() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.title = `${network.meta.name}: traffic`;
    const stage = h("div", { class: "map" });
    document.body.replaceChildren(
      h("header", {},
        h("h1", {}, network.meta.name),
        searchBox(network, (found) => this.select(found, { fly: true })),
        this.status,
        h("button", { type: "button", class: "theme", "aria-label": "Light or dark", onclick: () => this.setTheme(this.theme === "dark" ? "light" : "dark") }, "◐"),
      ),
      h("main", {},
        h("div", { class: "stage" }, stage, this.notice, h("div", { class: "legendbox" }, this.chooser, this.legend), this.tip, this.bar),
        this.aside,
      ),
    );
    setWorkerUrl(options.workerUrl);
    const { basemap, basemap_attribution: attribution } = network.meta;
    this.map = new MapLibre({
      container: stage,
      style: style(basemap, attribution),
      bounds: network.bounds,
      fitBoundsOptions: { padding: padding() },
      pitchWithRotate: false,
      dragRotate: false,
      touchPitch: false,
      rollEnabled: false,
      attributionControl: basemap ? { compact: true } : false,
      fadeDuration: 0,
    });
    this.map.touchZoomRotate.disableRotation();
    this.map.keyboard.disableRotation();
    this.map.addControl(new NavigationControl({ showCompass: false }), "top-right");
    this.map.addControl(new ScaleControl(), "bottom-right");
    this.drawing = new Drawing(network);
    this.map.on("style.load", () => {
      this.map.addLayer(this.drawing);
      this.restyle();
      this.map.once("idle", () => this.addStreetNames());
    });
    this.map.on("render", () => {
      if (this.map.getLayer(this.drawing.id)) document.body.dataset.drawn = `${this.layer.key} ${this.frame}`;
    });
    this.map.on("click", (event) => this.clicked(event.lngLat.lng, event.lngLat.lat));
    this.map.on("mousemove", (event) => this.pointAt(event.lngLat.lng, event.lngLat.lat, event.point));
    this.map.on("mouseout", () => this.pointAt(NaN, NaN, { x: 0, y: 0 }));
    this.tabs = options.tabs(this);
    this.tab = this.tabs[0].key;
    this.tablist.append(...this.tabs.map(({ key, title }) =>
      h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", onclick: () => { this.show(key); this.setFolded(false); } }, title)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => storedTheme() ?? this.setTheme(event.matches ? "dark" : "light"));
    document.addEventListener("keydown", (event) => this.keyed(event));
    if (matchMedia("(max-width: 760px)").matches) this.setFolded(true);
    document.documentElement.dataset.theme = this.theme;
  }

  /** The layers to choose from; the one shown stays, where it is still there, and so does its frame. */
  setLayers(layers: Layer[], show?: string, frame0?: number): void {
    const [before, frame] = [this.layer as Layer | undefined, this.frame];
    const first = before === undefined;
    this.layers = layers;
    const wanted = show ?? before?.key;
    this.layer = layers.find(({ key }) => key === wanted) ?? layers[0];
    this.frame = frame0 ?? (first || before.key !== this.layer.key ? this.nearestFrame() : Math.min(frame, this.layer.times.length - 1));
    this.chooser.replaceChildren(...layers.map(({ key, title }) => h("option", { value: key, selected: key === this.layer.key }, title)));
    this.chooser.hidden = layers.length < 2;
    this.refreshLayer();
    if (first) this.show(this.tab);
  }

  showLayer(key: string): void {
    this.layer = this.layers.find((layer) => layer.key === key) ?? this.layer;
    this.chooser.value = this.layer.key;
    this.frame = this.nearestFrame();
    this.refreshLayer();
  }

  /** Roads that lie on top are those with the most traffic. */
  setTraffic(traffic: Float32Array): void {
    this.drawing.setOrder(traffic);
  }

  onFrame(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Called now and whenever another layer is shown. */
  onLayer(listener: (layer: Layer) => void): void {
    this.layerListeners.push(listener);
    listener(this.layer);
  }

  select(what: Selection, { fly = false } = {}): void {
    this.clear();
    this.selection = what;
    this.refreshMarks();
    this.show("place");
    if (what) this.setFolded(false);
    if (fly && what) this.flyTo(what);
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
    for (const marker of this.markers) marker.remove();
    this.markers = [...new Set([...closed, ...draft])].map((road) => {
      const planned = !closed.includes(road);
      const element = h("span", { class: planned ? "cross planned" : "cross", "aria-hidden": "true" }, "✕");
      return new Marker({ element }).setLngLat(this.network.roadMiddle(road)).addTo(this.map);
    });
    this.refreshMarks();
    this.drawLegend();
  }

  /** Places with a share each, as where trips begin and end. */
  setSpots(spots: { lon: number; lat: number; share: number; css: string }[]): void {
    for (const marker of this.spots) marker.remove();
    const most = Math.max(...spots.map(({ share }) => share), 1e-9);
    this.spots = spots.map(({ lon, lat, share, css }) => {
      const size = 5 + 17 * Math.sqrt(share / most);
      const element = h("span", { class: `spot ${css}`, style: `width:${size}px;height:${size}px`, "aria-hidden": "true" });
      return new Marker({ element }).setLngLat([lon, lat]).addTo(this.map);
    });
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

  roadLink(road: number): HTMLElement {
    return h("button", { type: "button", class: "link", onclick: () => this.select({ road }, { fly: true }) }, `${this.network.roadName(road)}, ${this.network.roadEnds(road)}`);
  }

  valueText(value: number): string {
    return Number.isFinite(value) ? `${number(value)} ${this.layer.unit}` : "no value";
  }

  private setFrame(frame: number): void {
    this.frame = frame;
    const { layer } = this;
    this.drawing.setValues(layer.roads ? layer.roads[Math.min(frame, layer.roads.length - 1)] : null, layer.nodes ? layer.nodes[Math.min(frame, layer.nodes.length - 1)] : null);
    this.slider.value = String(frame);
    if (layer.times.length) this.shownTime = layer.times[frame];
    const [at, now] = [layer.times[frame], layer.ahead > 0 ? layer.times[layer.ahead] : NaN];
    const when = at === undefined ? layer.note : `${this.time.day(at)}${Number.isFinite(now) ? `, ${frame === layer.ahead ? "next step" : away(at - now)}` : ""}`;
    this.clock.textContent = when;
    this.slider.setAttribute("aria-valuetext", when);
    for (const listener of this.listeners) listener();
  }

  private refreshLayer(): void {
    const frames = this.layer.times.length;
    this.slider.max = String(Math.max(0, frames - 1));
    this.bar.classList.toggle("still", frames < 2);
    if (frames < 2) this.setPlaying(false);
    this.nowMark.hidden = !(this.layer.ahead > 0 && frames > 1);
    this.nowMark.style.setProperty("--at", String(this.layer.ahead / Math.max(1, frames - 1)));
    this.restyle();
    this.setFrame(Math.max(0, Math.min(this.frame, frames - 1)));
    this.drawLegend();
    this.refresh("place");
    for (const listener of this.layerListeners) listener(this.layer);
  }

  private restyle(): void {
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(name).trim();
    const ground = { ink: colour("--ink"), ground: colour("--ground"), plain: colour("--road"), shut: colour("--shut"), chosen: colour("--chosen") };
    this.drawing.setStyle(this.layer.scale.classes(this.theme), this.layer.scale.edges, ground, this.layer.roads === null && !this.network.onRoads);
    if (this.map.getLayer("ground")) this.map.setPaintProperty("ground", "background-color", ground.ground);
    if (this.map.getLayer("names")) {
      this.map.setPaintProperty("names", "text-color", ground.ink);
      this.map.setPaintProperty("names", "text-halo-color", ground.ground);
    }
  }

  private drawLegend(): void {
    const { layer } = this;
    const classes = layer.scale.classes(this.theme);
    const mark = (kind: string, text: string) => h("li", {}, h("i", { class: kind }), text);
    this.legend.replaceChildren(
      h("details", { open: !matchMedia("(max-width: 760px)").matches },
        h("summary", {}, layer.unit),
        h("ul", {},
          ...classes.map(({ colour, width, text }) =>
            h("li", {}, layer.roads || this.network.onRoads ? h("i", { class: "lane", style: `background:${colour};height:${width + 1}px` }) : h("i", { class: "dot", style: `background:${colour}` }), text)),
        ),
        h("ul", {},
          mark("sensor", "sensor"),
          !this.network.onRoads && mark("inferred", "no sensor"),
          this.closed.length > 0 && mark("shut", "closed"),
          this.draft.length > 0 && mark("shut planned", "closes in what-if"),
        ),
      ),
    );
  }

  private refreshMarks(): void {
    const [roads, nodes] = [new Map<number, number>(), new Map<number, number>()];
    const add = (to: Map<number, number>, row: number, mark: number) => to.set(row, (to.get(row) ?? 0) | mark);
    for (const road of [...this.closed, ...this.draft]) add(roads, road, CLOSED);
    for (const node of this.rings) add(nodes, node, RING);
    const { selection } = this;
    if (selection && "node" in selection) add(nodes, selection.node, CHOSEN);
    if (selection && "road" in selection) add(roads, selection.road, CHOSEN);
    if (selection && "street" in selection) for (const road of this.network.roadsOf(selection.street)) add(roads, road, CHOSEN);
    this.drawing.setMarks(roads, nodes);
  }

  private flyTo(what: NonNullable<Selection>): void {
    const { network } = this;
    const rows = "node" in what ? [what.node] : ("road" in what ? [what.road] : network.roadsOf(what.street)).flatMap((e) => [network.source[e], network.target[e]]);
    const [west, south, east, north] = bounds(rows.map((i) => network.lon[i]), rows.map((i) => network.lat[i]));
    const spacing = network.typicalLength / network.metres * 512; // pixels at zoom 0
    const zoom = Math.max(this.map.getZoom(), Math.log2(70 / spacing));
    const animate = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const camera = this.map.cameraForBounds([west, south, east, north], { padding: padding(), maxZoom: zoom });
    if (camera) this.map.easeTo({ ...camera, duration: animate ? 500 : 0 });
  }

  private findAt(lon: number, lat: number): { node: number } | { road: number } | null {
    if (!Number.isFinite(lon)) return null;
    this.nearby ??= new Nearby(this.network);
    const pixel = this.network.metres / (512 * 2 ** this.map.getZoom()); // metres
    const nodes = Math.max(...this.drawing.radii());
    const shift = 1.5 * this.drawing.stretch;
    const [x, y] = this.network.local(lon, lat);
    return this.nearby.find(x, y, nodes > 0 ? (nodes + 4) * pixel : 0, 10 * pixel, shift * pixel);
  }

  private clicked(lon: number, lat: number): void {
    const found = this.findAt(lon, lat);
    if (found && this.options.takes?.(found)) return;
    this.select(found);
  }

  private pointAt(lon: number, lat: number, { x, y }: { x: number; y: number }): void {
    const found = this.findAt(lon, lat);
    this.tip.hidden = found === null;
    this.map.getCanvas().style.cursor = found ? "pointer" : "";
    if (!found) return;
    const { network, layer, frame } = this;
    const values = "node" in found ? layer.nodes : layer.roads;
    const value = values ? values[Math.min(frame, values.length - 1)]["node" in found ? found.node : found.road] : NaN;
    const name = "node" in found ? `${network.nodeName(network.ids[found.node])}${network.sensor[found.node] ? ", sensor" : ""}` : `${network.roadName(found.road)}, ${network.roadEnds(found.road)}`;
    this.tip.replaceChildren(h("b", {}, name), h("br"), this.valueText(value));
    this.tip.style.transform = `translate(${x}px, ${y}px) translate(-50%, calc(-100% - 14px))`;
  }

  private keyed(event: KeyboardEvent): void {
    const inField = event.target instanceof HTMLElement && event.target.matches("input:not([type=range]), select, textarea");
    if (event.key === "Escape" && !inField) this.select(null);
    if (event.target instanceof HTMLElement && event.target.role === "tab" && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      const at = this.tabs.findIndex(({ key }) => key === this.tab) + (event.key === "ArrowRight" ? 1 : -1);
      this.show(this.tabs[(at + this.tabs.length) % this.tabs.length].key);
      this.tablist.querySelector<HTMLElement>("[aria-selected=true]")?.focus();
    }
    if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      document.querySelector<HTMLInputElement>("#search")?.focus();
      event.preventDefault();
    }
    if (event.key === " " && !(event.target instanceof HTMLButtonElement) && !(event.target instanceof HTMLElement && event.target.matches("summary"))) {
      this.setPlaying(!this.playing);
      event.preventDefault();
    }
  }

  private setPlaying(on: boolean): void {
    clearInterval(this.playing);
    this.playing = on && this.layer.times.length > 1 ? window.setInterval(() => this.setFrame((this.frame + 1) % this.layer.times.length), PLAY_MS) : 0;
    this.play.textContent = this.playing ? "⏸" : "▶";
    this.play.setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  private setFolded(folded: boolean): void {
    this.aside.classList.toggle("folded", folded);
    this.fold.textContent = folded ? "▴" : "▾";
    this.fold.setAttribute("aria-expanded", String(!folded));
    this.map?.resize();
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

  /** The frame of the layer at the time that was shown last. */
  private nearestFrame(): number {
    const [{ times, ahead }, time] = [this.layer, this.shownTime];
    if (!Number.isFinite(time) || !times.length) return Math.min(ahead, Math.max(0, times.length - 1));
    return times.reduce((best, each, i) => (Math.abs(each - time) < Math.abs(times[best] - time) ? i : best), 0);
  }

  /** The name of each street once, at its longest piece; those of long streets from afar. */
  private addStreetNames(): void {
    const { network } = this;
    if (network.onRoads) return; // the names are those of turns
    const longest = new Map<number, { road: number; length: number; total: number }>();
    for (let e = 0; e < network.roads; e++) {
      if (!network.street[e]) continue;
      const [a, b] = [2 * network.source[e], 2 * network.target[e]];
      const length = Math.hypot(network.nodeXY[a] - network.nodeXY[b], network.nodeXY[a + 1] - network.nodeXY[b + 1]);
      const there = longest.get(network.street[e]) ?? { road: e, length: 0, total: 0 };
      there.total += length;
      if (length > there.length) [there.road, there.length] = [e, length];
      longest.set(network.street[e], there);
    }
    const ranked = [...longest].sort(([, a], [, b]) => b.total - a.total);
    const features = ranked.map(([street, { road }], rank) => {
      const coordinates: [number, number][] = [];
      for (let p = network.lineStart[road]; p < network.lineStart[road + 1]; p++) coordinates.push(network.lonLat(network.lineXY[2 * p], network.lineXY[2 * p + 1]));
      return { type: "Feature" as const, geometry: { type: "LineString" as const, coordinates }, properties: { name: network.meta.street_names[street], rank } };
    });
    if (!features.length) return;
    this.map.addSource("names", { type: "geojson", data: { type: "FeatureCollection", features } });
    const zoom = Math.log2(45 / ((network.typicalLength / network.metres) * 512)); // at which intersections lie 45 pixels apart
    this.map.addLayer({
      id: "names", type: "symbol", source: "names", minzoom: Math.max(0, Math.min(22, zoom)),
      layout: { "text-field": ["get", "name"], "text-size": 11.5, "symbol-placement": "line-center", "symbol-sort-key": ["get", "rank"], "text-font": ["sans-serif"] },
      paint: { "text-halo-width": 1.6 },
    });
    this.restyle();
  }
}

function padding(): { top: number; bottom: number; left: number; right: number } {
  const small = matchMedia("(max-width: 760px)").matches;
  return small ? { top: 60, bottom: 95, left: 20, right: 20 } : { top: 30, bottom: 95, left: innerWidth > 1000 ? 260 : 40, right: 60 };
}

function style(basemap?: string, attribution?: string): StyleSpecification {
  const ground = { id: "ground", type: "background" as const, paint: { "background-color": "#f6f7f9" } };
  if (!basemap) return { version: 8, sources: {}, layers: [ground] };
  return {
    version: 8,
    sources: { basemap: { type: "raster", tiles: [basemap], tileSize: 256, attribution } },
    layers: [ground, { id: "basemap", type: "raster", source: "basemap", paint: { "raster-opacity": 0.45, "raster-saturation": -0.8 } }],
  };
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
