/** Control, attachments, restarts, readiness, limits and recovery through the vendor's TypeScript client. */
import assert from "node:assert/strict";
import type { Client, Sandbox } from "sandbox0";
import {
  type Event, Listener, type Spec, type Talk, encode, follow, inOrder, isExit, journal, keepers, kinds, reasons,
  refused, send, shell, terminal, text, toExit, toKind, toOutput, until, waitPhase,
} from "./harness.ts";

const LONG = shell("sleep 1000");
const input = (requestId: string, data: string, expectedAttemptId?: string) =>
  ({ type: "input" as const, requestId, inputId: requestId, dataBase64: encode(data), expectedAttemptId });
const resize = (requestId: string, rows: number, cols: number) =>
  ({ type: "resize" as const, requestId, rows, cols });
const signal = (requestId: string, name: string) => ({ type: "signal" as const, requestId, signal: name });
const exited = (talk: Talk) => talk.events.length > 0 && isExit(talk.events.at(-1)!);
const msBetween = (first: Event, second: Event) => second.occurredAt.getTime() - first.occurredAt.getTime();

const restarting = (policy: "on_failure" | "always", line: string, initialBackoffMs: number, maxBackoffMs: number): Spec =>
  shell(line, { lifecycle: { restart: { policy, maxRestarts: 3, initialBackoffMs, maxBackoffMs } } });

async function killTheRuntime(client: Client, sandbox: Sandbox): Promise<void> {
  const found = keepers(sandbox.id);
  assert.equal(found.length, 1);
  process.kill(found[0], "SIGKILL");
  await until("the replacement of the runtime",
    async () => (await client.sandboxes.get(sandbox.id)).runtimeGeneration === 2);
}

