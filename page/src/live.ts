/** The page of `frigate serve`: data come from the API, and come again when the service has a new forecast. */

import workerUrl from "maplibre-gl/dist/maplibre-gl-worker.mjs?url";
import { App } from "./app";
import { h } from "./dom";
import { accuracyPanel, later, sensorsPanel } from "./health";
import { type Closure, Forecast, type Layer, throughLayer } from "./layers";
import type { Found } from "./mapview";
import { Network } from "./network";
import { historyChart, introPanel, placePanel } from "./place";
import { Service, type Trips } from "./service";
import { WhatIf } from "./whatif";

async function start(): Promise<void> {
  document.body.append(h("p", { class: "wait", role: "status" }, "Loading the map…"));
  const service = new Service(askToken);
  const [network, first] = await persist(async () => {
    await service.signInByLink();
    const roads = await service.network();
    return [roads, await service.forecast(roads.meta.level ?? null)] as const;
  }, (error) => {
    document.querySelector(".wait")!.textContent = `${error.message}. Trying again…`;
  }).then(([roads, values]) => [new Network(roads), values] as const);
  let forecast = new Forecast(first, network);
  let closures: Closure[] = forecast.meta.closures;

  const ids = network.meta.node_ids;
  const level = network.meta.level ?? null;
  const app = new App(network, {
    title: "traffic",
    workerUrl,
    takes: (what) => {
      if (!whatIf.on || ("node" in what && !network.onRoads)) return false;
      if ("node" in what) whatIf.toggleAll(network.roadsAt(what.node));
      else whatIf.toggle(what.road);
      app.show("whatif");
      return true;
    },
    tabs: (app) => [
      { key: "place", title: "Place", render: () => placePanel(app, {
        intro: () => introPanel(app, forecast.issued, forecast.meta.notices),
        node: async (row) => {
          const details = await service.node(ids[row], level);
          return { chart: () => historyChart(app, details, forecast.issued), mainSensors: details.main_sensors };
        },
        trips: (what) => (network.meta.has_demand ? trips(what) : null),
        actions: (roads) => [h("p", {}, h("button", { type: "button", class: "main", onclick: () => whatIf.start(roads) }, "What if it closes?"))],
      }) },
      { key: "whatif", title: "What if", render: () => whatIf.panel() },
      { key: "accuracy", title: "Accuracy", render: () => later(service.accuracy(), (accuracy) => accuracyPanel(app, accuracy)) },
      { key: "sensors", title: "Sensors", render: () => later(service.sensors(), (sensors) => sensorsPanel(app, sensors, forecast.issued)) },
    ],
  });
  const whatIf = new WhatIf(app, service, () => closures, showAll, readClosures);

  let through: Layer[] = []; // the routes of the trips through what is selected

  let asked = { key: "", answer: null as Promise<Trips> | null };

  /** The trips through a road, asked for once for every forecast. */
  function trips(what: Found): Promise<Trips> {
    const key = `${JSON.stringify(what)} ${forecast.issued}`;
    if (asked.key !== key || !asked.answer) asked = { key, answer: askTrips(what) };
    return asked.answer!;
  }

  /** They come with their flow as a layer. */
  async function askTrips(what: Found): Promise<Trips> {
    const name = "node" in what ? network.nodeName(ids[what.node]) : `${network.roadName(what.road)}, ${network.roadEnds(what.road)}`;
    const found = await service.trips("node" in what ? { node: ids[what.node] } : { source: ids[network.source[what.road]], target: ids[network.target[what.road]] });
    through = [throughLayer(found, name, network)];
    showAll(undefined, true);
    return found.meta;
  }

  function showAll(show?: string, keep = false): void {
    app.setLayers([...forecast.layers, ...through, ...whatIf.layers], { show, keep });
    const closed = closures.filter(({ state }) => state !== "planned").map(({ source, target }) => network.road(source, target)).filter((road) => road !== undefined);
    app.setClosed(closed, whatIf.roads);
  }

  async function readForecast(): Promise<void> {
    const answer = await service.forecast(level);
    if (answer.meta.version !== network.meta.version) return location.reload();
    forecast = new Forecast(answer, network);
    closures = forecast.meta.closures;
    app.setTraffic(forecast.traffic);
    showAll();
    tellAge();
    if (app.shown === "accuracy" || app.shown === "sensors" || !app.selection) app.refresh(app.shown);
  }

  async function readClosures(): Promise<void> {
    closures = await service.closures();
    showAll();
    app.refresh("whatif");
  }

  function tellAge(): void {
    app.tell(forecast.meta.stale ? `This forecast is old: it was made at ${app.time.day(forecast.issued)}.` : "");
  }

  app.setTraffic(forecast.traffic);
  showAll();
  tellAge();
  app.status.textContent = "connecting";
  void service.session().then(({ name, role, by }) => {
    if (by !== "cookie") return;
    const leave = () => void service.signOut().then(() => location.reload());
    app.status.after(h("button", { type: "button", class: "leave", title: `Signed in as ${name} (${role})`, onclick: leave }, "Sign out"));
  }, () => undefined);
  let lost = false;
  void service.follow((event) => {
    app.status.textContent = event === "lost" ? "reconnecting…" : "live";
    app.status.classList.toggle("lost", event === "lost");
    document.body.dataset.connection = event === "lost" ? "lost" : "live";
    const back = event === "open" && lost;
    lost = event === "lost";
    if (event === "forecast" || back) readForecast().catch(() => app.tell("The latest forecast could not be read."));
    if (event === "closures") readClosures().catch(() => app.tell("The closures could not be read."));
  });
}

/** Try until it works. */
async function persist<T>(attempt: () => Promise<T>, failed: (error: Error) => void): Promise<T> {
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      failed(error as Error);
      await new Promise((resume) => setTimeout(resume, 2000));
    }
  }
}

/** A dialog that asks for a token, and says why the last one was refused. */
function askToken(refused: string): Promise<string> {
  return new Promise((answer) => {
    const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
    const dialog = h("dialog", { "aria-label": "Token" },
      h("form", { method: "dialog" },
        h("label", { for: "token" }, "This service needs a token. Ask its operator, or make one with frigate token create."),
        refused && h("p", { class: "error", role: "alert" }, refused), field, h("button", { class: "main" }, "Go on")));
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(field.value.trim());
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

addEventListener("hashchange", () => location.hash.startsWith("#token=") && location.reload()); // a link in an open tab

void start();
