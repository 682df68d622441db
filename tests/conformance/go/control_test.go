package conformance

import (
	"errors"
	"io"
	"slices"
	"testing"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

var inputStories = []story{
	{"input_is_accepted_once", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/cat"))
		first := w.input(t, made.ID, "line-1", "once\n", false)
		again := w.input(t, made.ID, "line-1", "once\n", false)
		check(t, first.Accepted && !first.Duplicate, "first: %+v", first)
		check(t, again.Accepted && again.Duplicate, "again: %+v", again)
		same(t, "attempt", again.AttemptID, made.Attempt.Value.ID)
		w.input(t, made.ID, "end", "", true)
		events := w.toExit(t, made.ID)
		same(t, "output", written(t, events), "once\n")
		same(t, "receipts", len(reasons(events, "input.accepted")), 2)
		check(t, w.input(t, made.ID, "line-1", "once\n", false).Duplicate, "forgotten after the exit")
	}},
	{"input_conflicts_on_other_content", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/cat"))
		w.input(t, made.ID, "line-1", "one\n", false)
		_, err := w.write(made.ID, "line-1", "two\n", false, "")
		refused(t, err, 409, "session_conflict")
		w.input(t, made.ID, "end", "", true)
		same(t, "output", written(t, w.toExit(t, made.ID)), "one\n")
	}},
	{"input_refuses_a_stale_attempt", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/cat"))
		defer w.forget(t, made)
		_, err := w.sandbox.CreateSessionAttempt(w.ctx, made.ID, true)
		must(t, err)
		_, err = w.write(made.ID, "late", "late\n", false, made.Attempt.Value.ID)
		refused(t, err, 409, "session_conflict")
	}},
	{"input_after_exit_conflicts", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/true"))
		w.phase(t, w.sandbox, made.ID, "exited")
		_, err := w.write(made.ID, "late", "late\n", false, "")
		refused(t, err, 409, "session_conflict")
	}},
	{"eof_ends_a_pipe", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/cat"))
		w.input(t, made.ID, "all", "hello\n", true)
		events := w.toExit(t, made.ID)
		same(t, "output", written(t, events), "hello\n")
		end := events[len(events)-1]
		check(t, end.ExitCode.Set && end.ExitCode.Value == 0 && end.Reason.Value == "stopped", "end: %+v", end)
	}},
	{"eof_ends_a_terminal", func(t *testing.T, w *world) {
		made := w.run(t, terminal(t, "stty -echo; echo go; exec cat"))
		w.toOutput(t, w.sandbox, made.ID, "go\r\n", 0)
		w.input(t, made.ID, "all", "no newline", true)
		events := w.toExit(t, made.ID)
		same(t, "output", written(t, events), "go\r\nno newline")
		same(t, "code", events[len(events)-1].ExitCode.Value, 0)
	}},
	{"resize_reaches_the_program", func(t *testing.T, w *world) {
		made := w.run(t, terminal(t, "stty size; read x; stty size"))
		w.toOutput(t, w.sandbox, made.ID, "24 80\r\n", 0)
		_, err := w.sandbox.ResizeSessionTerminal(w.ctx, made.ID, apispec.ExecutionSessionTerminalResizeRequest{
			Rows: 50, Cols: 132, ExpectedAttemptID: apispec.NewOptString(made.Attempt.Value.ID)})
		must(t, err)
		w.input(t, made.ID, "go", "\n", false)
		events := w.follow(t, w.sandbox, made.ID, 0, isExit)
		check(t, slices.Contains(kinds(events), "terminal.resized"), "no event: %v", kinds(events))
		w.toOutput(t, w.sandbox, made.ID, "50 132\r\n", 0)
	}},
	{"resize_refuses_a_stale_attempt", func(t *testing.T, w *world) {
		made := w.run(t, terminal(t, "sleep 1000"))
		defer w.forget(t, made)
		_, err := w.sandbox.CreateSessionAttempt(w.ctx, made.ID, true)
		must(t, err)
		_, err = w.sandbox.ResizeSessionTerminal(w.ctx, made.ID, apispec.ExecutionSessionTerminalResizeRequest{
			Rows: 50, Cols: 132, ExpectedAttemptID: apispec.NewOptString(made.Attempt.Value.ID)})
		refused(t, err, 409, "session_conflict")
	}},
	{"resize_refuses_pipes", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", nil))
		defer w.forget(t, made)
		_, err := w.sandbox.ResizeSessionTerminal(w.ctx, made.ID, apispec.ExecutionSessionTerminalResizeRequest{Rows: 50, Cols: 132})
		refused(t, err, 409, "session_conflict")
	}},
}

