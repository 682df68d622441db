/** Sandbox calls of the vendor's TypeScript client. */
import assert from "node:assert/strict";
import type { Client } from "sandbox0";
import { follow, isExit, journal, kinds, reasons, refused, shell, text, toExit, waitPhase } from "./harness.ts";

const runs = (client: Client, id: string) => client.sandboxes.get(id).then((got) => got.status);

export const sandboxStories = {
  async sandbox_create_get_status(client: Client) {
    const sandbox = await client.sandboxes.claim("default", { ttl: 600, hardTtl: 7200 });
    assert.equal(sandbox.template, "default");
    assert.ok(sandbox.podName);
    const got = await client.sandboxes.get(sandbox.id);
    assert.deepEqual(
      [got.id, got.status, got.paused, got.runtimeGeneration, got.autoResume],
      [sandbox.id, "running", false, 1, true]);
    const status = await client.sandboxes.status(sandbox.id);
    assert.deepEqual([status.sandboxId, status.status], [sandbox.id, "running"]);
    await client.sandboxes.delete(sandbox.id);
  },

  async sandbox_list(client: Client) {
    const first = (await client.sandboxes.claim("default")).id;
    const second = (await client.sandboxes.claim("default")).id;
    const ids = async (options?: Parameters<Client["sandboxes"]["list"]>[0]) =>
      (await client.sandboxes.list(options)).sandboxes.map((item) => item.id);
    const all = await ids();
    assert.ok(all.includes(first) && all.includes(second));
    assert.equal((await ids({ limit: 1 })).length, 1);
    assert.ok(!(await ids({ paused: true })).includes(first));
    assert.ok((await ids({ status: "running" })).includes(second));
    await client.sandboxes.delete(first);
    await client.sandboxes.delete(second);
  },

  async sandbox_update_env(client: Client) {
    const sandbox = await client.sandboxes.claim("default", { envVars: { COLOUR: "red" } });
    const colour = async () => {
      const session = await sandbox.createSession(shell("printf $COLOUR"));
      return text(await toExit(sandbox, session.id));
    };
    assert.equal(await colour(), "red");
    await client.sandboxes.update(sandbox.id, { config: { envVars: { COLOUR: "blue" } } });
    assert.equal(await colour(), "blue");
    await client.sandboxes.delete(sandbox.id);
  },

  async sandbox_refresh(client: Client) {
    const sandbox = await client.sandboxes.claim("default", { ttl: 600 });
    const before = (await client.sandboxes.get(sandbox.id)).expiresAt;
    const after = (await client.sandboxes.refresh(sandbox.id, { duration: 3600 })).expiresAt;
    assert.ok(after.getTime() - before.getTime() > 2_000_000);
    await client.sandboxes.delete(sandbox.id);
  },

  async sandbox_delete(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    await client.sandboxes.delete(sandbox.id);
    await refused(client.sandboxes.get(sandbox.id), 404, "not_found");
  },

  async sandbox_unknown_template(client: Client) {
    await refused(client.sandboxes.claim("no-such-template"), 404, "not_found");
  },

  async sandbox_pause_and_resume(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const session = await sandbox.createSession(shell("exec sleep 1000"));
    const paused = await client.sandboxes.pauseAndWait(sandbox.id);
    assert.deepEqual([paused.status, paused.paused, paused.runtimeGeneration], ["paused", true, 1]);
    const resumed = await client.sandboxes.resumeAndWait(sandbox.id);
    assert.deepEqual([resumed.status, resumed.paused, resumed.runtimeGeneration], ["running", false, 2]);
    const now = await waitPhase(sandbox, session.id, "running");
    assert.deepEqual([now.runtimeGeneration, now.attempt?.number], [2, 2]);
    const events = await journal(sandbox, session.id);
    const ended = events.filter(isExit);
    assert.deepEqual(
      ended.map((event) => [event.reason, event.runtimeGeneration, event.exitCode]),
      [["runtime_replaced", 1, undefined]]);
    assert.ok(kinds(events).indexOf("session.paused") < kinds(events).indexOf("attempt.exited"));
    assert.deepEqual(reasons(events, "attempt.starting"), ["created", "runtime_recovered"]);
    await client.sandboxes.delete(sandbox.id);
  },

  async paused_sandbox_is_read_without_waking(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const session = await sandbox.createSession(shell("echo kept; exit 4"));
    await toExit(sandbox, session.id);
    await client.sandboxes.pauseAndWait(sandbox.id);
    assert.deepEqual((await sandbox.listSessions()).map((item) => item.id), [session.id]);
    assert.equal((await sandbox.getSession(session.id)).attempt?.exitCode, 4);
    assert.equal(text(await follow(sandbox, session.id, isExit)), "kept\n");
    assert.equal(text(await journal(sandbox, session.id)), "kept\n");
    assert.equal(await runs(client, sandbox.id), "paused");
    await client.sandboxes.delete(sandbox.id);
  },

  async paused_sandbox_wakes_for_a_change(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    await client.sandboxes.pauseAndWait(sandbox.id);
    const session = await sandbox.createSession(shell("echo awake"));
    assert.equal(text(await toExit(sandbox, session.id)), "awake\n");
    const got = await client.sandboxes.get(sandbox.id);
    assert.deepEqual([got.status, got.runtimeGeneration], ["running", 2]);
    await client.sandboxes.delete(sandbox.id);
  },

  async paused_sandbox_without_auto_resume_refuses(client: Client) {
    const sandbox = await client.sandboxes.claim("default", { autoResume: false });
    await client.sandboxes.pauseAndWait(sandbox.id);
    await refused(sandbox.createSession(shell("echo never")), 503, "unavailable");
    assert.deepEqual(await sandbox.listSessions(), []);
    assert.equal(await runs(client, sandbox.id), "paused");
    await client.sandboxes.delete(sandbox.id);
  },
};
