package conformance

import (
	"encoding/base64"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
)

// talk is what a WebSocket attachment has received so far.
type talk struct {
	events []event
	acks   []string
	errors map[string]string
}

func collect(t *testing.T, connection *sandbox0.SessionConnection, last func(*talk) bool) *talk {
	t.Helper()
	got := &talk{errors: map[string]string{}}
	for !last(got) {
		message, err := connection.Recv()
		if err != nil {
			t.Fatalf("the connection ended with %v after %v, acks %v", err, kinds(got.events), got.acks)
		}
		switch message.Type {
		case "event":
			got.events = append(got.events, *message.Event)
		case "ack":
			got.acks = append(got.acks, message.RequestID)
		case "error":
			got.errors[message.RequestID] = message.Error
		}
	}
	return got
}

func say(request, text string) sandbox0.SessionWebSocketRequest {
	return sandbox0.SessionWebSocketRequest{Type: "input", RequestID: request, InputID: request,
		DataBase64: base64.StdEncoding.EncodeToString([]byte(text))}
}

func exited(got *talk) bool {
	return len(got.events) > 0 && isExit(got.events[len(got.events)-1])
}

func restarting(t *testing.T, policy, line string, first, most int) spec {
	t.Helper()
	return shell(t, line, fields{"lifecycle": fields{"restart": fields{"policy": policy,
		"max_restarts": 3, "initial_backoff_ms": first, "max_backoff_ms": most}}})
}

// killTheRuntime ends the keeper of a sandbox and waits until a new generation runs.
func killTheRuntime(t *testing.T, w *world, s *sandbox) {
	t.Helper()
	found := keepers(t, s.ID)
	same(t, "keepers", len(found), 1)
	must(t, syscall.Kill(found[0], syscall.SIGKILL))
	until(t, "the replacement of the runtime", func() bool { return w.look(t, s).RuntimeGeneration == 2 })
}