export const controlStories = {
  async resize_reaches_the_program(sandbox: Sandbox) {
    const session = await sandbox.createSession(terminal("stty size; read x; stty size"));
    await toOutput(sandbox, session.id, "24 80\r\n");
    await sandbox.resizeSessionTerminal(
      session.id, { rows: 50, cols: 132, expectedAttemptId: session.attempt!.id });
    await send(sandbox, session.id, "\n");
    const events = await toExit(sandbox, session.id);
    assert.ok(text(events).includes("50 132\r\n"));
    assert.equal(kinds(events).filter((kind) => kind === "terminal.resized").length, 1);
  },

  async resize_refuses_a_stale_attempt(sandbox: Sandbox) {
    const session = await sandbox.createSession(terminal("sleep 1000"));
    await sandbox.createSessionAttempt(session.id, true);
    await refused(sandbox.resizeSessionTerminal(
      session.id, { rows: 50, cols: 132, expectedAttemptId: session.attempt!.id }), 409, "session_conflict");
    await sandbox.deleteSession(session.id);
  },

  async resize_refuses_pipes(sandbox: Sandbox) {
    const session = await sandbox.createSession(LONG);
    await refused(sandbox.resizeSessionTerminal(session.id, { rows: 50, cols: 132 }), 409, "session_conflict");
    await sandbox.deleteSession(session.id);
  },

  async stop_and_start(sandbox: Sandbox) {
    const session = await sandbox.createSession(LONG);
    const stopped = await sandbox.setSessionDesiredState(session.id, "stopped");
    assert.deepEqual(
      [stopped.phase, stopped.specVersion, stopped.attempt?.reason, stopped.spec.lifecycle?.desiredState],
      ["stopped", 2, "desired_state_stopped", "stopped"]);
    assert.equal((await sandbox.setSessionDesiredState(session.id, "stopped")).phase, "stopped");
    assert.equal((await sandbox.setSessionDesiredState(session.id, "running")).attempt?.number, 2);
    assert.deepEqual(
      reasons(await journal(sandbox, session.id), "session.desired_state"), ["stopped", "stopped", "running"]);
    await sandbox.deleteSession(session.id);
  },

  async attempt_conflicts_while_one_runs(sandbox: Sandbox) {
    const session = await sandbox.createSession(LONG);
    await refused(sandbox.createSessionAttempt(session.id), 409, "session_conflict");
    await sandbox.deleteSession(session.id);
  },

  async attempt_replaces(sandbox: Sandbox) {
    const session = await sandbox.createSession(LONG);
    assert.equal((await sandbox.createSessionAttempt(session.id, true)).attempt?.number, 2);
    const events = await journal(sandbox, session.id);
    assert.deepEqual(reasons(events, "attempt.exited"), ["attempt_replaced"]);
    assert.deepEqual(reasons(events, "attempt.starting"), ["created", "attempt_created"]);
    await sandbox.deleteSession(session.id);
  },

  async update_replaces_the_process(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("sleep 1000", { name: "old" }));
    const updated = await sandbox.updateSession(session.id, shell("sleep 1001"));
    assert.deepEqual([updated.specVersion, updated.spec.name ?? "", updated.attempt?.number], [2, "", 2]);
    assert.deepEqual(
      reasons(await journal(sandbox, session.id), "session.updated", "attempt.exited", "attempt.starting"),
      ["created", undefined, "spec_replaced", "spec_updated"]);
    await sandbox.deleteSession(session.id);
  },

  async update_keeps_the_process(sandbox: Sandbox) {
    const session = await sandbox.createSession(LONG);
    const updated = await sandbox.updateSession(
      session.id, { ...LONG, name: "renamed", lifecycle: { restart: { policy: "always" } } });
    assert.deepEqual(
      [updated.spec.name, updated.attempt?.id, updated.attempt?.pid],
      ["renamed", session.attempt?.id, session.attempt?.pid]);
    await sandbox.deleteSession(session.id);
  },

  async delete_ends_everything(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("echo up; sleep 1000"));
    await toOutput(sandbox, session.id, "up\n");
    const stream = await sandbox.watchSessionEvents(session.id);
    await sandbox.deleteSession(session.id);
    const seen: Event[] = [];
    for await (const event of stream) seen.push(event);
    inOrder(seen, 1);
    await refused(sandbox.getSession(session.id), 404, "session_not_found");
    await refused(sandbox.listSessionEvents(session.id), 404, "session_not_found");
  },

  async websocket_replays_and_talks(sandbox: Sandbox) {
    const session = await sandbox.createSession(
      terminal("stty -echo; echo go; while read l; do echo got $l; stty size; done"));
    await toOutput(sandbox, session.id, "go\r\n");
    const connection = await sandbox.connectSession(session.id);
    const listener = new Listener(connection);
    connection.send(input("a", "one\n"));
    connection.send(resize("b", 40, 100));
    connection.send(input("c", "two\n"));
    const talk = await listener.collect(
      ({ events, acks }) => text(events).includes("got two\r\n40 100\r\n") && acks.length === 3);
    assert.deepEqual([talk.acks, talk.errors], [["a", "b", "c"], {}]);
    inOrder(talk.events, 1);
    connection.send(signal("d", "KILL"));
    const end = await listener.collect((now) => exited(now) && now.acks.length === 1);
    assert.equal(end.events.at(-1)?.exitCode, -1);
    connection.close();
  },

  async websocket_resumes_after_seq(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("echo a; read x; echo b"));
    const seen = await toOutput(sandbox, session.id, "a\n");
    const connection = await sandbox.connectSession(session.id, { after: seen.at(-1)!.seq });
    connection.send(input("go", "\n"));
    const { events } = await new Listener(connection).collect(exited);
    inOrder([...seen, ...events], 1);
    assert.equal(text([...seen, ...events]), "a\nb\n");
    connection.close();
  },

  async websocket_reports_errors(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/cat"] });
    const connection = await sandbox.connectSession(session.id);
    connection.send(input("stale", "x", "att-00000000-000"));
    connection.send(resize("pipes", 40, 100));
    connection.send(signal("name", "NOPE"));
    connection.send(input("fine", "x"));
    const { errors } = await new Listener(connection).collect(({ acks }) => acks.length === 1);
    assert.deepEqual(Object.keys(errors).sort(), ["name", "pipes", "stale"]);
    assert.deepEqual([errors.stale, errors.name], ["session attempt mismatch", "unsupported signal"]);
    connection.close();
    await sandbox.deleteSession(session.id);
  },

  async websocket_close_is_not_eof(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/cat"] });
    const connection = await sandbox.connectSession(session.id);
    connection.send(input("a", "before\n"));
    await new Listener(connection).collect(({ acks }) => acks.length === 1);
    connection.close();
    assert.equal((await waitPhase(sandbox, session.id, "running")).attempt?.id, session.attempt?.id);
    await send(sandbox, session.id, "after\n", { eof: true });
    assert.equal(text(await toExit(sandbox, session.id)), "before\nafter\n");
  },

  async signal_reaches_the_program(sandbox: Sandbox) {
    const session = await sandbox.createSession(
      shell("trap 'echo caught; exit 0' USR1; echo up; while :; do sleep 0.05; done"));
    await toOutput(sandbox, session.id, "up\n");
    await sandbox.sendSessionSignal(session.id, { signal: "usr1", expectedAttemptId: session.attempt!.id });
    const events = await toExit(sandbox, session.id);
    assert.equal(text(events, "stdout"), "up\ncaught\n");
    assert.deepEqual(reasons(events, "signal.sent"), ["SIGUSR1"]);
  },

  async signal_refuses_unknown_names(sandbox: Sandbox) {
    const session = await sandbox.createSession(LONG);
    await refused(sandbox.sendSessionSignal(session.id, { signal: "SIGNOPE" }), 400, "invalid_request");
    await sandbox.deleteSession(session.id);
  },

  async signal_death_is_reported(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/sleep", "1000"] });
    await sandbox.sendSessionSignal(session.id, { signal: "9" });
    const end = (await toExit(sandbox, session.id)).at(-1);
    assert.deepEqual([end?.exitCode, end?.reason], [-1, "killed"]);
    assert.equal((await waitPhase(sandbox, session.id, "exited")).attempt?.exitCode, -1);
  },

  async restart_on_failure_until_the_limit(sandbox: Sandbox) {
    let session = await sandbox.createSession(restarting("on_failure", "exit 9", 50, 150));
    const events = await toKind(sandbox, session.id, "session.failed");
    assert.deepEqual(reasons(events, "session.failed"), ["restart_limit_exceeded"]);
    assert.deepEqual(reasons(events, "session.backoff"), ["50ms", "100ms", "150ms"]);
    assert.deepEqual(events.filter(isExit).map((event) => event.exitCode), [9, 9, 9, 9]);
    assert.equal((await waitPhase(sandbox, session.id, "failed")).restartCount, 3);
    session = await sandbox.createSession(restarting("on_failure", "exit 0", 50, 150));
    await toExit(sandbox, session.id);
    assert.equal((await waitPhase(sandbox, session.id, "exited")).restartCount, 0);
  },

  async restart_always_until_stopped(sandbox: Sandbox) {
    const session = await sandbox.createSession(restarting("always", "exit 0", 20_000, 20_000));
    await toKind(sandbox, session.id, "session.backoff");
    await waitPhase(sandbox, session.id, "backoff");
    assert.equal((await sandbox.setSessionDesiredState(session.id, "stopped")).phase, "stopped");
    assert.equal(reasons(await journal(sandbox, session.id), "attempt.starting").length, 1);
  },

  async readiness_process(sandbox: Sandbox) {
    const session = await sandbox.createSession(LONG);
    assert.equal(session.phase, "running");
    await sandbox.deleteSession(session.id);
  },

  async readiness_delay(sandbox: Sandbox) {
    const session = await sandbox.createSession(
      shell("sleep 1000", { readiness: { type: "delay", delayMs: 300 } }));
    assert.equal(session.phase, "starting");
    const events = await toKind(sandbox, session.id, "session.ready");
    const started = events.find((event) => event.type === "attempt.started")!;
    const took = msBetween(started, events.at(-1)!);
    assert.ok(took >= 290 && took < 2000, `ready after ${took} ms`);
    await waitPhase(sandbox, session.id, "running");
    await sandbox.deleteSession(session.id);
  },

  async readiness_output(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell(
      "printf REA; sleep 0.3; printf DY; sleep 1000", { readiness: { type: "output", output: "READY" } }));
    assert.equal(session.phase, "starting");
    assert.equal(text(await toKind(sandbox, session.id, "session.ready")), "READY");
    await waitPhase(sandbox, session.id, "running");
    await sandbox.deleteSession(session.id);
  },

  async readiness_timeout(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell(
      "sleep 1000", { readiness: { type: "output", output: "never", timeoutMs: 200 } }));
    const events = await toKind(sandbox, session.id, "session.failed");
    assert.deepEqual(
      reasons(events, "attempt.exited", "session.failed"), ["readiness_timeout", "readiness_timeout"]);
    await waitPhase(sandbox, session.id, "failed");
  },

  async idle_timeout_stops(sandbox: Sandbox) {
    const begun = Date.now();
    const session = await sandbox.createSession(
      shell("echo up; sleep 1000", { lifecycle: { idleTimeoutSeconds: 1 } }));
    const events = await toExit(sandbox, session.id);
    const took = Date.now() - begun;
    assert.ok(took > 900 && took < 5000, `stopped after ${took} ms`);
    assert.deepEqual(reasons(events, "attempt.exited"), ["session_expired"]);
    assert.ok(kinds(events).includes("session.expired"));
    assert.equal((await waitPhase(sandbox, session.id, "stopped")).spec.lifecycle?.desiredState, "stopped");
  },

  async lifetime_stops(sandbox: Sandbox) {
    const session = await sandbox.createSession(
      shell("while :; do echo busy; sleep 0.1; done", { lifecycle: { maxLifetimeSeconds: 1 } }));
    const events = await toExit(sandbox, session.id);
    assert.deepEqual(reasons(events, "attempt.exited"), ["session_expired"]);
    const took = msBetween(events[0], events.at(-1)!);
    assert.ok(took > 900 && took < 5000, `stopped after ${took} ms`);
    await waitPhase(sandbox, session.id, "stopped");
  },
};

