/** How good the forecasts have been since they are live, and how the sensors do. */

import type { App } from "./app";
import { chart, namesAxis, timesAxis } from "./chart";
import { away, count, h, number, percent } from "./dom";
import { unitText } from "./network";
import type { Accuracy, Drift, SensorState } from "./service";

const LISTED = 100;
const STATES: Record<SensorState["state"], string> = { stuck: "stuck: the same value for too long", silent: "silent", late: "late", ok: "in order" };

/** A panel whose content comes later. */
export function later<T>(answer: Promise<T>, draw: (value: T) => Node): Node {
  const box = h("div", {}, h("p", { class: "loading" }, "Loading…"));
  answer.then((value) => box.replaceChildren(draw(value)), (error: Error) => box.replaceChildren(h("p", { class: "error" }, error.message)));
  return box;
}

/** Whether the run is still as good as it was when training ended. */
function driftWords({ error, coverage, coverage_promised, told }: Drift): Node {
  const now = `At sensors over the last day, the error is ${error.toFixed(2)} times what it was in such traffic when training ended; 90 % intervals hold for ${Math.round(coverage)} %, and held for ${Math.round(coverage_promised)} % then.`;
  return h("div", { class: told.length ? "drift told" : "drift" },
    h("h3", {}, told.length ? "No longer as promised" : "As promised"),
    h("p", {}, now),
    ...told.map((text) => h("p", { class: "error", role: "alert" }, text)));
}

export function accuracyPanel(app: App, { overall, by_hour, by_step, worst, drift }: Accuracy): Node {
  const { network } = app;
  if (overall.mae === null || !overall.count) return h("div", {}, h("h2", {}, "Live accuracy"), h("p", {}, "No forecast can be scored yet: its readings have not come in. Check again after the next steps."));
  const less = overall.mae_persistence ? 1 - overall.mae / overall.mae_persistence : NaN;
  return h("div", {},
    h("h2", {}, "Live accuracy"),
    h("p", {}, "Forecasts as issued, compared with the readings that followed."),
    h("div", { class: "tiles" },
      h("div", {}, h("b", {}, number(overall.mae)), h("span", {}, `mean absolute error, ${unitText(network.unit)}`)),
      overall.mae_persistence !== null && h("div", {}, h("b", {}, number(overall.mae_persistence)), h("span", {}, "if nothing changed from the last reading")),
    ),
    Number.isFinite(less) && h("p", {}, less > 0 ? `${percent(less)} less error than the last reading.` : `${percent(-less)} more error than the last reading.`),
    h("p", { class: "note" }, `${overall.count.toLocaleString("en-GB")} pairs of forecast and reading.`),
    drift && driftWords(drift),
    by_hour.length > 1 && chart({ title: "By hour", unit: unitText(network.unit), lines: [{ name: "error", css: "forecast", points: by_hour.map(({ time, mae }) => [Date.parse(time), mae ?? NaN]) }], ...timesAxis(app.time) }),
    by_step.length > 1 && chart({
      title: "By time ahead", unit: unitText(network.unit), lines: [{ name: "error", css: "forecast", points: by_step.map(({ mae }, i) => [i, mae ?? NaN]) }],
      ...namesAxis(by_step.map(({ step }) => `${(step * network.meta.step_seconds) / 60} min`)),
    }),
    worst.length > 0 && h("h3", {}, "Where it is least accurate"),
    h("ul", { class: "list" }, ...worst.map(({ node, mae }) => h("li", {}, app.nodeLink(network.node(node), network.nodeName(node)), h("span", {}, number(mae))))),
  );
}

/** `now` is that of the forecast: a replay has a clock of its own. */
export function sensorsPanel(app: App, sensors: SensorState[], now: number): Node {
  const order = Object.keys(STATES);
  const ranked = [...sensors].sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
  const numbers = order.map((state) => ({ state, n: sensors.filter((sensor) => sensor.state === state).length })).filter(({ n }) => n > 0);
  return h("div", {},
    h("h2", {}, "Sensors"),
    h("p", {}, numbers.map(({ state, n }) => `${n.toLocaleString("en-GB")} ${STATES[state as SensorState["state"]].split(":")[0]}`).join(", ") || "None."),
    h("ul", { class: "list" }, ...ranked.slice(0, LISTED).map((sensor) =>
      h("li", {},
        h("i", { class: `state ${sensor.state}`, "aria-hidden": "true" }),
        app.nodeLink(app.network.node(sensor.node), app.network.nodeName(sensor.node)),
        h("span", {}, [STATES[sensor.state], sensor.last_time ? `${number(sensor.last_value ?? NaN)} ${away(Date.parse(sensor.last_time) - now)}` : "never read"].join(", ")),
      ))),
    ranked.length > LISTED && h("p", { class: "note" }, `The first ${LISTED} of ${count(ranked.length, "sensor")}.`),
  );
}
