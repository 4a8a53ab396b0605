// Road maps: lines coloured and widened by a value. The maps of a page share the lines, the view and the road under the
// pointer, so that they can be compared. Roads are drawn into an image, class by class, the largest last. If that takes
// long, moving the map moves the image, which is drawn again when the map comes to rest.
"use strict";
(() => {
  const QUICK_MS = 25, REACH_PX = 12, RIGHT = 0.15, CHART = [250, 96];

  const bytes = text => {
    const raw = atob(text), out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out.buffer;
  };
  const decoded = ({ top, codes }) => {
    const code = new Int16Array(bytes(codes)), unit = top / 32767 ** 2;
    return i => code[i] * Math.abs(code[i]) * unit;
  };
  const number = v => (v < 0 ? "−" : "") + Math.abs(v).toLocaleString("en", { maximumSignificantDigits: Math.abs(v) < 1000 ? 3 : 4 });
  const hours = h => [h, h + 1].map(x => String(x).padStart(2, "0") + ":00").join(" to ");
  const make = (parent, tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return parent.appendChild(made);
  };

  const shared = JSON.parse(document.getElementById("road-lines").textContent);
  const points = new Float32Array(bytes(shared.points)), start = new Uint32Array(bytes(shared.start));
  const ends = new Uint32Array(bytes(shared.ends)), nameOf = new Uint32Array(bytes(shared.name));
  const twoWay = new Uint8Array(bytes(shared.two_way)), roads = start.length - 1;
  const boxes = new Float32Array(4 * roads), all = [Infinity, Infinity, -Infinity, -Infinity];
  for (let e = 0; e < roads; e++) {
    const box = [Infinity, Infinity, -Infinity, -Infinity];
    for (let i = 2 * start[e]; i < 2 * start[e + 1]; i += 2) {
      box[0] = Math.min(box[0], points[i]); box[2] = Math.max(box[2], points[i]);
      box[1] = Math.min(box[1], points[i + 1]); box[3] = Math.max(box[3], points[i + 1]);
    }
    boxes.set(box, 4 * e);
    for (const k of [0, 1]) { all[k] = Math.min(all[k], box[k]); all[k + 2] = Math.max(all[k + 2], box[k + 2]); }
  }
  const middle = e => {  // midpoint of a road's line
    const i = 2 * ((start[e] + start[e + 1] - 1) >> 1), j = Math.min(i + 2, 2 * start[e + 1] - 2);
    return [(points[i] + points[j]) / 2, (points[i + 1] + points[j + 1]) / 2];
  };

  const whole = { x: (all[0] + all[2]) / 2, y: (all[1] + all[3]) / 2, zoom: 1 };
  const view = { ...whole };  // centre, and zoom relative to the whole map
  let picked = null, pinned = false;  // { road } or { sensor }: its row
  const style = getComputedStyle(document.documentElement);  // follows light and dark mode
  const colours = new Proxy({}, { get: (_, name) => style.getPropertyValue("--" + name).trim() });
  const maps = [];
  const limited = zoom => Math.min(Math.max(zoom, 1), Math.max(1, Math.max(all[2] - all[0], all[3] - all[1]) / 60));
  const move = (x, y, zoom) => {
    view.zoom = limited(zoom);
    view.x = Math.min(Math.max(x, all[0]), all[2]);
    view.y = Math.min(Math.max(y, all[1]), all[3]);
    maps.forEach(map => map.moved());
  };
  const pick = found => {
    picked = found;
    maps.forEach(map => { map.show(); map.tell(); });
  };

  class RoadMap {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.canvas = figure.querySelector("canvas");
      this.readout = figure.querySelector(".readout");
      this.picture = document.createElement("canvas");
      for (const layer of this.data.layers) layer.value = decoded(layer.values);
      this.spread = this.data.spread && decoded(this.data.spread);
      const sensors = this.data.sensors;
      if (sensors) {
        this.sensors = { node: new Uint32Array(bytes(sensors.node)), measured: decoded(sensors.measured), estimated: decoded(sensors.estimated) };
        for (const axis of "xy") this.sensors[axis] = new Float32Array(bytes(sensors[axis]));
      }
      this.symbols = this.data.symbols.map(s => ({ shape: s.shape, road: new Uint32Array(bytes(s.road)), size: decoded(s.size), top: s.size.top }));
      this.layer = this.data.layers[0];
      this.kind = 0;
      this.hour = this.data.hour;
      this.controls();
      this.gestures();
      new ResizeObserver(() => this.resize()).observe(this.canvas);
    }

    get frame() { return 24 * this.kind + this.hour; }
    at(e, frame = this.frame) { return this.layer.value(frame * roads + e); }
    get scale() { return this.fit * view.zoom; }  // pixels per metre
    place(x, y) { return [(x - view.x) * this.scale + this.width / 2, (y - view.y) * this.scale + this.height / 2]; }
    classOf(value) {
      let k = 0;
      while (k < this.layer.edges.length && value >= this.layer.edges[k]) k++;
      return k;
    }

    resize() {
      const ratio = window.devicePixelRatio || 1;
      this.width = this.canvas.clientWidth; this.height = this.canvas.clientHeight;
      if (!this.width || !this.height) return;
      for (const c of [this.canvas, this.picture]) { c.width = this.width * ratio; c.height = this.height * ratio; }
      this.ratio = ratio;
      this.fit = 0.94 * Math.min(this.width / (all[2] - all[0] || 1), this.height / (all[3] - all[1] || 1));
      const room = Math.sqrt(this.width * this.height / Math.max(1, roads));  // pixels for each road
      this.size = Math.min(1, Math.max(0.28, room / 15));
      this.paint();
    }
    get stretch() { return this.size * Math.min(3, view.zoom ** 0.5); }  // factor for line widths

    moved() {
      if (this.paintMs < QUICK_MS) return void (this.waiting ||= requestAnimationFrame(() => { this.waiting = 0; this.paint(); }));
      this.show();
      clearTimeout(this.rest);
      this.rest = setTimeout(() => this.paint(), 150);
    }

    paint() {  // draw all roads into the image
      const began = performance.now(), pen = this.picture.getContext("2d");
      const classes = this.layer.classes, sorted = classes.map(() => []), none = [];
      const wide = 10 / this.scale, half = [this.width / 2 / this.scale + wide, this.height / 2 / this.scale + wide];
      const left = view.x - half[0], right = view.x + half[0], top = view.y - half[1], bottom = view.y + half[1];
      for (let e = 0; e < roads; e++) {
        if (boxes[4 * e] > right || boxes[4 * e + 2] < left || boxes[4 * e + 1] > bottom || boxes[4 * e + 3] < top) continue;
        const value = this.at(e);
        (value === 0 ? none : sorted[this.classOf(value)]).push(e);
      }
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.fillStyle = colours.card;
      pen.fillRect(0, 0, this.width, this.height);
      pen.lineJoin = "round";
      const order = [...classes.keys()].sort((a, b) => classes[a].width - classes[b].width);
      this.drawSymbols(pen);
      this.stroke(pen, none, colours.road, 0.6 * this.stretch);
      for (const k of order) this.stroke(pen, sorted[k], colours["f" + classes[k].colour], classes[k].width * this.stretch);
      this.drawn = { ...view };
      this.paintMs = performance.now() - began;
      this.show();
      this.canvas.dataset.drawn = this.frame;
    }

    stroke(pen, rows, colour, width, aside = width / 2 + 0.2) {
      if (!rows.length) return;
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.lineCap = width > 2 ? "round" : "butt";
      pen.beginPath();
      for (const e of rows) this.trace(pen, e, twoWay[e] ? aside : 0);
      pen.stroke();
    }

    trace(pen, e, aside) {  // trace a road, offset to the right by `aside` pixels
      const s = this.scale, first = start[e], last = start[e + 1] - 1;
      const x0 = this.width / 2 - view.x * s, y0 = this.height / 2 - view.y * s;
      let px = 0, py = 0;
      for (let i = first; i <= last; i++) {
        let x = points[2 * i] * s + x0, y = points[2 * i + 1] * s + y0;
        if (i > first && i < last && Math.abs(x - px) + Math.abs(y - py) < 1.5) continue;
        px = x; py = y;
        if (aside) {
          const a = Math.max(first, i - 1), b = Math.min(last, i + 1);
          const dx = points[2 * b] - points[2 * a], dy = points[2 * b + 1] - points[2 * a + 1];
          const by = aside / (Math.hypot(dx, dy) || 1);
          x -= dy * by; y += dx * by;
        }
        if (i === first) pen.moveTo(x, y); else pen.lineTo(x, y);
      }
    }

    show() {  // draw the image, and highlights on top
      if (!this.drawn) return;
      const pen = this.canvas.getContext("2d"), grown = view.zoom / this.drawn.zoom;
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.fillStyle = colours.card;
      pen.fillRect(0, 0, this.width, this.height);
      const [x, y] = this.place(this.drawn.x, this.drawn.y);
      pen.drawImage(this.picture, x - grown * this.width / 2, y - grown * this.height / 2, grown * this.width, grown * this.height);
      pen.lineJoin = "round";
      for (const e of this.data.marked) this.mark(pen, e);
      if (picked && picked.road !== undefined) this.mark(pen, picked.road);
      this.drawSensors(pen);
      this.ruler(pen);
    }

    mark(pen, e) {
      const { colour, width } = this.layer.classes[this.classOf(this.at(e))], w = Math.max(width * this.stretch, 2.5);
      this.stroke(pen, [e], colours.card, w + 8, w / 2);
      this.stroke(pen, [e], colours.ink, w + 4, w / 2);
      this.stroke(pen, [e], colours["f" + colour], w, w / 2);
    }

    drawSymbols(pen) {
      if (this.layer !== this.data.layers[0]) return;  // symbols belong to the first layer
      const largest = Math.min(this.width, this.height) / 55;
      for (const s of this.symbols) {
        pen.fillStyle = colours[s.shape === "round" ? "s4" : "s5"];
        pen.strokeStyle = colours.card; pen.lineWidth = 0.8; pen.globalAlpha = 0.65;
        s.road.forEach((e, i) => {
          const [x, y] = this.place(...middle(e)), r = largest * Math.sqrt(s.size(i) / s.top);
          if (r < 1.2) return;
          pen.beginPath();
          if (s.shape === "round") pen.arc(x, y, r, 0, 7);
          else { pen.moveTo(x, y - 1.25 * r); pen.lineTo(x + 1.25 * r, y); pen.lineTo(x, y + 1.25 * r); pen.lineTo(x - 1.25 * r, y); pen.closePath(); }
          pen.fill(); pen.stroke();
        });
        pen.globalAlpha = 1;
      }
    }

    drawSensors(pen) {
      if (!this.sensorsShown) return;
      const { node, x, y, measured, estimated } = this.sensors, V = node.length, r = this.half;
      const { ink, s0, s4, bg } = colours;
      pen.lineWidth = r > 3 ? 1.4 : 0.6;
      pen.strokeStyle = ink;
      for (let i = 0; i < V; i++) {
        const [cx, cy] = this.place(x[i], y[i]);
        if (cx < -9 || cy < -9 || cx > this.width + 9 || cy > this.height + 9) continue;
        const count = measured(this.frame * V + i), off = estimated(this.frame * V + i) - count;
        pen.fillStyle = Math.abs(off) <= Math.max(RIGHT * count, 1) ? bg : off > 0 ? s4 : s0;
        const w = picked && picked.sensor === i ? r + 3 : r;
        pen.fillRect(cx - w, cy - w, 2 * w, 2 * w);
        pen.strokeRect(cx - w, cy - w, 2 * w, 2 * w);
      }
    }
    get sensorsShown() { return this.sensors && this.layer === this.data.layers.at(-1); }  // only on the layer that they are compared with
    get half() { return Math.min(5, Math.max(1.2, 3.6 * this.stretch)); }  // half the side of a sensor's square

    ruler(pen) {
      const most = 120 / this.scale, ten = 10 ** Math.floor(Math.log10(most));
      const metres = ten * (most >= 5 * ten ? 5 : most >= 2 * ten ? 2 : 1), x = 14, y = this.height - 12;
      const text = metres >= 1000 ? metres / 1000 + " km" : metres + " m";
      pen.font = "12px system-ui, sans-serif";
      pen.fillStyle = colours.card;
      pen.fillRect(x - 6, y - 14, metres * this.scale + pen.measureText(text).width + 18, 21);
      pen.strokeStyle = pen.fillStyle = colours.soft;
      pen.lineWidth = 1.5;
      pen.beginPath(); pen.moveTo(x, y - 5); pen.lineTo(x, y); pen.lineTo(x + metres * this.scale, y); pen.lineTo(x + metres * this.scale, y - 5); pen.stroke();
      pen.fillText(text, x + metres * this.scale + 6, y);
    }

    find(x, y) {  // the road or sensor at a point of the canvas
      if (this.sensorsShown) {
        let best = -1, nearest = (this.half + 4) ** 2;
        for (let i = 0; i < this.sensors.node.length; i++) {
          const [cx, cy] = this.place(this.sensors.x[i], this.sensors.y[i]), gap = (cx - x) ** 2 + (cy - y) ** 2;
          if (gap < nearest) { nearest = gap; best = i; }
        }
        if (best >= 0) return { sensor: best };
      }
      const s = this.scale, mx = (x - this.width / 2) / s + view.x, my = (y - this.height / 2) / s + view.y, reach = REACH_PX / s;
      let best = -1, nearest = reach;
      for (let e = 0; e < roads; e++) {
        if (boxes[4 * e] > mx + reach || boxes[4 * e + 2] < mx - reach || boxes[4 * e + 1] > my + reach || boxes[4 * e + 3] < my - reach) continue;
        for (let i = 2 * start[e]; i < 2 * start[e + 1] - 2; i += 2) {
          const dx = points[i + 2] - points[i], dy = points[i + 3] - points[i + 1], ax = mx - points[i], ay = my - points[i + 1];
          const along = Math.min(1, Math.max(0, (ax * dx + ay * dy) / (dx * dx + dy * dy || 1)));
          const wrongSide = twoWay[e] && dx * ay - dy * ax < 0;
          const gap = Math.hypot(ax - along * dx, ay - along * dy) + (wrongSide ? 3 / s : 0);
          if (gap < nearest) { nearest = gap; best = e; }
        }
      }
      return best < 0 ? null : { road: best };
    }

    tell() {  // describe what is picked
      const box = this.readout;
      box.replaceChildren();
      if (!picked) return void make(box, "p", "Point at a road or a sensor.", "hint");
      const unit = this.layer.unit;
      if (picked.road !== undefined) {
        const e = picked.road, value = this.at(e), name = shared.names[nameOf[e]];
        const way = [0, 1].map(k => shared.ids[ends[2 * e + k]]).join(" → ");
        make(box, "h3", name || "Unnamed road");
        make(box, "p", way, "hint");
        make(make(box, "p", undefined, "now"), "b", number(value)).after(" " + unit);
        if (this.spread && this.layer === this.data.layers.at(-1)) {
          const factor = Math.exp(this.spread(e));
          make(box, "p", "Route sets differ: " + number(value / factor) + " to " + number(value * factor) + " (one standard deviation)", "hint");
        }
        this.chart(this.data.kinds.map((kind, k) => [kind, h => this.at(e, 24 * k + h), k === this.kind]));
      } else {
        const i = picked.sensor, { node, measured, estimated } = this.sensors, V = node.length;
        const [m, v] = [measured, estimated].map(of => of(this.frame * V + i));
        make(box, "h3", "Sensor " + shared.ids[node[i]]);
        make(make(box, "p", undefined, "now"), "b", number(m)).after(" counted, ");
        box.lastChild.append(make(document.createDocumentFragment(), "b", number(v)), " estimated");
        make(box, "p", unit + (m > 0 ? "; " + (v >= m ? "+" : "−") + Math.round(Math.abs(100 * v / m - 100)) + " %" : ""), "hint");
        this.chart([["counted", measured, true], ["estimated", estimated, false]].map(([name, of, main]) => [name, h => of((24 * this.kind + h) * V + i), main]));
      }
    }

    chart(series) {  // lines over the hours of the day: [name, value by hour, whether it is the main line]
      const space = this.figure.querySelector("svg").namespaceURI, [width, height] = CHART, left = 34, base = height - 16;
      const svg = document.createElementNS(space, "svg");
      const add = (tag, attributes, text) => {
        const made = svg.appendChild(document.createElementNS(space, tag));
        for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
        if (text !== undefined) made.textContent = text;
      };
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", "By hour of the day");
      const values = series.map(([, of]) => Array.from({ length: 24 }, (_, h) => of(h)));
      const top = Math.max(...values.flat()) || 1;
      const x = h => left + (width - left - 9) * h / 23, y = v => base - (base - 6) * v / top;
      add("path", { class: "grid", d: `M${left} ${base}H${width}M${left} 6H${width}` });
      add("path", { class: "ruler", d: `M${x(this.hour)} 4V${base}`, "stroke-dasharray": "2 3" });
      for (const [h, v] of [[0, 0], [0, top]]) add("text", { class: "end", x: left - 5, y: y(v) + 4 }, number(v));
      for (const h of [0, 6, 12, 18, 23]) add("text", { class: "mid", x: x(h), y: height - 3 }, h);
      values.forEach((line, k) => add("path", {
        class: "line " + (series[k][2] ? "s0" : "s4"), "stroke-dasharray": series[k][2] ? "none" : "5 3",
        d: "M" + line.map((v, h) => `${x(h).toFixed(1)} ${y(v).toFixed(1)}`).join("L"),
      }));
      this.readout.append(svg);
      const key = make(this.readout, "div", undefined, "key");
      for (const [name, , main] of series) make(make(key, "span"), "i", undefined, "stroke " + (main ? "s0" : "baseline")).after(name);
    }

    controls() {
      const find = name => this.figure.querySelector(name);
      const [slider, out, play, layers] = ["input[type=range]", "output", ".play", "select"].map(find);
      const zooms = [...this.figure.querySelectorAll(".zoom button")];
      [2, 0.5, 0].forEach((by, k) => zooms[k].addEventListener("click", () => by ? move(view.x, view.y, view.zoom * by) : move(whole.x, whole.y, 1)));
      const change = () => { this.paint(); this.tell(); };
      if (layers) {
        layers.value = "0";
        layers.addEventListener("change", () => {
          this.layer = this.data.layers[+layers.value];
          for (const key of this.figure.querySelectorAll("[data-layer]")) key.hidden = key.dataset.layer !== layers.value;
          change();
        });
      }
      slider.value = this.hour;
      const step = hour => { this.hour = hour; slider.value = hour; out.textContent = hours(hour); change(); };
      const stop = () => { clearInterval(this.playing); this.playing = 0; play.textContent = "Play"; };
      slider.addEventListener("input", () => { stop(); step(+slider.value); });
      for (const radio of this.figure.querySelectorAll("[type=radio]")) {
        radio.checked = +radio.value === this.kind;
        radio.addEventListener("change", () => { this.kind = +radio.value; change(); });
      }
      play.addEventListener("click", () => {
        if (this.playing) return stop();
        play.textContent = "Stop";
        this.playing = setInterval(() => step((this.hour + 1) % 24), 700);
      });
    }

    gestures() {
      const canvas = this.canvas, down = new Map();  // pointer -> position
      let travelled = 0;
      const where = event => { const seat = canvas.getBoundingClientRect(); return [event.clientX - seat.left, event.clientY - seat.top]; };
      const zoomAt = ([x, y], by) => {  // the point at x, y stays in place
        const before = view.zoom, dx = (x - this.width / 2) / this.fit, dy = (y - this.height / 2) / this.fit;
        const zoom = limited(before * by);
        move(view.x + dx / before - dx / zoom, view.y + dy / before - dy / zoom, zoom);
      };
      canvas.addEventListener("pointerdown", event => {
        canvas.setPointerCapture(event.pointerId);
        down.set(event.pointerId, where(event));
        if (down.size === 1) travelled = 0;
      });
      canvas.addEventListener("pointermove", event => {
        const now = where(event), before = down.get(event.pointerId);
        if (!before) return void (pinned || pick(this.find(...now)));
        const others = [...down].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
        down.set(event.pointerId, now);
        const gap = at => Math.hypot(at[0] - others[0][0], at[1] - others[0][1]);
        travelled += Math.hypot(now[0] - before[0], now[1] - before[1]);
        if (others.length) zoomAt([(now[0] + others[0][0]) / 2, (now[1] + others[0][1]) / 2], gap(now) / (gap(before) || 1));
        const share = 1 + others.length;
        move(view.x - (now[0] - before[0]) / this.scale / share, view.y - (now[1] - before[1]) / this.scale / share, view.zoom);
      });
      const lift = event => {
        const tapped = down.delete(event.pointerId) && event.type === "pointerup" && travelled < 5 && !down.size;
        if (!tapped) return;
        const found = this.find(...where(event));
        pinned = found !== null;
        pick(found);
      };
      canvas.addEventListener("pointerup", lift);
      canvas.addEventListener("pointercancel", lift);
      canvas.addEventListener("pointerleave", () => { if (!pinned && !down.size) pick(null); });
      canvas.addEventListener("dblclick", event => zoomAt(where(event), 2));
      canvas.addEventListener("wheel", event => {
        event.preventDefault();
        zoomAt(where(event), Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)));
      }, { passive: false });
      canvas.addEventListener("keydown", event => {
        const by = 60 / this.scale;
        const acts = {
          ArrowLeft: [-by, 0, 1], ArrowRight: [by, 0, 1], ArrowUp: [0, -by, 1], ArrowDown: [0, by, 1],
          "+": [0, 0, 1.5], "=": [0, 0, 1.5], "-": [0, 0, 1 / 1.5],
        };
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key === "0") move(whole.x, whole.y, 1);
        else if (event.key === "Escape") { pinned = false; pick(null); }
        else if (acts[event.key]) { const [dx, dy, grow] = acts[event.key]; move(view.x + dx, view.y + dy, view.zoom * grow); }
        else return;
        event.preventDefault();
      });
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => maps.forEach(map => map.paint()));
  for (const figure of document.querySelectorAll("figure.roads")) maps.push(new RoadMap(figure));
  maps.forEach(map => map.tell());
})();
