/** Pauses, deadlines, lists and updates of sandboxes through the vendor's TypeScript client. */
import assert from "node:assert/strict";
import { APIError, type Client, type Sandbox } from "sandbox0";
import {
  inOrder, isExit, journal, kinds, reasons, refused, shell, text, toExit, toOutput, until,
  waitPhase,
} from "./harness.ts";

const OVER_A_PAUSE = ["session.paused", "attempt.exited", "attempt.starting"];
const POLL = { pollIntervalMs: 50 };

type Filters = Parameters<Client["sandboxes"]["list"]>[0];

async function state(client: Client, id: string) {
  const got = await client.sandboxes.get(id);
  return [got.status, got.paused, got.runtimeGeneration];
}

async function ids(client: Client, filters?: Filters): Promise<string[]> {
  return (await client.sandboxes.list({ limit: 200, ...filters })).sandboxes.map((item) => item.id);
}

async function isGone(client: Client, id: string): Promise<boolean> {
  try {
    await client.sandboxes.get(id);
    return false;
  } catch (error) {
    assert.ok(error instanceof APIError && error.statusCode === 404, String(error));
    return true;
  }
}

const isPaused = (client: Client, id: string) =>
  client.sandboxes.waitForLifecycle(id, (now) => now.paused, POLL);

const remove = async (client: Client, ...sandboxes: Sandbox[]) => {
  for (const sandbox of sandboxes) await client.sandboxes.delete(sandbox.id);
};

