/** The API of `frigate serve`. */

import type { Closure, ForecastMeta } from "./layers";
import type { NetworkMeta, NodeId } from "./network";
import type { Change } from "./panels";
import { Container } from "./wire";

export interface NodeDetails {
  history: { time: string; value: number | null }[];
  forecast: { time: string; value: number | null; lower?: number | null; upper?: number | null }[];
  issued: { time: string; value: number | null }[];
  main_sensors: { node: NodeId; distance_m: number | null; share?: number }[];
}

export interface TripEnd {
  node: NodeId;
  lon: number;
  lat: number;
  share: number;
}

export interface Trips {
  vehicles_per_hour: number;
  from: TripEnd[];
  to: TripEnd[];
}

export interface WhatIfMeta {
  issued_at: string;
  times: string[];
  notices: string[];
  largest: Change[];
}

export interface Accuracy {
  overall: { mae: number | null; count: number; mae_persistence: number | null };
  by_hour: { time: string; mae: number | null; count: number }[];
  by_step: { step: number; mae: number | null; count: number }[];
  worst: { node: NodeId; mae: number; count: number }[];
}

export interface SensorState {
  node: NodeId;
  last_time: string | null;
  last_value: number | null;
  state: "ok" | "late" | "silent" | "stuck";
  readings_last_day: number;
}

const SILENCE_MS = 40_000;
const RETRY_MS = [500, 1000, 2000, 5000, 10_000];

export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export class Service {
  /** Asks for a token when the service wants one. */
  constructor(private readonly askToken: () => Promise<string>) {}

  async network(): Promise<Container<NetworkMeta>> {
    return new Container(await (await this.get("network.bin")).arrayBuffer());
  }

  async forecast(): Promise<Container<ForecastMeta>> {
    return new Container(await (await this.get("forecast.bin")).arrayBuffer());
  }

  async whatIf(close: [NodeId, NodeId][], signal: AbortSignal): Promise<Container<WhatIfMeta>> {
    return new Container(await (await this.send("POST", "what-if", { close }, signal)).arrayBuffer());
  }

  node(id: NodeId): Promise<NodeDetails> {
    return this.json(`nodes/${encodeURIComponent(id)}`);
  }

  trips(source: NodeId, target: NodeId): Promise<Trips> {
    return this.json(`trips?source=${encodeURIComponent(source)}&target=${encodeURIComponent(target)}`);
  }

  accuracy(): Promise<Accuracy> {
    return this.json("accuracy");
  }

  async sensors(): Promise<SensorState[]> {
    return (await this.json<{ sensors: SensorState[] }>("sensors")).sensors;
  }

  async closures(): Promise<Closure[]> {
    return (await this.json<{ closures: Closure[] }>("closures")).closures;
  }

  async close(source: NodeId, target: NodeId, end: string | null): Promise<void> {
    await this.send("POST", "closures", end ? { source, target, end } : { source, target });
  }

  async reopen(id: Closure["id"]): Promise<void> {
    await this.send("DELETE", `closures/${encodeURIComponent(id)}`);
  }

  /** Calls back for every event, and with "open" and "lost" when the connection comes and goes; for ever. */
  async follow(heard: (event: string) => void): Promise<never> {
    for (let failures = 0; ; failures++) {
      try {
        const silence = new AbortController();
        let timer = setTimeout(() => silence.abort(), SILENCE_MS);
        const stream = (await this.get("events", silence.signal)).body!.pipeThrough(new TextDecoderStream()).getReader();
        heard("open");
        failures = 0;
        for (let text = ""; ; ) {
          const { done, value } = await stream.read();
          if (done) break;
          clearTimeout(timer);
          timer = setTimeout(() => silence.abort(), SILENCE_MS);
          text += value.replaceAll("\r\n", "\n");
          for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
            const name = /^event: ?(.*)$/m.exec(text.slice(0, end))?.[1];
            text = text.slice(end + 2);
            if (name) heard(name);
          }
        }
        clearTimeout(timer);
      } catch {
        // tried again below
      }
      heard("lost");
      await new Promise((resume) => setTimeout(resume, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
    }
  }

  private async json<T>(path: string): Promise<T> {
    return (await this.get(path)).json();
  }

  private get(path: string, signal?: AbortSignal): Promise<Response> {
    return this.send("GET", path, undefined, signal);
  }

  private async send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    for (;;) {
      const token = sessionStorage.getItem("frigate-token");
      const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {};
      if (body !== undefined) headers["Content-Type"] = "application/json";
      const answer = await fetch(`v1/${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-cache" });
      if (answer.ok) return answer;
      if (answer.status === 401) sessionStorage.setItem("frigate-token", await this.askToken());
      else throw new Refused(answer.status, await reason(answer));
    }
  }
}

async function reason(answer: Response): Promise<string> {
  try {
    const { detail } = await answer.json();
    if (typeof detail === "string") return detail;
  } catch {
    // not JSON
  }
  return `the service answered ${answer.status}`;
}
