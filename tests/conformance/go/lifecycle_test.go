package conformance

import (
	"errors"
	"slices"
	"testing"
	"time"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

var overAPause = []string{"session.paused", "attempt.exited", "attempt.starting"}

func (w *world) pause(t *testing.T, s *sandbox) {
	t.Helper()
	got, err := w.client.PauseSandbox(w.ctx, s.ID)
	must(t, err)
	same(t, "paused", got.Paused, true)
}

func (w *world) resume(t *testing.T, s *sandbox) {
	t.Helper()
	got, err := w.client.ResumeSandbox(w.ctx, s.ID)
	must(t, err)
	same(t, "resumed", got.Resumed, true)
}

// condition is what lists and waits look at, as words.
func (w *world) condition(t *testing.T, s *sandbox) string {
	t.Helper()
	got := w.look(t, s)
	return words(got.Status, got.Paused, got.RuntimeGeneration)
}

func (w *world) waitCondition(t *testing.T, s *sandbox, wanted string) {
	t.Helper()
	until(t, wanted, func() bool { return w.condition(t, s) == wanted })
}

func (w *world) listed(t *testing.T, options sandbox0.ListSandboxesOptions) []string {
	t.Helper()
	if options.Limit == nil {
		most := 200
		options.Limit = &most
	}
	got, err := w.client.ListSandboxes(w.ctx, &options)
	must(t, err)
	same(t, "count", got.Count, len(got.Sandboxes))
	var ids []string
	for _, item := range got.Sandboxes {
		ids = append(ids, item.ID)
	}
	return ids
}

func (w *world) refresh(t *testing.T, s *sandbox, request *apispec.SandboxRefreshRequest) time.Time {
	t.Helper()
	got, err := w.client.RefreshSandbox(w.ctx, s.ID, request)
	must(t, err)
	return got.ExpiresAt
}

func (w *world) update(t *testing.T, s *sandbox, config apispec.SandboxUpdateConfig) *apispec.Sandbox {
	t.Helper()
	request := apispec.SandboxUpdateRequest{Config: apispec.NewOptSandboxUpdateConfig(config)}
	got, err := w.client.UpdateSandbox(w.ctx, s.ID, request)
	must(t, err)
	return got
}

func colour(name string) apispec.OptSandboxUpdateConfigEnvVars {
	return apispec.NewOptSandboxUpdateConfigEnvVars(map[string]string{"COLOUR": name})
}

func last(events []event) int64 { return events[len(events)-1].Seq }

var lifecycleStories = []story{
	{"pause_and_resume_are_waited_for", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		w.pause(t, s)
		w.waitCondition(t, s, "paused true 1")
		w.resume(t, s)
		w.waitCondition(t, s, "running false 2")
	}},
	{"pause_and_resume_twice_change_nothing", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		for range 2 {
			w.pause(t, s)
			same(t, "paused", w.condition(t, s), "paused true 1")
		}
		for range 2 {
			w.resume(t, s)
			same(t, "resumed", w.condition(t, s), "running false 2")
		}
	}},
	{"status_over_a_pause", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		status := func() *apispec.SandboxStatus {
			got, err := w.client.StatusSandbox(w.ctx, s.ID)
			must(t, err)
			return got
		}
		before := status()
		w.pause(t, s)
		same(t, "paused", string(status().Status.Value), "paused")
		w.resume(t, s)
		after := status()
		same(t, "states", words(before.Status.Value, after.Status.Value), "running running")
		check(t, after.PodName.Value != before.PodName.Value, "the runtime kept its name")
		same(t, "created", after.CreatedAt.Value, before.CreatedAt.Value)
	}},
	{"list_filters_by_what_is_so", func(t *testing.T, w *world) {
		awake, asleep := w.claim(t), w.claim(t)
		defer w.remove(t, awake)
		defer w.remove(t, asleep)
		w.pause(t, asleep)
		yes, no := true, false
		for _, one := range []struct {
			options sandbox0.ListSandboxesOptions
			wanted  string
		}{
			{sandbox0.ListSandboxesOptions{}, "true true"},
			{sandbox0.ListSandboxesOptions{Status: "running"}, "true false"},
			{sandbox0.ListSandboxesOptions{Status: "paused"}, "false true"},
			{sandbox0.ListSandboxesOptions{Paused: &yes}, "false true"},
			{sandbox0.ListSandboxesOptions{Paused: &no}, "true false"},
			{sandbox0.ListSandboxesOptions{TemplateID: "default"}, "true true"},
			{sandbox0.ListSandboxesOptions{TemplateID: "another"}, "false false"},
			{sandbox0.ListSandboxesOptions{Status: "paused", Paused: &no}, "false false"},
		} {
			ids := w.listed(t, one.options)
			found := words(slices.Contains(ids, awake.ID), slices.Contains(ids, asleep.ID))
			same(t, words(one.options), found, one.wanted)
		}
		same(t, "asleep", w.condition(t, asleep), "paused true 1")
	}},
	{"list_pages_show_each_once", func(t *testing.T, w *world) {
		var made []string
		for range 5 {
			s := w.claim(t)
			defer w.remove(t, s)
			made = append(made, s.ID)
			if len(made) == 3 {
				w.pause(t, s)
			}
		}
		var all []string
		for size := 2; ; {
			offset := len(all)
			page := w.listed(t, sandbox0.ListSandboxesOptions{Limit: &size, Offset: &offset})
			if len(page) == 0 {
				break
			}
			all = append(all, page...)
		}
		same(t, "all", all, w.listed(t, sandbox0.ListSandboxesOptions{}))
		others := func(id string) bool { return !slices.Contains(made, id) }
		same(t, "mine, once and in order", slices.DeleteFunc(slices.Clone(all), others), made)
		tooMany := 201
		_, err := w.client.ListSandboxes(w.ctx, &sandbox0.ListSandboxesOptions{Limit: &tooMany})
		check(t, err != nil, "a page of 201 was answered")
	}},
	{"ttl_pauses", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxTTL(1))
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "echo up; exec sleep 1000", nil), "")
		w.waitCondition(t, s, "paused true 1")
		same(t, "output", written(t, w.journal(t, s, made.ID, 100)), "up\n")
	}},
	{"hard_ttl_deletes", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxHardTTL(1))
		made := w.create(t, s, shell(t, "exec sleep 1000", nil), "")
		until(t, "the deletion", func() bool {
			_, err := w.client.GetSandbox(w.ctx, s.ID)
			var failure *sandbox0.APIError
			if errors.As(err, &failure) {
				same(t, "status", failure.StatusCode, 404)
				return true
			}
			must(t, err)
			return false
		})
		_, err := s.GetSession(w.ctx, made.ID)
		refused(t, err, 404, "not_found")
		check(t, !slices.Contains(w.listed(t, sandbox0.ListSandboxesOptions{}), s.ID), "it is still listed")
	}},
	{"refresh_puts_the_pause_off", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxTTL(600))
		defer w.remove(t, s)
		first := w.look(t, s).ExpiresAt
		again := w.refresh(t, s, nil)
		later := again.Sub(first)
		check(t, later >= 0 && later < everSeconds, "put off by %v", later)
		hour := &apispec.SandboxRefreshRequest{Duration: apispec.NewOptInt32(3600)}
		longer := w.refresh(t, s, hour)
		later = longer.Sub(again) - 3000*time.Second
		check(t, later > -100*time.Second && later < everSeconds, "put off by %v more", later)
		same(t, "kept", w.look(t, s).ExpiresAt, longer)
		w.refresh(t, s, &apispec.SandboxRefreshRequest{Duration: apispec.NewOptInt32(1)})
		w.waitCondition(t, s, "paused true 1")
	}},
	{"update_env_reaches_the_next_attempt", func(t *testing.T, w *world) {
		s := w.claim(t, sandbox0.WithSandboxEnvVars(map[string]string{"COLOUR": "red"}))
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "echo $COLOUR; exec sleep 1000", nil), "")
		seen := w.toOutput(t, s, made.ID, "red\n", 0)
		w.update(t, s, apispec.SandboxUpdateConfig{EnvVars: colour("blue")})
		now, err := s.GetSession(w.ctx, made.ID)
		must(t, err)
		same(t, "attempt", now.Attempt.Value.ID, made.Attempt.Value.ID)
		_, err = s.CreateSessionAttempt(w.ctx, made.ID, true)
		must(t, err)
		later := w.toOutput(t, s, made.ID, "blue\n", last(seen))
		same(t, "output", written(t, later), "blue\n")
		// What a pause keeps, an update changes too, and changes nothing else.
		w.pause(t, s)
		updated := w.update(t, s, apispec.SandboxUpdateConfig{
			EnvVars: colour("green"), AutoResume: apispec.NewOptBool(false)})
		same(t, "updated", words(updated.Status, updated.AutoResume), "paused false")
		w.resume(t, s)
		w.toOutput(t, s, made.ID, "green\n", last(later))
	}},
	{"session_over_a_pause_keeps_its_order", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "echo up; exec sleep 1000", nil), "")
		seen := w.toOutput(t, s, made.ID, "up\n", 0)
		w.pause(t, s)
		held, err := s.GetSession(w.ctx, made.ID)
		must(t, err)
		same(t, "phase", string(held.Phase), "suspended")
		w.resume(t, s)
		w.toOutput(t, s, made.ID, "up\n", last(seen))
		events := w.journal(t, s, made.ID, 100)
		inOrder(t, events, 1)
		later := slices.DeleteFunc(slices.Clone(events[len(seen):]), func(e event) bool {
			return !slices.Contains(overAPause, e.Type)
		})
		same(t, "order", kinds(later), overAPause)
		same(t, "reasons", reasons(later, overAPause[1:]...), []string{"runtime_replaced", "runtime_recovered"})
		check(t, !later[1].ExitCode.Set, "an exit code was invented")
		generations := words(later[0].RuntimeGeneration, later[1].RuntimeGeneration, later[2].RuntimeGeneration)
		same(t, "generations", generations, "1 1 2")
		first := made.Attempt.Value.ID
		check(t, later[1].AttemptID.Value == first && later[2].AttemptID.Value != first, "attempts: %v", later)
		now := w.phase(t, s, made.ID, "running")
		same(t, "now", words(now.ID, now.RuntimeGeneration, now.Attempt.Value.Number), words(made.ID, 2, 2))
	}},
	{"session_that_stops_at_a_pause_stays_stopped", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		made := w.create(t, s, shell(t, "echo up; exec sleep 1000",
			fields{"lifecycle": fields{"runtime_recovery": "stop"}}), "")
		w.toOutput(t, s, made.ID, "up\n", 0)
		w.pause(t, s)
		w.resume(t, s)
		now := w.phase(t, s, made.ID, "stopped")
		same(t, "desired", now.Spec.Lifecycle.Value.DesiredState.Value, stopped)
		events := w.journal(t, s, made.ID, 100)
		same(t, "starts", len(reasons(events, "attempt.starting")), 1)
		same(t, "end", reasons(events, "session.stopped"), []string{"runtime_recovery_policy"})
		same(t, "output", written(t, events), "up\n")
	}},
	{"fork_has_the_files_and_no_sessions", func(t *testing.T, w *world) {
		source := w.claim(t, sandbox0.WithSandboxEnvVars(map[string]string{"COLOUR": "red"}))
		defer w.remove(t, source)
		made := w.create(t, source, shell(t, "echo kept > /root/kept; echo up; exec sleep 1000", nil), "")
		w.toOutput(t, source, made.ID, "up\n", 0)
		forked, err := w.client.ForkSandbox(w.ctx, source.ID, &apispec.ForkSandboxRequest{
			Config: apispec.NewOptForkSandboxConfig(apispec.ForkSandboxConfig{
				TTL: apispec.NewOptInt32(600), HardTTL: apispec.NewOptInt32(7200)})})
		must(t, err)
		child := forked.Sandbox
		same(t, "source", forked.SourceSandboxID, source.ID)
		check(t, child.ID != source.ID, "the fork has the source's id")
		same(t, "fork", words(child.Status, child.Paused, child.RuntimeGeneration), "paused true 1")
		check(t, child.HardExpiresAt.After(child.CreatedAt), "no deletion is due")
		fork := w.client.Sandbox(child.ID)
		defer w.remove(t, fork)
		listed, err := fork.ListSessions(w.ctx)
		must(t, err)
		same(t, "sessions", len(listed), 0)
		found := w.create(t, fork, shell(t, "cat /root/kept; echo $COLOUR", nil), "")
		same(t, "output", written(t, w.follow(t, fork, found.ID, 0, isExit)), "kept\nred\n")
		// The source's command runs where it ran, and nowhere else.
		now, err := source.GetSession(w.ctx, made.ID)
		must(t, err)
		same(t, "attempt", now.Attempt.Value.ID, made.Attempt.Value.ID)
		listed, err = fork.ListSessions(w.ctx)
		must(t, err)
		same(t, "sessions", len(listed), 1)
	}},
	{"snapshot_makes_a_sandbox_and_brings_one_back", func(t *testing.T, w *world) {
		source := w.claim(t)
		read := shell(t, "cat /root/kept", nil)
		kept := func(s *sandbox) string {
			return written(t, w.follow(t, s, w.create(t, s, read, "").ID, 0, isExit))
		}
		keep := func(text string) {
			made := w.create(t, source, shell(t, "echo "+text+" > /root/kept", nil), "")
			w.follow(t, source, made.ID, 0, isExit)
		}
		keep("old")
		snapshot, err := w.client.CreateSandboxRootFSSnapshot(w.ctx, source.ID,
			&apispec.CreateSandboxRootFSSnapshotRequest{
				Name: apispec.NewOptString(source.ID), Description: apispec.NewOptString("before it all")})
		must(t, err)
		same(t, "snapshot", words(snapshot.SandboxID, snapshot.Name.Value), source.ID+" "+source.ID)
		listed, err := w.client.ListSandboxRootFSSnapshots(w.ctx, source.ID)
		must(t, err)
		same(t, "snapshots", words(listed.Count, listed.Snapshots[0].ID), "1 "+snapshot.ID)
		got, err := w.client.GetSandboxRootFSSnapshot(w.ctx, snapshot.ID)
		must(t, err)
		same(t, "description", got.Description.Value, "before it all")
		check(t, got.CreatedAt.Equal(snapshot.CreatedAt), "it was created at another time")
		keep("new")
		w.pause(t, source)
		restored, err := w.client.RestoreSandboxRootFS(w.ctx, source.ID,
			apispec.RestoreSandboxRootFSRequest{SnapshotID: snapshot.ID})
		must(t, err)
		same(t, "restored", words(restored.SandboxID, restored.SnapshotID, restored.Status),
			words(source.ID, snapshot.ID, "paused"))
		w.resume(t, source)
		same(t, "kept", kept(source), "old\n")
		w.remove(t, source)
		made := w.claim(t, sandbox0.WithSandboxSnapshotID(snapshot.ID))
		defer w.remove(t, made)
		sessions, err := made.ListSessions(w.ctx)
		must(t, err)
		same(t, "sessions", len(sessions), 0)
		same(t, "kept", kept(made), "old\n")
		_, err = w.client.DeleteSandboxRootFSSnapshot(w.ctx, snapshot.ID)
		must(t, err)
		_, err = w.client.GetSandboxRootFSSnapshot(w.ctx, snapshot.ID)
		refused(t, err, 404, "snapshot_not_found")
	}},
}
