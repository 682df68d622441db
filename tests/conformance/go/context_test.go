package conformance

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

// script runs a line of shell instead of the command's text.
func script(line string) sandbox0.CmdOption {
	return sandbox0.WithCommand([]string{"sh", "-c", line})
}

func (w *world) interpreter(t *testing.T, alias string, size *apispec.PTYSize) string {
	t.Helper()
	request := apispec.CreateContextRequest{
		Type: apispec.NewOptProcessType(apispec.ProcessTypeRepl),
		Repl: apispec.NewOptCreateREPLContextRequest(apispec.CreateREPLContextRequest{
			Alias: apispec.NewOptString(alias),
		}),
		Cwd:     apispec.NewOptString("/tmp"),
		EnvVars: apispec.NewOptCreateContextRequestEnvVars(map[string]string{"A": "b"}),
	}
	if size != nil {
		request.PtySize = apispec.NewOptPTYSize(*size)
	}
	made, err := w.sandbox.CreateContext(w.ctx, request)
	must(t, err)
	return made.ID
}

func (w *world) cmd(t *testing.T, line string, options ...sandbox0.CmdOption) sandbox0.CmdResult {
	t.Helper()
	begun := time.Now()
	done, err := w.sandbox.Cmd(w.ctx, line, options...)
	must(t, err)
	check(t, time.Since(begun) < 10*time.Second, "%s took %v", line, time.Since(begun))
	check(t, done.ExitCode != nil, "%s has no exit code: %+v", line, done)
	return done
}

func (w *world) chunk(t *testing.T, id, code string) *apispec.ContextExecResponse {
	t.Helper()
	done, err := w.sandbox.ContextExec(w.ctx, id, code)
	must(t, err)
	return done
}

func (w *world) code(t *testing.T, alias, code string) sandbox0.RunResult {
	t.Helper()
	done, err := w.sandbox.Run(w.ctx, alias, code)
	must(t, err)
	return done
}

// shown reads a stream to its end.
func shown(t *testing.T, stream *sandbox0.ContextStream, each func(sandbox0.StreamOutput)) int {
	t.Helper()
	for {
		output, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		each(output)
	}
	done, err := stream.Wait()
	must(t, err)
	check(t, done.ExitCode != nil, "the stream ended without an exit code: %+v", done)
	must(t, stream.Close())
	return *done.ExitCode
}

