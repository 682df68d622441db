package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

const (
	running = apispec.ExecutionSessionDesiredStateRunning
	stopped = apispec.ExecutionSessionDesiredStateStopped
)

// flooded answers a session whose journal of 64 KiB was printed over several times.
func flooded(t *testing.T, w *world) *session {
	t.Helper()
	made := w.run(t, shell(t, `head -c 400000 /dev/zero | tr '\0' x`, fields{"event_retention": fields{"max_bytes": 65536}}))
	return w.phase(t, w.sandbox, made.ID, "exited")
}

var sessionStories = []story{
	{"create_runs_the_command", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "echo hello; exit 3", fields{"name": "greeter"}))
		check(t, strings.HasPrefix(made.ID, "ses-"), "id %s", made.ID)
		same(t, "version", made.SpecVersion, 1)
		events := w.toExit(t, made.ID)
		inOrder(t, events, 1)
		same(t, "first", events[0].Type, "session.created")
		same(t, "output", written(t, events), "hello\n")
		end := events[len(events)-1]
		same(t, "end", words(end.ExitCode.Value, end.Reason.Value), "3 crashed")
		now := w.phase(t, w.sandbox, made.ID, "exited")
		same(t, "code", now.Attempt.Value.ExitCode.Value, 3)
		check(t, !now.Attempt.Value.Pid.Set, "a pid is shown after the exit")
	}},
	{"create_fills_in_the_defaults", func(t *testing.T, w *world) {
		got := w.run(t, describe(t, fields{"name": "  padded "}, "/bin/true")).Spec
		same(t, "name", got.Name.Value, "padded")
		same(t, "mode", string(got.Io.Value.Mode.Value), "pipes")
		restart := got.Lifecycle.Value.Restart.Value
		same(t, "restart", words(restart.Policy.Value, restart.MaxRestarts.Value, restart.WindowSeconds.Value,
			restart.InitialBackoffMs.Value, restart.MaxBackoffMs.Value), "never 5 60 250 5000")
		same(t, "grace", got.Lifecycle.Value.StopGracePeriodSeconds.Value, 10)
		same(t, "timeout", got.Readiness.Value.TimeoutMs.Value, 30000)
		same(t, "retention", got.EventRetention.Value.MaxBytes.Value, 67108864)
		got = w.run(t, terminal(t, "true")).Spec
		size := got.Io.Value.Terminal.Value
		same(t, "terminal", words(size.Rows.Value, size.Cols.Value, size.Term.Value), "24 80 xterm-256color")
	}},
	{"create_of_a_missing_program_is_failed", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/no/such/program"))
		same(t, "phase", string(made.Phase), "failed")
		same(t, "reason", made.Attempt.Value.Reason.Value, "start_failed")
		check(t, !made.Attempt.Value.ExitCode.Set, "an exit code was invented")
	}},
	{"create_refuses_a_blank_command", func(t *testing.T, w *world) {
		_, err := w.sandbox.CreateSession(w.ctx, describe(t, nil, "  "), nil)
		refused(t, err, 400, "invalid_request")
	}},
	{"create_with_key_is_idempotent", func(t *testing.T, w *world) {
		first := w.create(t, w.sandbox, shell(t, "sleep 1000", nil), "go-same")
		again := w.create(t, w.sandbox, shell(t, "sleep 1000", nil), "go-same")
		defer w.forget(t, first)
		same(t, "id", again.ID, first.ID)
		same(t, "attempt", again.Attempt.Value.ID, first.Attempt.Value.ID)
	}},
	{"create_with_key_conflicts_on_other_spec", func(t *testing.T, w *world) {
		first := w.create(t, w.sandbox, shell(t, "sleep 1000", nil), "go-other")
		defer w.forget(t, first)
		_, err := w.sandbox.CreateSession(w.ctx, shell(t, "sleep 1001", nil), &sandbox0.CreateSessionOptions{IdempotencyKey: "go-other"})
		refused(t, err, 409, "session_conflict")
	}},
	{"create_with_key_after_stop_and_update", func(t *testing.T, w *world) {
		first := w.create(t, w.sandbox, shell(t, "sleep 1000", nil), "go-later")
		defer w.forget(t, first)
		w.state(t, first.ID, stopped)
		same(t, "id", w.create(t, w.sandbox, shell(t, "sleep 1000", nil), "go-later").ID, first.ID)
		_, err := w.sandbox.UpdateSession(w.ctx, first.ID, shell(t, "sleep 1002", nil))
		must(t, err)
		again := w.create(t, w.sandbox, shell(t, "sleep 1000", nil), "go-later")
		same(t, "id", again.ID, first.ID)
		same(t, "command", again.Spec.Command[2], "sleep 1002")
	}},
	{"key_is_free_after_delete", func(t *testing.T, w *world) {
		first := w.create(t, w.sandbox, shell(t, "sleep 1000", nil), "go-free")
		w.forget(t, first)
		second := w.create(t, w.sandbox, shell(t, "sleep 1001", nil), "go-free")
		defer w.forget(t, second)
		check(t, second.ID != first.ID, "the id came back")
	}},
	{"sessions_are_listed_in_order", func(t *testing.T, w *world) {
		var made []string
		for range 3 {
			made = append(made, w.run(t, describe(t, nil, "/bin/true")).ID)
		}
		listed, err := w.sandbox.ListSessions(w.ctx)
		must(t, err)
		var found []string
		for _, item := range listed {
			if slices.Contains(made, item.ID) {
				found = append(found, item.ID)
			}
		}
		same(t, "order", found, made)
	}},
	{"unknown_session_is_not_found", func(t *testing.T, w *world) {
		_, err := w.sandbox.GetSession(w.ctx, "ses-00000000-000")
		refused(t, err, 404, "session_not_found")
	}},
	{"streams_are_kept_apart", func(t *testing.T, w *world) {
		events := w.toExit(t, w.run(t, shell(t, "echo out; echo err >&2", nil)).ID)
		same(t, "stdout", written(t, events, "stdout"), "out\n")
		same(t, "stderr", written(t, events, "stderr"), "err\n")
		events = w.toExit(t, w.run(t, terminal(t, "echo out; echo err >&2")).ID)
		same(t, "pty", written(t, events, "pty"), "out\r\nerr\r\n")
	}},
	{"bytes_survive", func(t *testing.T, w *world) {
		var every []byte
		for index := range 256 * 64 {
			every = append(every, byte(index))
		}
		made := w.run(t, describe(t, nil, "/bin/cat"))
		w.input(t, made.ID, "all", string(every), true)
		check(t, written(t, w.toExit(t, made.ID)) == string(every), "the bytes differ")
	}},
	{"page_through_the_journal", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "for i in 1 2 3 4 5; do echo $i; sleep 0.02; done", nil))
		whole := w.toExit(t, made.ID)
		same(t, "pages", kinds(w.journal(t, w.sandbox, made.ID, 2)), kinds(whole))
		latest := whole[len(whole)-1].Seq
		page, err := w.sandbox.ListSessionEvents(w.ctx, made.ID, &sandbox0.SessionEventOptions{After: latest})
		must(t, err)
		same(t, "past the end", len(page.Events), 0)
		same(t, "cursor", fmt.Sprint(page.Cursor.Earliest, page.Cursor.Latest), fmt.Sprint(1, latest))
	}},
	{"page_refuses_a_cursor_ahead", func(t *testing.T, w *world) {
		made := w.run(t, describe(t, nil, "/bin/true"))
		w.phase(t, w.sandbox, made.ID, "exited")
		_, err := w.sandbox.ListSessionEvents(w.ctx, made.ID, &sandbox0.SessionEventOptions{After: 1_000_000})
		refused(t, err, 400, "invalid_request")
	}},
	{"page_refuses_an_expired_cursor", func(t *testing.T, w *world) {
		made := flooded(t, w)
		_, err := w.sandbox.ListSessionEvents(w.ctx, made.ID, &sandbox0.SessionEventOptions{After: 1})
		failure := refused(t, err, 410, "event_cursor_expired")
		check(t, strings.Contains(failure.Message, fmt.Sprint(made.Cursor.Earliest)), "%s does not name %d", failure.Message, made.Cursor.Earliest)
		page, err := w.sandbox.ListSessionEvents(w.ctx, made.ID, &sandbox0.SessionEventOptions{After: made.Cursor.Earliest - 1})
		must(t, err)
		same(t, "earliest", page.Events[0].Seq, made.Cursor.Earliest)
	}},
	{"watch_replays_and_follows", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "echo first; read line; echo $line", nil))
		events := w.follow(t, w.sandbox, made.ID, 0, func(e event) bool {
			if string(data(t, e)) == "first\n" {
				w.input(t, made.ID, "second", "second\n", false)
			}
			return isExit(e)
		})
		inOrder(t, events, 1)
		same(t, "output", written(t, events), "first\nsecond\n")
		same(t, "begin", kinds(events)[:3], []string{"session.created", "attempt.starting", "attempt.started"})
	}},
	{"watch_resumes_after_seq", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "echo a; sleep 0.1; echo b; sleep 0.1; echo c", nil))
		first := w.toOutput(t, w.sandbox, made.ID, "a\n", 0)
		rest := w.follow(t, w.sandbox, made.ID, first[len(first)-1].Seq, isExit)
		inOrder(t, slices.Concat(first, rest), 1)
		same(t, "output", written(t, slices.Concat(first, rest)), "a\nb\nc\n")
	}},
	{"watch_prefers_last_event_id", func(t *testing.T, w *world) {
		made := w.run(t, shell(t, "echo a", nil))
		whole := w.toExit(t, made.ID)
		stream, err := w.sandbox.WatchSessionEvents(w.ctx, made.ID, &sandbox0.SessionEventStreamOptions{
			After: 1, LastEventID: fmt.Sprint(whole[len(whole)-2].Seq)})
		must(t, err)
		defer stream.Close()
		next, err := stream.Recv()
		must(t, err)
		same(t, "next", next.Seq, whole[len(whole)-1].Seq)
	}},
	{"watch_refuses_an_expired_cursor", func(t *testing.T, w *world) {
		made := flooded(t, w)
		_, err := w.sandbox.WatchSessionEvents(w.ctx, made.ID, &sandbox0.SessionEventStreamOptions{After: 1})
		refused(t, err, 410, "event_cursor_expired")
		stream, err := w.sandbox.WatchSessionEvents(w.ctx, made.ID, nil)
		must(t, err)
		defer stream.Close()
		first, err := stream.Recv()
		must(t, err)
		same(t, "earliest", first.Seq, made.Cursor.Earliest)
	}},
}
