package conformance

import (
	"slices"
	"testing"
	"time"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

var sandboxStories = []story{
	{"sandbox_create_get_status", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxTTL(600), sandbox0.WithSandboxHardTTL(7200))
		defer w.remove(t, s)
		same(t, "template", s.Template, "default")
		check(t, s.PodName != "", "no pod name")
		got := w.look(t, s)
		same(t, "status", string(got.Status), "running")
		same(t, "paused", got.Paused, false)
		same(t, "generation", got.RuntimeGeneration, 1)
		same(t, "auto resume", got.AutoResume, true)
		status, err := w.client.StatusSandbox(w.ctx, s.ID)
		must(t, err)
		same(t, "id", status.SandboxID.Value, s.ID)
		same(t, "status", string(status.Status.Value), "running")
	}},
	{"sandbox_list", func(t *testing.T, w *world) {
		first, second := w.claim(t), w.claim(t)
		defer w.remove(t, first)
		defer w.remove(t, second)
		listed := func(options *sandbox0.ListSandboxesOptions) []string {
			got, err := w.client.ListSandboxes(w.ctx, options)
			must(t, err)
			var ids []string
			for _, item := range got.Sandboxes {
				ids = append(ids, item.ID)
			}
			return ids
		}
		all := listed(nil)
		check(t, slices.Contains(all, first.ID) && slices.Contains(all, second.ID), "not listed: %v", all)
		one, paused := 1, true
		same(t, "a page of one", len(listed(&sandbox0.ListSandboxesOptions{Limit: &one})), 1)
		check(t, !slices.Contains(listed(&sandbox0.ListSandboxesOptions{Paused: &paused}), first.ID), "listed as paused")
		check(t, slices.Contains(listed(&sandbox0.ListSandboxesOptions{Status: "running"}), first.ID), "not running")
	}},
	{"sandbox_update_env", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxEnvVars(map[string]string{"COLOUR": "red"}))
		defer w.remove(t, s)
		colour := func() string {
			made := w.create(t, s, shell(t, "printf $COLOUR", nil), "")
			return written(t, w.follow(t, s, made.ID, 0, isExit))
		}
		same(t, "before", colour(), "red")
		_, err := w.client.UpdateSandbox(w.ctx, s.ID, apispec.SandboxUpdateRequest{
			Config: apispec.NewOptSandboxUpdateConfig(apispec.SandboxUpdateConfig{
				EnvVars: apispec.NewOptSandboxUpdateConfigEnvVars(map[string]string{"COLOUR": "blue"}),
			}),
		})
		must(t, err)
		same(t, "after", colour(), "blue")
	}},
	{"sandbox_refresh", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxTTL(600))
		defer w.remove(t, s)
		before := w.look(t, s).ExpiresAt
		got, err := w.client.RefreshSandbox(w.ctx, s.ID, &apispec.SandboxRefreshRequest{Duration: apispec.NewOptInt32(3600)})
		must(t, err)
		check(t, got.ExpiresAt.Sub(before) > 2000*time.Second, "%v is not later than %v", got.ExpiresAt, before)
	}},
	{"sandbox_delete", func(t *testing.T, w *world) {
		s := w.claim(t)
		w.remove(t, s)
		_, err := w.client.GetSandbox(w.ctx, s.ID)
		refused(t, err, 404, "not_found")
	}},
	{"sandbox_unknown_template", func(t *testing.T, w *world) {
		_, err := w.client.ClaimSandbox(w.ctx, "no-such-template")
		refused(t, err, 404, "not_found")
	}},
	{"sandbox_pause_and_resume", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "exec sleep 1000", nil), "")
		paused, err := w.client.PauseSandbox(w.ctx, s.ID)
		must(t, err)
		same(t, "paused", paused.Paused, true)
		got := w.look(t, s)
		same(t, "status", string(got.Status), "paused")
		resumed, err := w.client.ResumeSandbox(w.ctx, s.ID)
		must(t, err)
		same(t, "resumed", resumed.Resumed, true)
		got = w.look(t, s)
		same(t, "generation", got.RuntimeGeneration, 2)
		now := w.phase(t, s, made.ID, "running")
		same(t, "attempt", now.Attempt.Value.Number, 2)
		events := w.journal(t, s, made.ID, 100)
		same(t, "exits", reasons(events, "attempt.exited"), []string{"runtime_replaced"})
		exit := slices.IndexFunc(events, isExit)
		check(t, !events[exit].ExitCode.Set, "an exit code was invented")
		check(t, slices.Index(kinds(events), "session.paused") < exit, "paused after the exit")
		same(t, "starts", reasons(events, "attempt.starting"), []string{"created", "runtime_recovered"})
	}},
	{"paused_sandbox_is_read_without_waking", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "echo kept; exit 4", nil), "")
		w.follow(t, s, made.ID, 0, isExit)
		_, err := w.client.PauseSandbox(w.ctx, s.ID)
		must(t, err)
		listed, err := s.ListSessions(w.ctx)
		must(t, err)
		same(t, "sessions", len(listed), 1)
		got, err := s.GetSession(w.ctx, made.ID)
		must(t, err)
		same(t, "code", got.Attempt.Value.ExitCode.Value, 4)
		same(t, "watched", written(t, w.follow(t, s, made.ID, 0, isExit)), "kept\n")
		same(t, "paged", written(t, w.journal(t, s, made.ID, 100)), "kept\n")
		same(t, "paused", w.look(t, s).Paused, true)
	}},
	{"paused_sandbox_wakes_for_a_change", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		_, err := w.client.PauseSandbox(w.ctx, s.ID)
		must(t, err)
		made := w.create(t, s, shell(t, "echo awake", nil), "")
		same(t, "output", written(t, w.follow(t, s, made.ID, 0, isExit)), "awake\n")
		same(t, "generation", w.look(t, s).RuntimeGeneration, 2)
	}},
	{"paused_sandbox_without_auto_resume_refuses", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxAutoResume(false))
		defer w.remove(t, s)
		_, err := w.client.PauseSandbox(w.ctx, s.ID)
		must(t, err)
		_, err = s.CreateSession(w.ctx, shell(t, "echo never", nil), nil)
		refused(t, err, 503, "unavailable")
		_, err = s.ListSessions(w.ctx)
		must(t, err)
		same(t, "paused", w.look(t, s).Paused, true)
	}},
}
