/** Contexts through the vendor's TypeScript client: cmd, cmdStream, run and the calls below them. */
import assert from "node:assert/strict";
import type { Sandbox } from "sandbox0";
import { refused } from "./harness.ts";

const script = (line: string) => ({ command: ["sh", "-c", line] });

const interpreter = (sandbox: Sandbox, alias = "python", more: object = {}) =>
  sandbox.createContext({ type: "repl", repl: { alias }, ...more });

async function quick<T>(work: Promise<T>): Promise<T> {
  const begun = Date.now();
  const done = await work;
  assert.ok(Date.now() - begun < 10_000, "it took too long");
  return done;
}

export const contextStories = {
  async cmd_gives_output_and_exit_code(sandbox: Sandbox) {
    const options = { ...script("pwd; echo $WORD >&2; exit 3"), cwd: "/tmp", envVars: { WORD: "warn" } };
    const done = await sandbox.cmd("greet", options);
    assert.ok(done.contextId.startsWith("ctx-"));
    assert.deepEqual([done.stdout, done.stderr], ["/tmp\n", "warn\n"]);
    assert.deepEqual([done.exitCode, done.state], [3, "crashed"]);
    assert.deepEqual(done.outputRaw.trim().split("\n").sort(), ["/tmp", "warn"]);
    const sized = await sandbox.cmd("stty size", { ptyRows: 7, ptyCols: 70 });
    assert.deepEqual([sized.outputRaw, sized.exitCode], ["7 70\r\n", 0]);
  },

  // case C2
  async cmd_sees_the_end_of_input(sandbox: Sandbox) {
    for (const [command, code] of [["cat", 0], ["grep x", 1], ["sh -c 'read v'", 1]] as const) {
      const done = await quick(sandbox.cmd(command));
      assert.deepEqual([done.stdout, done.exitCode], ["", code], command);
    }
  },

  // case F4
  async cmd_returns_before_what_it_left(sandbox: Sandbox) {
    const done = await quick(sandbox.cmd("leaves", script("sleep 60 & echo done")));
    assert.deepEqual([done.stdout, done.exitCode], ["done\n", 0]);
  },

  async cmd_refuses_a_missing_program(sandbox: Sandbox) {
    const before = (await sandbox.listContexts()).length;
    await refused(sandbox.cmd("/no/such/program"), 400, "create_failed");
    assert.equal((await sandbox.listContexts()).length, before);
  },

  async cmd_stream_shows_output_and_the_end(sandbox: Sandbox) {
    const stream = await sandbox.cmdStream("prints", script("echo out; echo err >&2; exit 4"));
    const shown: string[] = [];
    for await (const output of stream.outputs()) shown.push(`${output.source} ${output.data}`);
    assert.deepEqual(shown.sort(), ["stderr err\n", "stdout out\n"]);
    const done = await stream.wait();
    assert.deepEqual([done.exitCode, done.state], [4, "crashed"]);
  },

  async cmd_stream_takes_input_and_signals(sandbox: Sandbox) {
    const echo = await sandbox.cmdStream("reads", script("read line; echo got $line"));
    echo.sendInput("hello\n");
    const shown: string[] = [];
    for await (const output of echo.outputs()) shown.push(output.data);
    assert.deepEqual([shown.join(""), (await echo.wait()).exitCode], ["got hello\n", 0]);
    const waits = await sandbox.cmdStream(
      "waits", script("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"));
    for await (const output of waits.outputs()) {
      // The shell may say that its child was terminated.
      if (output.source !== "stdout") continue;
      assert.equal(output.data, "up\n");
      waits.sendSignal("TERM");
    }
    assert.equal((await waits.wait()).exitCode, 9);
  },

  async run_keeps_its_state(sandbox: Sandbox) {
    const first = await sandbox.run("python", "x = 20\nprint('set')");
    const second = await sandbox.run("python", "x + 22");
    assert.deepEqual([first.outputRaw, second.outputRaw], ["set\n", "42\n"]);
    assert.equal(first.contextId, second.contextId);
    assert.ok((await sandbox.run("python", "1 / 0")).outputRaw.includes("ZeroDivisionError"));
    assert.equal((await sandbox.run("bash", "word=kept; cd /tmp")).outputRaw, "");
    assert.equal((await sandbox.run("bash", "echo $word $PWD")).outputRaw, "kept /tmp\n");
    assert.equal((await sandbox.run("node", "let y = 6; y * 7")).outputRaw, "42\n");
    await refused(sandbox.run("cobol", "STOP RUN."), 400, "invalid_request");
  },

  // case A11
  async run_keeps_chunks_apart(sandbox: Sandbox) {
    const { id } = await interpreter(sandbox, "sh");
    const flood = "head -c 1000000 /dev/zero | tr '\\0' a; echo E >&2; (exit 3)";
    for (let turn = 0; turn < 20; turn += 1) {
      const done = await sandbox.contextExec(id, flood);
      assert.deepEqual([done.stdout!.length, done.stderr, done.exitCode], [1000000, "E\n", 3]);
      const told = await sandbox.contextExec(id, `echo ${turn}`);
      assert.deepEqual([told.outputRaw, told.stderr, told.exitCode], [`${turn}\n`, "", 0]);
    }
    await sandbox.deleteContext(id);
  },

  async contexts_are_listed_apart_from_sessions(sandbox: Sandbox) {
    const { id } = await interpreter(sandbox, "python", { cwd: "/tmp", envVars: { A: "b" } });
    const listed = (await sandbox.listContexts()).find((context) => context.id === id)!;
    assert.equal(listed.running, true);
    assert.deepEqual(listed.envVars, { A: "b" });
    const got = await sandbox.getContext(id);
    assert.deepEqual([got.type, got.alias, got.cwd], ["repl", "python", "/tmp"]);
    assert.ok((await sandbox.listSessions()).every((session) => !session.id.startsWith("ses-ctx")));
    await refused(sandbox.getSession(`ses-${id}`), 404, "session_not_found");
    assert.equal((await sandbox.deleteContext(id)).data?.deleted, true);
    await refused(sandbox.getContext(id), 404, "context_not_found");
  },

  async context_takes_input_sizes_and_signals(sandbox: Sandbox) {
    const { id } = await interpreter(sandbox, "python", { ptySize: { rows: 24, cols: 80 } });
    await sandbox.contextResize(id, 40, 100);
    const size = await sandbox.contextExec(id, "import os; tuple(os.get_terminal_size())");
    assert.equal(size.outputRaw, "(100, 40)\r\n");
    await sandbox.contextInput(id, "typed = 5\n");
    assert.equal((await sandbox.contextExec(id, "typed")).outputRaw, "5\r\n");
    await sandbox.contextSignal(id, "SIGINT");
    assert.equal((await sandbox.contextExec(id, "typed")).outputRaw, "5\r\n");
    await sandbox.deleteContext(id);
    const plain = await interpreter(sandbox, "sh");
    await refused(sandbox.contextResize(plain.id, 40, 100), 409, "pty_unavailable");
    await sandbox.deleteContext(plain.id);
  },

  async context_restarts_afresh(sandbox: Sandbox) {
    const { id } = await interpreter(sandbox);
    await sandbox.contextExec(id, "x = 1");
    assert.equal((await sandbox.restartContext(id)).running, true);
    assert.ok((await sandbox.contextExec(id, "x")).outputRaw.includes("NameError"));
    await sandbox.deleteContext(id);
  },

  async context_that_ended_is_gone(sandbox: Sandbox) {
    const { id } = await interpreter(sandbox);
    const ended = await sandbox.contextExec(id, "import sys\nprint('bye')\nsys.exit(4)");
    assert.deepEqual([ended.outputRaw, ended.exitCode, ended.state], ["bye\n", 4, "crashed"]);
    await refused(sandbox.contextExec(id, "1"), 410, "process_finished");
    assert.equal((await sandbox.getContext(id)).running, false);
    await sandbox.deleteContext(id);
  },
};