export const recoveryStories = {
  async recovery_restarts_after_the_runtime_died(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const session = await sandbox.createSession(shell("echo up; sleep 1000"));
    const done = await sandbox.createSession(shell("exit 5"));
    await toExit(sandbox, done.id);
    const last = (await toOutput(sandbox, session.id, "up\n")).at(-1)!.seq;
    await killTheRuntime(client, sandbox);
    const later = await toOutput(sandbox, session.id, "up\n", last);
    inOrder(later, last + 1);
    const ended = later.find(isExit)!;
    assert.deepEqual([ended.reason, ended.exitCode], ["runtime_replaced", undefined]);
    const again = later.find((event) => event.type === "attempt.starting")!;
    assert.deepEqual([again.reason, again.runtimeGeneration], ["runtime_recovered", 2]);
    assert.equal((await sandbox.getSession(done.id)).phase, "exited");
    await client.sandboxes.delete(sandbox.id);
  },

  async recovery_stop_keeps_the_journal(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const session = await sandbox.createSession(
      shell("echo up; sleep 1000", { lifecycle: { runtimeRecovery: "stop" } }));
    await toOutput(sandbox, session.id, "up\n");
    await killTheRuntime(client, sandbox);
    const now = await waitPhase(sandbox, session.id, "stopped");
    assert.equal(now.spec.lifecycle?.desiredState, "stopped");
    const events = await follow(sandbox, session.id, (event) => event.type === "session.stopped");
    assert.equal(text(events), "up\n");
    assert.equal(events.at(-1)?.reason, "runtime_recovery_policy");
    await client.sandboxes.delete(sandbox.id);
  },
};
