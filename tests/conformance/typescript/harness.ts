/** A server for this suite, the vendor's client pointed at it, and short words for its stories. */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, openSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { APIError, Client, type Sandbox } from "sandbox0";

export type Session = Awaited<ReturnType<Sandbox["createSession"]>>;
export type Spec = Parameters<Sandbox["createSession"]>[0];
export type Event = Awaited<ReturnType<Sandbox["listSessionEvents"]>>["events"][number];
type Connection = Awaited<ReturnType<Sandbox["connectSession"]>>;
export type Phase = Session["phase"];

const EVER_MS = 60_000;

/** `outlive serve` on a port and a directory of its own. */
export class Server {
  readonly data = mkdtempSync(join(tmpdir(), "outlive-ts-"));
  private child?: ChildProcess;

  async start(): Promise<this> {
    const program = process.env.OUTLIVE_BIN ?? join(import.meta.dirname, "../../../target/debug/outlive");
    const log = openSync(`${this.data}.log`, "w");
    this.child = spawn(program, ["serve", "--listen", "127.0.0.1:0", "--data", this.data], {
      stdio: ["ignore", log, log],
    });
    await until("the start of the server", async () => {
      assert.equal(this.child?.exitCode, null, readFileSync(`${this.data}.log`, "utf8"));
      return existsSync(join(this.data, "endpoint")) && existsSync(join(this.data, "admin.token"));
    });
    return this;
  }

  client(): Client {
    const read = (name: string) => readFileSync(join(this.data, name), "utf8").trim();
    return new Client({ baseUrl: read("endpoint"), token: read("admin.token") });
  }

  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.child?.once("exit", resolve));
    this.child?.kill("SIGTERM");
    await ended;
    const sandboxes = join(this.data, "sandboxes");
    for (const id of existsSync(sandboxes) ? readdirSync(sandboxes) : []) {
      for (const pid of keepers(id)) process.kill(pid, "SIGKILL");
    }
    rmSync(this.data, { recursive: true, force: true });
    rmSync(`${this.data}.log`);
  }
}

/** The keepers of a sandbox, found by their title as an operator's `ps` would. */
export function keepers(sandboxId: string): number[] {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).filter((name) => {
    try {
      const [title, id] = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0");
      return title === "outlive-keeper" && id === sandboxId;
    } catch {
      return false; // The process is gone, so it is not the one we look for.
    }
  }).map(Number);
}

/** Polls for a fact that nothing announces. */
export async function until(what: string, condition: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + EVER_MS;
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, `${what} did not come true`);
    await sleep(10);
  }
}

export const shell = (line: string, more: Partial<Spec> = {}): Spec =>
  ({ command: ["/bin/sh", "-c", line], ...more });
export const terminal = (line: string): Spec => shell(line, { io: { mode: "pty" } });

export const bytes = (event: Event): Buffer => Buffer.from(event.dataBase64 ?? "", "base64");
export const encode = (text: string | Buffer): string => Buffer.from(text).toString("base64");
export const isExit = (event: Event): boolean => event.type === "attempt.exited";
export const kinds = (events: Event[]): string[] => events.map((event) => event.type);

export function written(events: Event[], stream?: string): Buffer {
  return Buffer.concat(events
    .filter((event) => event.type === "output" && (!stream || event.stream === stream))
    .map(bytes));
}

export const text = (events: Event[], stream?: string): string => written(events, stream).toString();

export function reasons(events: Event[], ...wanted: string[]): (string | undefined)[] {
  return events.filter((event) => wanted.includes(event.type)).map((event) => event.reason);
}

export function inOrder(events: Event[], first: number): void {
  assert.deepEqual(events.map((event) => event.seq), events.map((_, index) => first + index));
}

/** Watches until `last` is true and returns every event up to it. */
export async function follow(
  sandbox: Sandbox, id: string, last: (event: Event) => boolean | Promise<boolean>, after?: number,
): Promise<Event[]> {
  const stream = await sandbox.watchSessionEvents(id, { after });
  const events: Event[] = [];
  for await (const event of stream) {
    events.push(event);
    if (await last(event)) {
      await stream.close();
      return events;
    }
  }
  throw new Error(`the stream ended early: ${kinds(events)}`);
}

export const toExit = (sandbox: Sandbox, id: string, after?: number) => follow(sandbox, id, isExit, after);

export const toKind = (sandbox: Sandbox, id: string, kind: string) =>
  follow(sandbox, id, (event) => event.type === kind);

export function toOutput(sandbox: Sandbox, id: string, needle: string, after?: number): Promise<Event[]> {
  let seen = "";
  return follow(sandbox, id, (event) => {
    seen += bytes(event).toString("latin1");
    return seen.includes(needle);
  }, after);
}

export async function journal(sandbox: Sandbox, id: string, limit = 100): Promise<Event[]> {
  const events: Event[] = [];
  for (;;) {
    const page = await sandbox.listSessionEvents(id, { after: events.at(-1)?.seq, limit });
    events.push(...page.events);
    if (page.events.length === 0 || events.at(-1)!.seq >= page.cursor.latest) return events;
  }
}

export async function waitPhase(sandbox: Sandbox, id: string, wanted: Phase): Promise<Session> {
  let session = await sandbox.getSession(id);
  await until(`phase ${wanted} of ${id}`, async () => {
    session = await sandbox.getSession(id);
    return session.phase === wanted;
  });
  return session;
}

let inputs = 0;

export function send(
  sandbox: Sandbox, id: string, data?: string | Buffer,
  more: { eof?: boolean; inputId?: string; expectedAttemptId?: string } = {},
) {
  return sandbox.writeSessionInput(id, {
    inputId: `input-${inputs++}`,
    dataBase64: data === undefined ? undefined : encode(data),
    ...more,
  });
}

/** Expects an API error with this status and code. */
export async function refused(call: Promise<unknown>, status: number, code: string): Promise<APIError> {
  try {
    await call;
  } catch (error) {
    assert.ok(error instanceof APIError, String(error));
    assert.deepEqual([error.statusCode, error.code], [status, code], error.message);
    return error;
  }
  throw new Error(`expected ${status} ${code}`);
}

export interface Talk {
  events: Event[];
  acks: (string | undefined)[];
  errors: Record<string, string | undefined>;
}

/** Reads a WebSocket attachment; each call goes on where the last one stopped. */
export class Listener {
  private readonly reader;

  constructor(connection: Connection) {
    this.reader = connection.readable.getReader();
  }

  async collect(last: (talk: Talk) => boolean): Promise<Talk> {
    const talk: Talk = { events: [], acks: [], errors: {} };
    while (!last(talk)) {
      const { value, done } = await this.reader.read();
      if (done) throw new Error(`the connection ended early: ${kinds(talk.events)} ${talk.acks}`);
      if (value.type === "event") talk.events.push(value.event!);
      else if (value.type === "ack") talk.acks.push(value.requestId);
      else talk.errors[value.requestId!] = value.error;
    }
    return talk;
  }
}
