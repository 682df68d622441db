/** Sessions through the vendor's TypeScript client: creating, reading and writing. */
import assert from "node:assert/strict";
import type { Sandbox } from "sandbox0";
import {
  bytes, follow, inOrder, isExit, journal, kinds, refused, send, shell, terminal, text, toExit, toOutput,
  waitPhase, written,
} from "./harness.ts";

const LONG = shell("sleep 1000");

/** A session whose journal of 64 KiB was printed over several times. */
async function flooded(sandbox: Sandbox) {
  const session = await sandbox.createSession(
    shell("head -c 400000 /dev/zero | tr '\\0' x", { eventRetention: { maxBytes: 65536 } }));
  return waitPhase(sandbox, session.id, "exited");
}

export const sessionStories = {
  async create_runs_the_command(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("echo hello; exit 3", { name: "greeter" }));
    assert.match(session.id, /^ses-/);
    assert.equal(session.specVersion, 1);
    const events = await toExit(sandbox, session.id);
    inOrder(events, 1);
    assert.equal(events[0].type, "session.created");
    assert.equal(text(events), "hello\n");
    assert.deepEqual([events.at(-1)?.exitCode, events.at(-1)?.reason], [3, "crashed"]);
    const now = await waitPhase(sandbox, session.id, "exited");
    assert.deepEqual([now.attempt?.exitCode, now.attempt?.number, now.attempt?.pid], [3, 1, undefined]);
  },

  async create_fills_in_the_defaults(sandbox: Sandbox) {
    const { spec } = await sandbox.createSession({ command: ["/bin/true"], name: "  padded " });
    assert.equal(spec.name, "padded");
    assert.equal(spec.io?.mode, "pipes");
    assert.equal(spec.io?.terminal, undefined);
    const { policy, maxRestarts, windowSeconds, initialBackoffMs, maxBackoffMs } = spec.lifecycle!.restart!;
    assert.deepEqual([policy, maxRestarts, windowSeconds, initialBackoffMs, maxBackoffMs], ["never", 5, 60, 250, 5000]);
    assert.equal(spec.lifecycle?.runtimeRecovery, "restart");
    assert.equal(spec.lifecycle?.stopGracePeriodSeconds, 10);
    assert.deepEqual([spec.readiness?.type, spec.readiness?.timeoutMs], ["process", 30000]);
    assert.deepEqual([spec.eventRetention?.maxBytes, spec.eventRetention?.maxAgeSeconds], [67108864, 86400]);
    const { rows, cols, term } = (await sandbox.createSession(terminal("true"))).spec.io!.terminal!;
    assert.deepEqual([rows, cols, term], [24, 80, "xterm-256color"]);
  },

  async create_of_a_missing_program_is_failed(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/no/such/program"] });
    assert.deepEqual(
      [session.phase, session.attempt?.reason, session.attempt?.exitCode], ["failed", "start_failed", undefined]);
  },

  async create_refuses_a_blank_command(sandbox: Sandbox) {
    await refused(sandbox.createSession({ command: ["  "] }), 400, "invalid_request");
  },

  async create_with_key_is_idempotent(sandbox: Sandbox) {
    const first = await sandbox.createSession(LONG, { idempotencyKey: "ts-same" });
    const again = await sandbox.createSession(LONG, { idempotencyKey: "ts-same" });
    assert.deepEqual([again.id, again.attempt?.id], [first.id, first.attempt?.id]);
    await sandbox.deleteSession(first.id);
  },

  async create_with_key_conflicts_on_other_spec(sandbox: Sandbox) {
    const first = await sandbox.createSession(LONG, { idempotencyKey: "ts-other" });
    await refused(
      sandbox.createSession(shell("sleep 1001"), { idempotencyKey: "ts-other" }), 409, "session_conflict");
    await sandbox.deleteSession(first.id);
  },

  async create_with_key_after_stop_and_update(sandbox: Sandbox) {
    const first = await sandbox.createSession(LONG, { idempotencyKey: "ts-later" });
    await sandbox.setSessionDesiredState(first.id, "stopped");
    assert.equal((await sandbox.createSession(LONG, { idempotencyKey: "ts-later" })).id, first.id);
    await sandbox.updateSession(first.id, shell("sleep 1002"));
    const again = await sandbox.createSession(LONG, { idempotencyKey: "ts-later" });
    assert.deepEqual([again.id, again.spec.command[2]], [first.id, "sleep 1002"]);
    await sandbox.deleteSession(first.id);
  },

  async key_is_free_after_delete(sandbox: Sandbox) {
    const first = await sandbox.createSession(LONG, { idempotencyKey: "ts-free" });
    await sandbox.deleteSession(first.id);
    const second = await sandbox.createSession(shell("sleep 1001"), { idempotencyKey: "ts-free" });
    assert.notEqual(second.id, first.id);
    await sandbox.deleteSession(second.id);
  },

  async sessions_are_listed_in_order(sandbox: Sandbox) {
    const made: string[] = [];
    for (let count = 0; count < 3; count++) {
      made.push((await sandbox.createSession({ command: ["/bin/true"] })).id);
    }
    const listed = (await sandbox.listSessions()).map((item) => item.id);
    assert.deepEqual(listed.filter((id) => made.includes(id)), made);
  },

  async unknown_session_is_not_found(sandbox: Sandbox) {
    await refused(sandbox.getSession("ses-00000000-000"), 404, "session_not_found");
  },

  async streams_are_kept_apart(sandbox: Sandbox) {
    let events = await toExit(sandbox, (await sandbox.createSession(shell("echo out; echo err >&2"))).id);
    assert.deepEqual([text(events, "stdout"), text(events, "stderr")], ["out\n", "err\n"]);
    events = await toExit(sandbox, (await sandbox.createSession(terminal("echo out; echo err >&2"))).id);
    assert.equal(text(events, "pty"), "out\r\nerr\r\n");
  },

  async bytes_survive(sandbox: Sandbox) {
    const every = Buffer.from(Array.from({ length: 256 * 64 }, (_, index) => index % 256));
    const session = await sandbox.createSession({ command: ["/bin/cat"] });
    await send(sandbox, session.id, every, { eof: true });
    assert.ok(written(await toExit(sandbox, session.id)).equals(every));
  },

  async page_through_the_journal(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("for i in 1 2 3 4 5; do echo $i; sleep 0.02; done"));
    const whole = await toExit(sandbox, session.id);
    assert.deepEqual(await journal(sandbox, session.id, 2), whole);
    const latest = whole.at(-1)!.seq;
    const page = await sandbox.listSessionEvents(session.id, { after: latest });
    assert.deepEqual([page.events, page.cursor.earliest, page.cursor.latest], [[], 1, latest]);
  },

  async page_refuses_a_cursor_ahead(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/true"] });
    await waitPhase(sandbox, session.id, "exited");
    await refused(sandbox.listSessionEvents(session.id, { after: 1_000_000 }), 400, "invalid_request");
  },

  async page_refuses_an_expired_cursor(sandbox: Sandbox) {
    const session = await flooded(sandbox);
    const error = await refused(sandbox.listSessionEvents(session.id, { after: 1 }), 410, "event_cursor_expired");
    const { earliest } = (await sandbox.getSession(session.id)).cursor;
    assert.ok(error.message.includes(String(earliest)), error.message);
    assert.deepEqual(error.details, { earliest });
    const page = await sandbox.listSessionEvents(session.id, { after: earliest - 1 });
    assert.equal(page.events[0].seq, earliest);
    assert.equal((await sandbox.listSessionEvents(session.id)).events[0].seq, earliest);
  },

  async watch_replays_and_follows(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("echo first; read line; echo $line"));
    const events = await follow(sandbox, session.id, async (event) => {
      if (bytes(event).toString() === "first\n") await send(sandbox, session.id, "second\n");
      return isExit(event);
    });
    inOrder(events, 1);
    assert.equal(text(events), "first\nsecond\n");
    assert.deepEqual(kinds(events).slice(0, 3), ["session.created", "attempt.starting", "attempt.started"]);
  },

  async watch_resumes_after_seq(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("echo a; sleep 0.1; echo b; sleep 0.1; echo c"));
    const first = await toOutput(sandbox, session.id, "a\n");
    const rest = await toExit(sandbox, session.id, first.at(-1)!.seq);
    assert.deepEqual([...first, ...rest], await journal(sandbox, session.id));
  },

  async watch_prefers_last_event_id(sandbox: Sandbox) {
    const session = await sandbox.createSession(shell("echo a"));
    const whole = await toExit(sandbox, session.id);
    const stream = await sandbox.watchSessionEvents(
      session.id, { after: 1, lastEventId: String(whole.at(-2)!.seq) });
    for await (const event of stream) {
      assert.deepEqual(event, whole.at(-1));
      break;
    }
    await stream.close();
  },

  async watch_refuses_an_expired_cursor(sandbox: Sandbox) {
    const session = await flooded(sandbox);
    const error = await refused(sandbox.watchSessionEvents(session.id, { after: 1 }), 410, "event_cursor_expired");
    const { earliest } = (await sandbox.getSession(session.id)).cursor;
    assert.deepEqual(error.details, { earliest });
    const [first] = await follow(sandbox, session.id, () => true);
    assert.equal(first.seq, earliest);
  },

  async input_is_accepted_once(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/cat"] });
    const once = () => send(sandbox, session.id, "once\n", { inputId: "line-1" });
    const [first, again] = [await once(), await once()];
    assert.deepEqual([first.accepted, first.duplicate, again.accepted, again.duplicate], [true, false, true, true]);
    assert.deepEqual([first.attemptId, again.attemptId], [session.attempt?.id, session.attempt?.id]);
    await send(sandbox, session.id, undefined, { eof: true });
    const events = await toExit(sandbox, session.id);
    assert.equal(text(events), "once\n");
    assert.equal(kinds(events).filter((kind) => kind === "input.accepted").length, 2);
    assert.equal((await once()).duplicate, true);
  },

  async input_conflicts_on_other_content(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/cat"] });
    await send(sandbox, session.id, "one\n", { inputId: "line-1" });
    await refused(send(sandbox, session.id, "two\n", { inputId: "line-1" }), 409, "session_conflict");
    await send(sandbox, session.id, undefined, { eof: true });
    assert.equal(text(await toExit(sandbox, session.id)), "one\n");
  },

  async input_refuses_a_stale_attempt(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/cat"] });
    await sandbox.createSessionAttempt(session.id, true);
    await refused(
      send(sandbox, session.id, "late\n", { expectedAttemptId: session.attempt!.id }), 409, "session_conflict");
    await sandbox.deleteSession(session.id);
  },

  async input_after_exit_conflicts(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/true"] });
    await waitPhase(sandbox, session.id, "exited");
    await refused(send(sandbox, session.id, "late\n"), 409, "session_conflict");
  },

  async eof_ends_a_pipe(sandbox: Sandbox) {
    const session = await sandbox.createSession({ command: ["/bin/cat"] });
    await send(sandbox, session.id, "hello\n", { eof: true });
    const events = await toExit(sandbox, session.id);
    assert.equal(text(events), "hello\n");
    assert.deepEqual([events.at(-1)?.exitCode, events.at(-1)?.reason], [0, "stopped"]);
  },

  async eof_ends_a_terminal(sandbox: Sandbox) {
    const session = await sandbox.createSession(terminal("stty -echo; echo go; exec cat"));
    await toOutput(sandbox, session.id, "go\r\n");
    await send(sandbox, session.id, "no newline", { eof: true });
    const events = await toExit(sandbox, session.id);
    assert.equal(text(events), "go\r\nno newline");
    assert.equal(events.at(-1)?.exitCode, 0);
  },
};