var lifeStories = []story{
	{"websocket_replays_and_talks", func(t *testing.T, w *world) {
		made := w.run(t, terminal(t, "stty -echo; echo go; while read l; do echo got $l; stty size; done"))
		w.toOutput(t, w.sandbox, made.ID, "go\r\n", 0)
		connection := w.connect(t, made.ID, 0)
		defer connection.Close()
		must(t, connection.Send(say("a", "one\n")))
		must(t, connection.Send(sandbox0.SessionWebSocketRequest{Type: "resize", RequestID: "b", Rows: 40, Cols: 100}))
		must(t, connection.Send(say("c", "two\n")))
		got := collect(t, connection, func(got *talk) bool {
			return strings.Contains(written(t, got.events), "got two\r\n40 100\r\n") && len(got.acks) == 3
		})
		same(t, "acks", got.acks, []string{"a", "b", "c"})
		same(t, "errors", len(got.errors), 0)
		inOrder(t, got.events, 1)
		must(t, connection.Send(sandbox0.SessionWebSocketRequest{Type: "signal", RequestID: "d", Signal: "KILL"}))
		got = collect(t, connection, func(got *talk) bool { return exited(got) && len(got.acks) == 1 })
		same(t, "code", got.events[len(got.events)-1].ExitCode.Value, -1)
	}},
	{"websocket_resumes_after_seq", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "echo a; read x; echo b", nil))
		seen := w.toOutput(t, w.sandbox, made.ID, "a\n", 0)
		connection := w.connect(t, made.ID, seen[len(seen)-1].Seq)
		defer connection.Close()
		must(t, connection.Send(say("go", "\n")))
		got := collect(t, connection, exited)
		inOrder(t, slices.Concat(seen, got.events), 1)
		same(t, "output", written(t, slices.Concat(seen, got.events)), "a\nb\n")
	}},
	{"websocket_reports_errors", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/cat"))
		defer w.forget(t, made)
		connection := w.connect(t, made.ID, 0)
		defer connection.Close()
		stale := say("stale", "x")
		stale.ExpectedAttemptID = "att-00000000-000"
		must(t, connection.Send(stale))
		must(t, connection.Send(sandbox0.SessionWebSocketRequest{Type: "resize", RequestID: "pipes", Rows: 40, Cols: 100}))
		must(t, connection.Send(sandbox0.SessionWebSocketRequest{Type: "signal", RequestID: "name", Signal: "NOPE"}))
		must(t, connection.Send(say("fine", "x")))
		got := collect(t, connection, func(got *talk) bool { return len(got.acks) == 1 })
		same(t, "errors", len(got.errors), 3)
		same(t, "stale", got.errors["stale"], "session attempt mismatch")
		same(t, "name", got.errors["name"], "unsupported signal")
	}},
	{"websocket_close_is_not_eof", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/cat"))
		connection := w.connect(t, made.ID, 0)
		must(t, connection.Send(say("a", "before\n")))
		collect(t, connection, func(got *talk) bool { return len(got.acks) == 1 })
		must(t, connection.Close())
		same(t, "attempt", w.phase(t, w.sandbox, made.ID, "running").Attempt.Value.ID, made.Attempt.Value.ID)
		w.input(t, made.ID, "b", "after\n", true)
		same(t, "output", written(t, w.toExit(t, made.ID)), "before\nafter\n")
	}},
	{"restart_on_failure_until_the_limit", func(t *testing.T, w *world) {
		made := w.run(t, restarting(t, "on_failure", "exit 9", 50, 150))
		events := w.toKind(t, made.ID, "session.failed")
		same(t, "end", reasons(events, "session.failed"), []string{"restart_limit_exceeded"})
		same(t, "delays", reasons(events, "session.backoff"), []string{"50ms", "100ms", "150ms"})
		same(t, "exits", len(reasons(events, "attempt.exited")), 4)
		same(t, "restarts", w.phase(t, w.sandbox, made.ID, "failed").RestartCount, 3)
		made = w.run(t, restarting(t, "on_failure", "exit 0", 50, 150))
		w.toExit(t, made.ID)
		same(t, "restarts", w.phase(t, w.sandbox, made.ID, "exited").RestartCount, 0)
	}},
	{"restart_always_until_stopped", func(t *testing.T, w *world) {
		made := w.run(t, restarting(t, "always", "exit 0", 20000, 20000))
		w.toKind(t, made.ID, "session.backoff")
		w.phase(t, w.sandbox, made.ID, "backoff")
		same(t, "phase", string(w.state(t, made.ID, stopped).Phase), "stopped")
		same(t, "starts", len(reasons(w.journal(t, w.sandbox, made.ID, 100), "attempt.starting")), 1)
	}},
	{"readiness_process", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", nil))
		defer w.forget(t, made)
		same(t, "phase", string(made.Phase), "running")
	}},
	{"readiness_delay", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000", fields{"readiness": fields{"type": "delay", "delay_ms": 300}}))
		defer w.forget(t, made)
		same(t, "phase", string(made.Phase), "starting")
		events := w.toKind(t, made.ID, "session.ready")
		started := events[slices.Index(kinds(events), "attempt.started")]
		took := events[len(events)-1].OccurredAt.Sub(started.OccurredAt)
		check(t, took >= 290*time.Millisecond && took < 2*time.Second, "ready after %v", took)
		w.phase(t, w.sandbox, made.ID, "running")
	}},
	{"readiness_output", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "printf REA; sleep 0.3; printf DY; sleep 1000",
			fields{"readiness": fields{"type": "output", "output": "READY"}}))
		defer w.forget(t, made)
		same(t, "phase", string(made.Phase), "starting")
		same(t, "output", written(t, w.toKind(t, made.ID, "session.ready")), "READY")
		w.phase(t, w.sandbox, made.ID, "running")
	}},
	{"readiness_timeout", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "sleep 1000",
			fields{"readiness": fields{"type": "output", "output": "never", "timeout_ms": 200}}))
		events := w.toKind(t, made.ID, "session.failed")
		same(t, "reasons", reasons(events, "attempt.exited", "session.failed"), []string{"readiness_timeout", "readiness_timeout"})
		w.phase(t, w.sandbox, made.ID, "failed")
	}},
	{"idle_timeout_stops", func(t *testing.T, w *world) {
		begun := time.Now()
		made := w.run(t, shell(t, "echo up; sleep 1000", fields{"lifecycle": fields{"idle_timeout_seconds": 1}}))
		events := w.toExit(t, made.ID)
		took := time.Since(begun)
		check(t, took > 900*time.Millisecond && took < 5*time.Second, "stopped after %v", took)
		same(t, "reason", reasons(events, "attempt.exited"), []string{"session_expired"})
		check(t, slices.Contains(kinds(events), "session.expired"), "no event: %v", kinds(events))
		now := w.phase(t, w.sandbox, made.ID, "stopped")
		same(t, "desired", now.Spec.Lifecycle.Value.DesiredState.Value, stopped)
	}},
	{"lifetime_stops", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "while :; do echo busy; sleep 0.1; done", fields{"lifecycle": fields{"max_lifetime_seconds": 1}}))
		events := w.toExit(t, made.ID)
		same(t, "reason", reasons(events, "attempt.exited"), []string{"session_expired"})
		took := events[len(events)-1].OccurredAt.Sub(events[0].OccurredAt)
		check(t, took > 900*time.Millisecond && took < 5*time.Second, "stopped after %v", took)
		w.phase(t, w.sandbox, made.ID, "stopped")
	}},
	{"recovery_restarts_after_the_runtime_died", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "echo up; sleep 1000", nil), "")
		done := w.create(t, s, shell(t, "exit 5", nil), "")
		w.follow(t, s, done.ID, 0, isExit)
		seen := w.toOutput(t, s, made.ID, "up\n", 0)
		last := seen[len(seen)-1].Seq
		killTheRuntime(t, w, s)
		later := w.toOutput(t, s, made.ID, "up\n", last)
		inOrder(t, later, last+1)
		ended := later[slices.IndexFunc(later, isExit)]
		check(t, ended.Reason.Value == "runtime_replaced" && !ended.ExitCode.Set, "end: %+v", ended)
		again := later[slices.Index(kinds(later), "attempt.starting")]
		same(t, "start", words(again.Reason.Value, again.RuntimeGeneration), "runtime_recovered 2")
		same(t, "done", string(w.phase(t, s, done.ID, "exited").Phase), "exited")
	}},
	{"recovery_stop_keeps_the_journal", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "echo up; sleep 1000", fields{"lifecycle": fields{"runtime_recovery": "stop"}}), "")
		w.toOutput(t, s, made.ID, "up\n", 0)
		killTheRuntime(t, w, s)
		now := w.phase(t, s, made.ID, "stopped")
		same(t, "desired", now.Spec.Lifecycle.Value.DesiredState.Value, stopped)
		events := w.journal(t, s, made.ID, 100)
		same(t, "output", written(t, events), "up\n")
		same(t, "last", reasons(events[len(events)-1:], "session.stopped"), []string{"runtime_recovery_policy"})
	}},
}
