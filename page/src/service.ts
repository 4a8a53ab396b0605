/** The API of `frigate serve`. */

import type { Closure, ForecastMeta } from "./layers";
import type { NetworkMeta, NodeId } from "./network";
import type { Change } from "./panels";
import { Container } from "./wire";

export interface NodeDetails {
  history: { time: string; value: number | null }[];
  forecast: { time: string; value: number | null; lower?: number | null; upper?: number | null }[];
  level?: number | null;
  issued: { time: string; value: number | null }[];
  main_sensors: { node: NodeId; distance_m: number | null; share?: number }[];
}

export interface TripEnd {
  node: NodeId;
  lon: number;
  lat: number;
  share: number;
}

/** The trips that pass a road. */
export interface Trips {
  vehicles_per_hour: number;
  vehicles_per_day: number;
  from: TripEnd[];
  to: TripEnd[];
  movements: { origin: RoadName; destination: RoadName; vehicles_per_day: number }[]; // the largest
  movements_in_all: number;
}

export interface RoadName {
  source: NodeId;
  target: NodeId;
}

export interface WhatIfMeta {
  issued_at: string;
  times: string[];
  notices: string[];
  level: number | null;
  largest: Change[];
}

export interface Accuracy {
  overall: { mae: number | null; count: number; mae_persistence: number | null };
  by_hour: { time: string; mae: number | null; count: number }[];
  by_step: { step: number; mae: number | null; count: number }[];
  worst: { node: NodeId; mae: number; count: number }[];
  drift: Drift | null;
}

/** The last day at sensors against what was promised when training ended. */
export interface Drift {
  error: number; // relative to that when training ended, in such traffic
  coverage: number; // percent
  coverage_promised: number;
  told: string[];
  retraining_pays: boolean;
}

export interface SensorState {
  node: NodeId;
  last_time: string | null;
  last_value: number | null;
  state: "ok" | "late" | "silent" | "stuck";
  readings_last_day: number;
}

export interface Session {
  name: string;
  role: string;
  rights: string[];
  by: "token" | "cookie" | "socket";
}

const SILENCE_MS = 40_000;
const RETRY_MS = [500, 1000, 2000, 5000, 10_000];

export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export class Service {
  /** Asks for a token when the service wants one. It is sent once; from then on a cookie that no script can read does. */
  constructor(private readonly askToken: (refused: string) => Promise<string>) {}

  /** The link that the service prints has a token behind the #, where no server and no log sees it. */
  async signInByLink(): Promise<void> {
    const token = /^#token=(.+)$/.exec(location.hash)?.[1];
    if (token === undefined) return;
    await this.signIn(decodeURIComponent(token));
    history.replaceState(null, "", location.pathname + location.search);
  }

  async session(): Promise<Session> {
    return this.json("session");
  }

  async signOut(): Promise<void> {
    await this.send("DELETE", "session");
  }

  async network(): Promise<Container<NetworkMeta>> {
    return new Container(await (await this.get("network.bin")).arrayBuffer());
  }

  async forecast(level: Level): Promise<Container<ForecastMeta>> {
    return new Container(await (await this.get(`forecast.bin${query(level)}`)).arrayBuffer());
  }

  async whatIf(close: [NodeId, NodeId][], level: Level, signal: AbortSignal): Promise<Container<WhatIfMeta>> {
    return new Container(await (await this.send("POST", `what-if${query(level)}`, { close }, signal)).arrayBuffer());
  }

  node(id: NodeId, level: Level): Promise<NodeDetails> {
    return this.json(`nodes/${encodeURIComponent(id)}${query(level)}`);
  }

  /** The trips that pass a road, or a node that is a road, with their flow on every road. */
  async trips(of: RoadName | { node: NodeId }): Promise<Container<Trips>> {
    const query = new URLSearchParams(Object.entries(of).map(([name, id]) => [name, String(id)]));
    return new Container(await (await this.get(`trips.bin?${query}`)).arrayBuffer());
  }

  accuracy(): Promise<Accuracy> {
    return this.json("accuracy");
  }

  async sensors(): Promise<SensorState[]> {
    return (await this.json<{ sensors: SensorState[] }>("sensors")).sensors;
  }

  async closures(): Promise<Closure[]> {
    const found: Closure[] = [];
    for (let query: string | undefined = ""; query !== undefined; ) {
      const answer = await this.send("GET", `closures${query}`);
      found.push(...((await answer.json()) as { closures: Closure[] }).closures);
      query = /<(\?[^>]*)>; rel="next"/.exec(answer.headers.get("Link") ?? "")?.[1]; // page by page
    }
    return found;
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
      const answer = await ask(method, path, body, signal);
      if (answer.ok) return answer;
      if (answer.status !== 401) throw new Refused(answer.status, await reason(answer));
      await (this.signingIn ??= this.signIn().finally(() => (this.signingIn = null)));
    }
  }

  private signingIn: Promise<void> | null = null; // once for all requests that wait for it

  /** With this token, or else with those that the user is asked for until one is right. */
  private async signIn(token?: string): Promise<void> {
    for (let refused = ""; ; ) {
      const answer = await ask("POST", "session", { token: token ?? (await this.askToken(refused)) });
      if (answer.ok) return;
      refused = await reason(answer);
      token = undefined;
    }
  }
}

/** Of intervals, in percent; null: none are asked for. */
export type Level = number | null;

function query(level: Level): string {
  return level === null ? "" : `?level=${level}`;
}

function ask(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = body === undefined ? undefined : { "Content-Type": "application/json" };
  return fetch(`v1/${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-cache" });
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
