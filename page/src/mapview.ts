/** The map itself: MapLibre with our drawing in it, street names, and what lies under the pointer. */

import { Map as MapLibre, NavigationControl, ScaleControl, setWorkerUrl, type StyleSpecification } from "maplibre-gl";
import "maplibre-gl/dist/maplibre-gl.css";
import { Drawing, type Ground } from "./drawing";
import { bounds, Nearby, type Network } from "./network";

export type Found = { node: number } | { road: number };

export interface MapEvents {
  clicked: (found: Found | null) => void;
  pointed: (found: Found | null, at: { x: number; y: number }) => void;
  drawn: () => void;
  ready: () => void; // the style is there, or there again
}

export class MapView {
  readonly drawing: Drawing;
  private readonly map: MapLibre;
  private nearby: Nearby | null = null;

  constructor(container: HTMLElement, private readonly network: Network, workerUrl: string, events: MapEvents) {
    setWorkerUrl(workerUrl);
    const { basemap, basemap_attribution: attribution } = network.meta;
    this.map = new MapLibre({
      container,
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
      events.ready();
      this.map.once("idle", () => this.addStreetNames(events.ready));
    });
    this.map.on("render", () => {
      if (this.map.getLayer(this.drawing.id)) events.drawn();
    });
    this.map.on("click", ({ lngLat }) => events.clicked(this.findAt(lngLat.lng, lngLat.lat)));
    this.map.on("mousemove", ({ lngLat, point }) => events.pointed(this.findAt(lngLat.lng, lngLat.lat), point));
    this.map.on("mouseout", () => events.pointed(null, { x: 0, y: 0 }));
  }

  paint(colours: Ground): void {
    if (this.map.getLayer("ground")) this.map.setPaintProperty("ground", "background-color", colours.ground);
    if (this.map.getLayer("names")) {
      this.map.setPaintProperty("names", "text-color", colours.ink);
      this.map.setPaintProperty("names", "text-halo-color", colours.ground);
    }
  }

  resize(): void {
    this.map.resize();
  }

  /** Show these nodes, no nearer than needed to tell intersections apart. */
  flyTo(nodes: number[]): void {
    const { network } = this;
    const [west, south, east, north] = bounds(nodes.map((i) => network.lon[i]), nodes.map((i) => network.lat[i]));
    const spacing = (network.typicalLength / network.metres) * 512; // pixels at zoom 0
    const maxZoom = Math.max(this.map.getZoom(), Math.log2(70 / spacing));
    const animate = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const camera = this.map.cameraForBounds([west, south, east, north], { padding: padding(), maxZoom });
    if (camera) this.map.easeTo({ ...camera, duration: animate ? 500 : 0 });
  }

  private findAt(lon: number, lat: number): Found | null {
    this.nearby ??= new Nearby(this.network);
    const pixel = this.network.metres / (512 * 2 ** this.map.getZoom()); // metres
    const nodes = Math.max(...this.drawing.radii());
    const [x, y] = this.network.local(lon, lat);
    return this.nearby.find(x, y, nodes > 0 ? (nodes + 4) * pixel : 0, 9 * pixel, 2 * this.drawing.stretch * pixel);
  }

  /** The name of each street once, at its longest piece; those of long streets from afar. */
  private addStreetNames(added: () => void): void {
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
    added();
  }
}

export function isSmall(): boolean {
  return matchMedia("(max-width: 760px)").matches;
}

function padding(): { top: number; bottom: number; left: number; right: number } {
  if (isSmall()) return { top: 60, bottom: 95, left: 20, right: 20 };
  return { top: 30, bottom: 95, left: innerWidth > 1000 ? 260 : 40, right: 60 };
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
