"""Contexts through the vendor's Python client: cmd, cmd_stream, run and the calls below them."""

import time

from drive import refused
from sandbox0 import CmdOptions
from sandbox0.apispec.models.create_context_request import CreateContextRequest


def argv(*command, **fields):
    return CmdOptions(command=list(command), **fields)


def interpreter(sandbox, alias="python", **fields):
    wanted = {"type": "repl", "repl": {"alias": alias}, **fields}
    return sandbox.create_context(CreateContextRequest.from_dict(wanted))


def test_cmd_gives_output_and_exit_code(sandbox):
    done = sandbox.cmd("greet", argv("sh", "-c", "pwd; echo $WORD >&2; exit 3", cwd="/tmp",
                                     env_vars={"WORD": "warn"}))
    assert done.context_id.startswith("ctx-")
    assert (done.stdout, done.stderr) == ("/tmp\n", "warn\n")
    assert (done.exit_code, done.state) == (3, "crashed")
    assert sorted(done.output_raw.splitlines()) == ["/tmp", "warn"]
    sized = sandbox.cmd("stty size", CmdOptions(pty_rows=7, pty_cols=70))
    assert (sized.output_raw, sized.exit_code) == ("7 70\r\n", 0)


# case C2
def test_cmd_sees_the_end_of_input(sandbox):
    for command in (["cat"], ["grep", "x"], ["sh", "-c", "read v"]):
        begun = time.monotonic()
        done = sandbox.cmd("reads", argv(*command))
        assert time.monotonic() - begun < 5, command
        assert done.stdout == ""
        assert done.exit_code == (0 if command == ["cat"] else 1)


# case F4
def test_cmd_returns_before_what_it_left(sandbox):
    begun = time.monotonic()
    done = sandbox.cmd("leaves", argv("sh", "-c", "sleep 60 & echo done"))
    assert time.monotonic() - begun < 10
    assert (done.stdout, done.exit_code) == ("done\n", 0)


def test_cmd_refuses_a_missing_program(sandbox):
    before = len(sandbox.list_contexts())
    refused(400, "create_failed", sandbox.cmd, "/no/such/program")
    assert len(sandbox.list_contexts()) == before


def test_cmd_stream_shows_output_and_the_end(sandbox):
    stream = sandbox.cmd_stream("prints", argv("sh", "-c", "echo out; echo err >&2; exit 4"))
    shown = [(output.source, output.data) for output in stream.iter_outputs()]
    assert sorted(shown) == [("stderr", "err\n"), ("stdout", "out\n")]
    done = stream.wait()
    assert (done.exit_code, done.state) == (4, "crashed")
    stream.close()


def test_cmd_stream_takes_input_and_signals(sandbox):
    echo = sandbox.cmd_stream("reads", argv("sh", "-c", "read line; echo got $line"))
    echo.send_input("hello\n")
    assert next(echo.iter_outputs()).data == "got hello\n"
    assert echo.wait().exit_code == 0
    waits = sandbox.cmd_stream(
        "waits", argv("sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"))
    assert next(waits.iter_outputs()).data == "up\n"
    waits.send_signal("TERM")
    assert waits.wait().exit_code == 9


def test_run_keeps_its_state(sandbox):
    first = sandbox.run("python", "x = 20\nprint('set')")
    second = sandbox.run("python", "x + 22")
    assert (first.output_raw, second.output_raw) == ("set\n", "42\n")
    assert first.context_id == second.context_id
    assert "ZeroDivisionError" in sandbox.run("python", "1 / 0").output_raw
    assert sandbox.run("bash", "word=kept; cd /tmp").output_raw == ""
    assert sandbox.run("bash", "echo $word $PWD").output_raw == "kept /tmp\n"
    assert sandbox.run("node", "let y = 6; y * 7").output_raw == "42\n"
    refused(400, "invalid_request", sandbox.run, "cobol", "STOP RUN.")


# case A11
def test_run_keeps_chunks_apart(sandbox):
    context = interpreter(sandbox, "sh")
    flood = "head -c 1000000 /dev/zero | tr '\\0' a; echo E >&2; (exit 3)"
    for turn in range(20):
        done = sandbox.context_exec(context.id, flood).to_dict()
        assert (len(done["stdout"]), done["stderr"], done["exit_code"]) == (1000000, "E\n", 3)
        told = sandbox.context_exec(context.id, f"echo {turn}").to_dict()
        assert (told["output_raw"], told["stderr"], told["exit_code"]) == (f"{turn}\n", "", 0)
    sandbox.delete_context(context.id)


def test_contexts_are_listed_apart_from_sessions(sandbox):
    context = interpreter(sandbox, cwd="/tmp", env_vars={"A": "b"})
    listed = {found.id: found.to_dict() for found in sandbox.list_contexts()}
    assert listed[context.id]["running"] is True
    assert listed[context.id]["env_vars"] == {"A": "b"}
    got = sandbox.get_context(context.id).to_dict()
    assert (got["type"], got["alias"], got["cwd"]) == ("repl", "python", "/tmp")
    assert all(not session.id.startswith("ses-ctx") for session in sandbox.list_sessions())
    refused(404, "session_not_found", sandbox.get_session, f"ses-{context.id}")
    assert sandbox.delete_context(context.id).data.deleted is True
    refused(404, "context_not_found", sandbox.get_context, context.id)


def test_context_takes_input_sizes_and_signals(sandbox):
    context = interpreter(sandbox, pty_size={"rows": 24, "cols": 80})
    assert sandbox.context_resize(context.id, 40, 100).data.resized is True
    size = sandbox.context_exec(context.id, "import os; tuple(os.get_terminal_size())")
    assert size.output_raw == "(100, 40)\r\n"
    assert sandbox.context_input(context.id, "typed = 5\n").data.written is True
    assert sandbox.context_exec(context.id, "typed").output_raw == "5\r\n"
    assert sandbox.context_signal(context.id, "SIGINT").data.signaled is True
    assert sandbox.context_exec(context.id, "typed").output_raw == "5\r\n"
    sandbox.delete_context(context.id)
    plain = interpreter(sandbox, "sh")
    refused(409, "pty_unavailable", sandbox.context_resize, plain.id, 40, 100)
    sandbox.delete_context(plain.id)


def test_context_restarts_afresh(sandbox):
    context = interpreter(sandbox)
    sandbox.context_exec(context.id, "x = 1")
    assert sandbox.restart_context(context.id).running is True
    assert "NameError" in sandbox.context_exec(context.id, "x").output_raw
    sandbox.delete_context(context.id)


def test_context_that_ended_is_gone(sandbox):
    context = interpreter(sandbox)
    ended = sandbox.context_exec(context.id, "import sys\nprint('bye')\nsys.exit(4)").to_dict()
    assert (ended["output_raw"], ended["exit_code"], ended["state"]) == ("bye\n", 4, "crashed")
    refused(410, "process_finished", sandbox.context_exec, context.id, "1")
    assert sandbox.get_context(context.id).running is False
    sandbox.delete_context(context.id)