var controlStories = []story{
	{"stop_and_start", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", nil))
		defer w.forget(t, made)
		now := w.state(t, made.ID, stopped)
		same(t, "phase", string(now.Phase), "stopped")
		same(t, "version", now.SpecVersion, 2)
		same(t, "reason", now.Attempt.Value.Reason.Value, "desired_state_stopped")
		same(t, "again", string(w.state(t, made.ID, stopped).Phase), "stopped")
		same(t, "attempt", w.state(t, made.ID, running).Attempt.Value.Number, 2)
		events := w.journal(t, w.sandbox, made.ID, 100)
		same(t, "states", reasons(events, "session.desired_state"), []string{"stopped", "stopped", "running"})
	}},
	{"attempt_conflicts_while_one_runs", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", nil))
		defer w.forget(t, made)
		_, err := w.sandbox.CreateSessionAttempt(w.ctx, made.ID, false)
		refused(t, err, 409, "session_conflict")
	}},
	{"attempt_replaces", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", nil))
		defer w.forget(t, made)
		now, err := w.sandbox.CreateSessionAttempt(w.ctx, made.ID, true)
		must(t, err)
		same(t, "attempt", now.Attempt.Value.Number, 2)
		events := w.journal(t, w.sandbox, made.ID, 100)
		same(t, "exits", reasons(events, "attempt.exited"), []string{"attempt_replaced"})
		same(t, "starts", reasons(events, "attempt.starting"), []string{"created", "attempt_created"})
	}},
	{"update_replaces_the_process", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", fields{"name": "old"}))
		defer w.forget(t, made)
		now, err := w.sandbox.UpdateSession(w.ctx, made.ID, shell(t, "sleep 1001", nil))
		must(t, err)
		same(t, "version", now.SpecVersion, 2)
		same(t, "name", now.Spec.Name.Or(""), "")
		events := w.journal(t, w.sandbox, made.ID, 100)
		same(t, "reasons", reasons(events, "session.updated", "attempt.exited", "attempt.starting"),
			[]string{"created", "-", "spec_replaced", "spec_updated"})
	}},
	{"update_keeps_the_process", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", nil))
		defer w.forget(t, made)
		now, err := w.sandbox.UpdateSession(w.ctx, made.ID, shell(t, "sleep 1000", fields{
			"name": "renamed", "lifecycle": fields{"restart": fields{"policy": "always"}}}))
		must(t, err)
		same(t, "name", now.Spec.Name.Value, "renamed")
		same(t, "attempt", now.Attempt.Value.ID, made.Attempt.Value.ID)
		same(t, "pid", now.Attempt.Value.Pid.Value, made.Attempt.Value.Pid.Value)
	}},
	{"delete_ends_everything", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "echo up; sleep 1000", nil))
		w.toOutput(t, w.sandbox, made.ID, "up\n", 0)
		stream, err := w.sandbox.WatchSessionEvents(w.ctx, made.ID, nil)
		must(t, err)
		defer stream.Close()
		w.forget(t, made)
		for err == nil {
			_, err = stream.Recv()
		}
		check(t, errors.Is(err, io.EOF), "the stream ended with %v", err)
		_, err = w.sandbox.GetSession(w.ctx, made.ID)
		refused(t, err, 404, "session_not_found")
		_, err = w.sandbox.ListSessionEvents(w.ctx, made.ID, nil)
		refused(t, err, 404, "session_not_found")
	}},
	{"signal_reaches_the_program", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "trap 'echo caught; exit 0' USR1; echo up; while :; do sleep 0.05; done", nil))
		w.toOutput(t, w.sandbox, made.ID, "up\n", 0)
		w.signal(t, made, "usr1")
		events := w.toExit(t, made.ID)
		same(t, "output", written(t, events, "stdout"), "up\ncaught\n")
		same(t, "event", reasons(events, "signal.sent"), []string{"SIGUSR1"})
	}},
	{"signal_refuses_unknown_names", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", nil))
		defer w.forget(t, made)
		_, err := w.sandbox.SendSessionSignal(w.ctx, made.ID, apispec.ExecutionSessionSignalRequest{Signal: "SIGNOPE"})
		refused(t, err, 400, "invalid_request")
	}},
	{"signal_death_is_reported", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/sleep", "1000"))
		w.signal(t, made, "9")
		events := w.toExit(t, made.ID)
		end := events[len(events)-1]
		check(t, end.ExitCode.Value == -1 && end.Reason.Value == "killed", "end: %+v", end)
		same(t, "code", w.phase(t, w.sandbox, made.ID, "exited").Attempt.Value.ExitCode.Value, -1)
	}},
}

func (w *world) signal(t *testing.T, made *session, name string) {
	t.Helper()
	_, err := w.sandbox.SendSessionSignal(w.ctx, made.ID, apispec.ExecutionSessionSignalRequest{
		Signal: name, ExpectedAttemptID: apispec.NewOptString(made.Attempt.Value.ID)})
	must(t, err)
}

func (w *world) connect(t *testing.T, id string, after int64) *sandbox0.SessionConnection {
	t.Helper()
	connection, _, err := w.sandbox.ConnectSession(w.ctx, id, &sandbox0.SessionWebSocketOptions{After: after})
	must(t, err)
	return connection
}