var contextStories = []story{
	{"cmd_gives_output_and_exit_code", func(t *testing.T, w *world) {
		done := w.cmd(t, "greet", script("pwd; echo $WORD >&2; exit 3"), sandbox0.WithCmdCWD("/tmp"),
			sandbox0.WithCmdEnvVars(map[string]string{"WORD": "warn"}))
		check(t, strings.HasPrefix(done.ContextID, "ctx-"), "id %s", done.ContextID)
		same(t, "streams", words(done.Stdout, done.Stderr), words("/tmp\n", "warn\n"))
		same(t, "end", words(*done.ExitCode, done.State), "3 crashed")
		lines := strings.Fields(done.OutputRaw)
		slices.Sort(lines)
		same(t, "all", lines, []string{"/tmp", "warn"})
		sized := w.cmd(t, "stty size", sandbox0.WithCmdPTYSize(7, 70))
		same(t, "terminal", sized.OutputRaw, "7 70\r\n")
	}},
	// case C2
	{"cmd_sees_the_end_of_input", func(t *testing.T, w *world) {
		for line, code := range map[string]int{"cat": 0, "grep x": 1, "sh -c 'read v'": 1} {
			done := w.cmd(t, line)
			same(t, line, words(done.Stdout, *done.ExitCode), words("", code))
		}
	}},
	// case F4
	{"cmd_returns_before_what_it_left", func(t *testing.T, w *world) {
		done := w.cmd(t, "leaves", script("sleep 60 & echo done"))
		same(t, "end", words(done.Stdout, *done.ExitCode), words("done\n", 0))
	}},
	{"cmd_refuses_a_missing_program", func(t *testing.T, w *world) {
		before, err := w.sandbox.ListContext(w.ctx)
		must(t, err)
		_, err = w.sandbox.Cmd(w.ctx, "/no/such/program")
		refused(t, err, 400, "create_failed")
		after, err := w.sandbox.ListContext(w.ctx)
		must(t, err)
		same(t, "contexts", len(after), len(before))
	}},
	{"cmd_stream_shows_output_and_the_end", func(t *testing.T, w *world) {
		stream, err := w.sandbox.CmdStream(w.ctx, "prints", script("echo out; echo err >&2; exit 4"))
		must(t, err)
		var lines []string
		code := shown(t, stream, func(output sandbox0.StreamOutput) {
			lines = append(lines, output.Source+" "+output.Data)
		})
		slices.Sort(lines)
		same(t, "output", lines, []string{"stderr err\n", "stdout out\n"})
		same(t, "code", code, 4)
	}},
	{"cmd_stream_takes_input_and_signals", func(t *testing.T, w *world) {
		echo, err := w.sandbox.CmdStream(w.ctx, "reads", script("read line; echo got $line"))
		must(t, err)
		must(t, echo.SendInput("hello\n", ""))
		var text strings.Builder
		code := shown(t, echo, func(output sandbox0.StreamOutput) { text.WriteString(output.Data) })
		same(t, "echo", words(text.String(), code), words("got hello\n", 0))
		waits, err := w.sandbox.CmdStream(w.ctx, "waits",
			script("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"))
		must(t, err)
		code = shown(t, waits, func(output sandbox0.StreamOutput) {
			// The shell may say that its child was terminated.
			if output.Source == "stdout" {
				same(t, "output", output.Data, "up\n")
				must(t, waits.SendSignal("TERM"))
			}
		})
		same(t, "code", code, 9)
	}},
	{"run_keeps_its_state", func(t *testing.T, w *world) {
		first := w.code(t, "python", "x = 20\nprint('set')")
		second := w.code(t, "python", "x + 22")
		same(t, "output", words(first.OutputRaw, second.OutputRaw), words("set\n", "42\n"))
		same(t, "context", first.ContextID, second.ContextID)
		check(t, strings.Contains(w.code(t, "python", "1 / 0").OutputRaw, "ZeroDivisionError"), "no error")
		same(t, "bash", w.code(t, "bash", "word=kept; cd /tmp").OutputRaw, "")
		same(t, "bash", w.code(t, "bash", "echo $word $PWD").OutputRaw, "kept /tmp\n")
		same(t, "node", w.code(t, "node", "let y = 6; y * 7").OutputRaw, "42\n")
		_, err := w.sandbox.Run(w.ctx, "cobol", "STOP RUN.")
		refused(t, err, 400, "invalid_request")
	}},
	// case A11
	{"run_keeps_chunks_apart", func(t *testing.T, w *world) {
		id := w.interpreter(t, "sh", nil)
		flood := `head -c 1000000 /dev/zero | tr '\0' a; echo E >&2; (exit 3)`
		for turn := range 20 {
			done := w.chunk(t, id, flood)
			same(t, "flood", words(len(done.Stdout.Value), done.Stderr.Value, done.ExitCode.Value),
				words(1000000, "E\n", 3))
			told := w.chunk(t, id, words("echo", turn))
			same(t, "next", words(told.OutputRaw, told.Stderr.Value), words(words(turn)+"\n", ""))
		}
		_, err := w.sandbox.DeleteContext(w.ctx, id)
		must(t, err)
	}},
	{"contexts_are_listed_apart_from_sessions", func(t *testing.T, w *world) {
		id := w.interpreter(t, "python", nil)
		listed, err := w.sandbox.ListContext(w.ctx)
		must(t, err)
		at := slices.IndexFunc(listed, func(found apispec.ContextResponse) bool { return found.ID == id })
		check(t, at >= 0 && listed[at].Running, "%s is not listed: %v", id, listed)
		same(t, "variables", listed[at].EnvVars.Value, map[string]string{"A": "b"})
		got, err := w.sandbox.GetContext(w.ctx, id)
		must(t, err)
		same(t, "context", words(got.Type, got.Alias.Value, got.Cwd.Value), "repl python /tmp")
		sessions, err := w.sandbox.ListSessions(w.ctx)
		must(t, err)
		for _, found := range sessions {
			check(t, !strings.HasPrefix(found.ID, "ses-ctx"), "%s is listed as a session", found.ID)
		}
		_, err = w.sandbox.GetSession(w.ctx, "ses-"+id)
		refused(t, err, 404, "session_not_found")
		_, err = w.sandbox.DeleteContext(w.ctx, id)
		must(t, err)
		_, err = w.sandbox.GetContext(w.ctx, id)
		refused(t, err, 404, "context_not_found")
	}},
	{"context_takes_input_sizes_and_signals", func(t *testing.T, w *world) {
		id := w.interpreter(t, "python", &apispec.PTYSize{
			Rows: apispec.NewOptInt32(24), Cols: apispec.NewOptInt32(80)})
		_, err := w.sandbox.ContextResize(w.ctx, id, 40, 100)
		must(t, err)
		size := w.chunk(t, id, "import os; tuple(os.get_terminal_size())")
		same(t, "size", size.OutputRaw, "(100, 40)\r\n")
		_, err = w.sandbox.ContextInput(w.ctx, id, "typed = 5\n")
		must(t, err)
		same(t, "typed", w.chunk(t, id, "typed").OutputRaw, "5\r\n")
		_, err = w.sandbox.ContextSignal(w.ctx, id, "SIGINT")
		must(t, err)
		same(t, "typed", w.chunk(t, id, "typed").OutputRaw, "5\r\n")
		plain := w.interpreter(t, "sh", nil)
		_, err = w.sandbox.ContextResize(w.ctx, plain, 40, 100)
		refused(t, err, 409, "pty_unavailable")
		for _, made := range []string{id, plain} {
			_, err = w.sandbox.DeleteContext(w.ctx, made)
			must(t, err)
		}
	}},
	{"context_restarts_afresh", func(t *testing.T, w *world) {
		id := w.interpreter(t, "python", nil)
		w.chunk(t, id, "x = 1")
		again, err := w.sandbox.RestartContext(w.ctx, id)
		must(t, err)
		check(t, again.Running, "it does not run")
		check(t, strings.Contains(w.chunk(t, id, "x").OutputRaw, "NameError"), "the state was kept")
		_, err = w.sandbox.DeleteContext(w.ctx, id)
		must(t, err)
	}},
	{"context_that_ended_is_gone", func(t *testing.T, w *world) {
		id := w.interpreter(t, "python", nil)
		ended := w.chunk(t, id, "import sys\nprint('bye')\nsys.exit(4)")
		same(t, "end", words(ended.OutputRaw, ended.ExitCode.Value, ended.State.Value), words("bye\n", 4, "crashed"))
		_, err := w.sandbox.ContextExec(w.ctx, id, "1")
		refused(t, err, 410, "process_finished")
		got, err := w.sandbox.GetContext(w.ctx, id)
		must(t, err)
		check(t, !got.Running, "it runs")
		_, err = w.sandbox.DeleteContext(w.ctx, id)
		must(t, err)
	}},
}