export const lifecycleStories = {
  async pause_and_resume_are_waited_for(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const paused = await client.sandboxes.pauseAndWait(sandbox.id);
    assert.deepEqual([paused.status, paused.paused, paused.runtimeGeneration], ["paused", true, 1]);
    const resumed = await client.sandboxes.resumeAndWait(sandbox.id);
    assert.deepEqual([resumed.status, resumed.paused, resumed.runtimeGeneration], ["running", false, 2]);
    // One that runs is there already: nothing is waited for, and nothing is replaced.
    assert.equal((await client.sandboxes.resumeAndWait(sandbox.id)).runtimeGeneration, 2);
    await remove(client, sandbox);
  },

  async pause_and_resume_twice_change_nothing(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    for (let turn = 0; turn < 2; turn++) {
      assert.equal((await client.sandboxes.pause(sandbox.id)).paused, true);
      assert.deepEqual(await state(client, sandbox.id), ["paused", true, 1]);
    }
    for (let turn = 0; turn < 2; turn++) {
      assert.equal((await client.sandboxes.resume(sandbox.id)).resumed, true);
      assert.deepEqual(await state(client, sandbox.id), ["running", false, 2]);
    }
    await remove(client, sandbox);
  },

  async status_over_a_pause(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const before = await client.sandboxes.status(sandbox.id);
    await client.sandboxes.pause(sandbox.id);
    assert.equal((await client.sandboxes.status(sandbox.id)).status, "paused");
    await client.sandboxes.resume(sandbox.id);
    const after = await client.sandboxes.status(sandbox.id);
    assert.deepEqual([before.status, after.status], ["running", "running"]);
    assert.notEqual(after.podName, before.podName);
    assert.deepEqual(after.createdAt, before.createdAt);
    await remove(client, sandbox);
  },

  async list_filters_by_what_is_so(client: Client) {
    const awake = await client.sandboxes.claim("default");
    const asleep = await client.sandboxes.claim("default");
    await client.sandboxes.pause(asleep.id);
    const both = async (filters?: Filters) => {
      const listed = await ids(client, filters);
      return [listed.includes(awake.id), listed.includes(asleep.id)];
    };
    assert.deepEqual(await both(), [true, true]);
    assert.deepEqual(await both({ status: "running" }), [true, false]);
    assert.deepEqual(await both({ status: "paused" }), [false, true]);
    assert.deepEqual(await both({ paused: true }), [false, true]);
    assert.deepEqual(await both({ paused: false }), [true, false]);
    assert.deepEqual(await both({ templateId: "default" }), [true, true]);
    assert.deepEqual(await both({ templateId: "another" }), [false, false]);
    assert.deepEqual(await both({ status: "paused", paused: false }), [false, false]);
    assert.equal((await state(client, asleep.id))[0], "paused");
    await remove(client, awake, asleep);
  },

  async list_pages_show_each_once(client: Client) {
    const made: Sandbox[] = [];
    for (let number = 0; number < 5; number++) made.push(await client.sandboxes.claim("default"));
    await client.sandboxes.pause(made[2].id);
    const listed: string[] = [];
    for (let more = true; more;) {
      const page = await client.sandboxes.list({ limit: 2, offset: listed.length });
      assert.equal(page.sandboxes.length, page.count);
      listed.push(...page.sandboxes.map((item) => item.id));
      more = page.hasMore;
      assert.ok(!more || page.count === 2, "a page before the last is not full");
    }
    const mine = made.map((sandbox) => sandbox.id);
    assert.deepEqual(listed.filter((id) => mine.includes(id)), mine);
    assert.equal(new Set(listed).size, listed.length);
    assert.deepEqual(listed, await ids(client));
    await refused(client.sandboxes.list({ limit: 201 }), 400, "bad_request");
    await remove(client, ...made);
  },

  async ttl_pauses(client: Client) {
    const sandbox = await client.sandboxes.claim("default", { ttl: 1 });
    const session = await sandbox.createSession(shell("echo up; exec sleep 1000"));
    await isPaused(client, sandbox.id);
    assert.deepEqual(await state(client, sandbox.id), ["paused", true, 1]);
    assert.equal(text(await journal(sandbox, session.id)), "up\n");
    await remove(client, sandbox);
  },

  async hard_ttl_deletes(client: Client) {
    const sandbox = await client.sandboxes.claim("default", { hardTtl: 1 });
    const session = await sandbox.createSession(shell("exec sleep 1000"));
    await until("the deletion", () => isGone(client, sandbox.id));
    await refused(sandbox.getSession(session.id), 404, "not_found");
    assert.ok(!(await ids(client)).includes(sandbox.id));
  },

  async refresh_puts_the_pause_off(client: Client) {
    const seconds = (from: Date, to: Date) => (to.getTime() - from.getTime()) / 1000;
    const sandbox = await client.sandboxes.claim("default", { ttl: 600 });
    const first = (await client.sandboxes.get(sandbox.id)).expiresAt;
    const again = (await client.sandboxes.refresh(sandbox.id)).expiresAt;
    assert.ok(seconds(first, again) >= 0 && seconds(first, again) < 60);
    const longer = (await client.sandboxes.refresh(sandbox.id, { duration: 3600 })).expiresAt;
    assert.ok(seconds(again, longer) > 2900 && seconds(again, longer) < 3060);
    assert.deepEqual((await client.sandboxes.get(sandbox.id)).expiresAt, longer);
    await client.sandboxes.refresh(sandbox.id, { duration: 1 });
    await isPaused(client, sandbox.id);
    await remove(client, sandbox);
  },

  async update_env_reaches_the_next_attempt(client: Client) {
    const sandbox = await client.sandboxes.claim("default", { envVars: { COLOUR: "red" } });
    const session = await sandbox.createSession(shell("echo $COLOUR; exec sleep 1000"));
    const seen = await toOutput(sandbox, session.id, "red\n");
    await client.sandboxes.update(sandbox.id, { config: { envVars: { COLOUR: "blue" } } });
    assert.equal((await sandbox.getSession(session.id)).attempt?.id, session.attempt?.id);
    await sandbox.createSessionAttempt(session.id, true);
    const later = await toOutput(sandbox, session.id, "blue\n", seen.at(-1)!.seq);
    assert.equal(text(later), "blue\n");
    // What a pause keeps, an update changes too, and changes nothing else.
    await client.sandboxes.pause(sandbox.id);
    const updated = await client.sandboxes.update(
      sandbox.id, { config: { envVars: { COLOUR: "green" }, autoResume: false } });
    assert.deepEqual([updated.status, updated.autoResume], ["paused", false]);
    await client.sandboxes.resume(sandbox.id);
    await toOutput(sandbox, session.id, "green\n", later.at(-1)!.seq);
    await remove(client, sandbox);
  },

  async session_over_a_pause_keeps_its_order(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const session = await sandbox.createSession(shell("echo up; exec sleep 1000"));
    const seen = await toOutput(sandbox, session.id, "up\n");
    await client.sandboxes.pause(sandbox.id);
    assert.equal((await sandbox.getSession(session.id)).phase, "suspended");
    await client.sandboxes.resume(sandbox.id);
    await toOutput(sandbox, session.id, "up\n", seen.at(-1)!.seq);
    const events = await journal(sandbox, session.id);
    inOrder(events, 1);
    const later = events.slice(seen.length).filter((event) => OVER_A_PAUSE.includes(event.type));
    assert.deepEqual(kinds(later), OVER_A_PAUSE);
    assert.deepEqual(
      reasons(later, "attempt.exited", "attempt.starting"), ["runtime_replaced", "runtime_recovered"]);
    assert.equal(later.find(isExit)?.exitCode, undefined);
    assert.deepEqual(later.map((event) => event.runtimeGeneration), [1, 1, 2]);
    assert.equal(later[1].attemptId, session.attempt?.id);
    assert.notEqual(later[2].attemptId, session.attempt?.id);
    const now = await waitPhase(sandbox, session.id, "running");
    assert.deepEqual([now.id, now.runtimeGeneration, now.attempt?.number], [session.id, 2, 2]);
    await remove(client, sandbox);
  },

  async session_that_stops_at_a_pause_stays_stopped(client: Client) {
    const sandbox = await client.sandboxes.claim("default");
    const session = await sandbox.createSession(
      shell("echo up; exec sleep 1000", { lifecycle: { runtimeRecovery: "stop" } }));
    await toOutput(sandbox, session.id, "up\n");
    await client.sandboxes.pauseAndWait(sandbox.id);
    await client.sandboxes.resumeAndWait(sandbox.id);
    const now = await waitPhase(sandbox, session.id, "stopped");
    assert.equal(now.spec.lifecycle?.desiredState, "stopped");
    const events = await journal(sandbox, session.id);
    assert.equal(kinds(events).filter((kind) => kind === "attempt.starting").length, 1);
    assert.deepEqual(reasons(events, "session.stopped"), ["runtime_recovery_policy"]);
    assert.equal(text(events), "up\n");
    await remove(client, sandbox);
  },

  async fork_has_the_files_and_no_sessions(client: Client) {
    const source = await client.sandboxes.claim("default", { envVars: { COLOUR: "red" } });
    const session = await source.createSession(shell("echo kept > /root/kept; echo up; exec sleep 1000"));
    await toOutput(source, session.id, "up\n");
    const { sourceSandboxId, sandbox: child } =
      await client.sandboxes.fork(source.id, { config: { ttl: 600, hardTtl: 7200 } });
    assert.equal(sourceSandboxId, source.id);
    assert.notEqual(child.id, source.id);
    assert.deepEqual([child.status, child.paused, child.runtimeGeneration], ["paused", true, 1]);
    assert.ok(child.hardExpiresAt > child.createdAt);
    const fork = client.sandboxes.sandbox(child.id);
    assert.deepEqual(await fork.listSessions(), []);
    const found = await fork.createSession(shell("cat /root/kept; echo $COLOUR"));
    assert.equal(text(await toExit(fork, found.id)), "kept\nred\n");
    assert.equal((await state(client, fork.id))[0], "running");
    // The source's command runs where it ran, and nowhere else.
    assert.equal((await source.getSession(session.id)).attempt?.id, session.attempt?.id);
    assert.deepEqual((await fork.listSessions()).map((item) => item.id), [found.id]);
    await remove(client, source, fork);
  },

  async snapshot_makes_a_sandbox_and_brings_one_back(client: Client) {
    const source = await client.sandboxes.claim("default");
    await toExit(source, (await source.createSession(shell("echo old > /root/kept"))).id);
    const snapshot = await client.sandboxes.createRootFSSnapshot(source.id, {
      name: source.id, description: "before it all",
    });
    assert.deepEqual([snapshot.sandboxId, snapshot.name], [source.id, source.id]);
    const listed = await client.sandboxes.listRootFSSnapshots(source.id);
    assert.deepEqual(listed.map((item) => item.id), [snapshot.id]);
    const got = await client.sandboxes.getRootFSSnapshot(snapshot.id);
    assert.deepEqual([got.description, got.createdAt], ["before it all", snapshot.createdAt]);
    await toExit(source, (await source.createSession(shell("echo new > /root/kept"))).id);
    await client.sandboxes.pauseAndWait(source.id, POLL);
    const restored = await client.sandboxes.restoreRootFS(source.id, { snapshotId: snapshot.id });
    assert.deepEqual(restored, { sandboxId: source.id, snapshotId: snapshot.id, status: "paused" });
    await client.sandboxes.resumeAndWait(source.id, POLL);
    const read = shell("cat /root/kept");
    assert.equal(text(await toExit(source, (await source.createSession(read)).id)), "old\n");
    await remove(client, source);
    const made = await client.sandboxes.claim("default", { snapshotId: snapshot.id });
    assert.deepEqual(await made.listSessions(), []);
    assert.equal(text(await toExit(made, (await made.createSession(read)).id)), "old\n");
    await client.sandboxes.deleteRootFSSnapshot(snapshot.id);
    await refused(client.sandboxes.getRootFSSnapshot(snapshot.id), 404, "snapshot_not_found");
    await remove(client, made);
  },
};
