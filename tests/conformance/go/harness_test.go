// Package conformance drives the vendor's Go client, unmodified, against a server of its own.
package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

const everSeconds = 60 * time.Second

type (
	spec    = apispec.ExecutionSessionSpec
	session = apispec.ExecutionSession
	sandbox = sandbox0.Sandbox
)

// world is what every story gets: a client, and a sandbox that the session stories share.
type world struct {
	ctx     context.Context
	client  *sandbox0.Client
	sandbox *sandbox
}

// serve starts the server under test in a directory of its own and ends it with the test.
func serve(t *testing.T) (url, token string) {
	t.Helper()
	program := os.Getenv("OUTLIVE_BIN")
	if program == "" {
		program = "../../../target/debug/outlive"
	}
	data := t.TempDir()
	log, err := os.Create(filepath.Join(t.TempDir(), "server.log"))
	must(t, err)
	server := exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--data", data)
	server.Stdout, server.Stderr = log, log
	must(t, server.Start())
	t.Cleanup(func() {
		must(t, server.Process.Signal(syscall.SIGTERM))
		if err := server.Wait(); err != nil {
			t.Logf("the server ended with %v", err)
		}
		endRuntimes(t, data)
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("server log (end):\n%s", text[max(0, len(text)-4000):])
		}
	})
	until(t, "the start of the server", func() bool {
		return exists(filepath.Join(data, "endpoint")) && exists(filepath.Join(data, "admin.token"))
	})
	return read(t, filepath.Join(data, "endpoint")), read(t, filepath.Join(data, "admin.token"))
}

func endRuntimes(t *testing.T, data string) {
	sandboxes, err := os.ReadDir(filepath.Join(data, "sandboxes"))
	if err != nil {
		return
	}
	for _, entry := range sandboxes {
		for _, pid := range keepers(t, entry.Name()) {
			must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// keepers finds a sandbox's keeper by its title, as an operator's ps would.
func keepers(t *testing.T, sandboxID string) []int {
	t.Helper()
	var found []int
	titles, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, path := range titles {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		arguments := strings.Split(string(text), "\x00")
		if len(arguments) >= 2 && arguments[0] == "outlive-keeper" && arguments[1] == sandboxID {
			pid, err := strconv.Atoi(strings.Split(path, "/")[2])
			must(t, err)
			found = append(found, pid)
		}
	}
	return found
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, condition bool, format string, values ...any) {
	t.Helper()
	if !condition {
		t.Fatalf(format, values...)
	}
}

func same[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return strings.TrimSpace(string(text))
}

// until polls for a fact that nothing announces.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(everSeconds)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come true", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// describe builds a session spec from its JSON form.
func describe(t *testing.T, fields map[string]any, command ...string) spec {
	t.Helper()
	whole := map[string]any{"command": command}
	for key, value := range fields {
		whole[key] = value
	}
	text, err := json.Marshal(whole)
	must(t, err)
	var made spec
	must(t, json.Unmarshal(text, &made))
	return made
}

type fields = map[string]any

func shell(t *testing.T, line string, more fields) spec {
	t.Helper()
	return describe(t, more, "/bin/sh", "-c", line)
}

func terminal(t *testing.T, line string) spec {
	t.Helper()
	return shell(t, line, fields{"io": fields{"mode": "pty"}})
}

func (w *world) create(t *testing.T, s *sandbox, wanted spec, key string) *session {
	t.Helper()
	made, err := s.CreateSession(w.ctx, wanted, &sandbox0.CreateSessionOptions{IdempotencyKey: key})
	must(t, err)
	return made
}

func (w *world) run(t *testing.T, wanted spec) *session {
	t.Helper()
	return w.create(t, w.sandbox, wanted, "")
}

func (w *world) claim(t *testing.T, options ...sandbox0.SandboxOption) *sandbox {
	t.Helper()
	made, err := w.client.ClaimSandbox(w.ctx, "default", options...)
	must(t, err)
	return made
}

func (w *world) remove(t *testing.T, s *sandbox) {
	t.Helper()
	_, err := w.client.DeleteSandbox(w.ctx, s.ID)
	must(t, err)
}

func (w *world) look(t *testing.T, s *sandbox) *apispec.Sandbox {
	t.Helper()
	got, err := w.client.GetSandbox(w.ctx, s.ID)
	must(t, err)
	return got
}

func (w *world) forget(t *testing.T, made *session) {
	t.Helper()
	_, err := w.sandbox.DeleteSession(w.ctx, made.ID)
	must(t, err)
}

func (w *world) state(t *testing.T, id string, state apispec.ExecutionSessionDesiredState) *session {
	t.Helper()
	got, err := w.sandbox.SetSessionDesiredState(w.ctx, id, state)
	must(t, err)
	return got
}

func (w *world) phase(t *testing.T, s *sandbox, id string, wanted apispec.ExecutionSessionPhase) *session {
	t.Helper()
	var got *session
	until(t, fmt.Sprintf("phase %s of %s", wanted, id), func() bool {
		var err error
		got, err = s.GetSession(w.ctx, id)
		must(t, err)
		return got.Phase == wanted
	})
	return got
}

func (w *world) input(t *testing.T, id, inputID, text string, eof bool) *apispec.ExecutionSessionInputResponse {
	t.Helper()
	got, err := w.write(id, inputID, text, eof, "")
	must(t, err)
	return got
}

func (w *world) write(id, inputID, text string, eof bool, expected string) (*apispec.ExecutionSessionInputResponse, error) {
	request := apispec.ExecutionSessionInputRequest{InputID: inputID}
	if text != "" {
		request.DataBase64 = apispec.NewOptString(base64.StdEncoding.EncodeToString([]byte(text)))
	}
	if eof {
		request.EOF = apispec.NewOptBool(true)
	}
	if expected != "" {
		request.ExpectedAttemptID = apispec.NewOptString(expected)
	}
	return w.sandbox.WriteSessionInput(w.ctx, id, request)
}

type event = apispec.ExecutionSessionEvent

func data(t *testing.T, e event) []byte {
	t.Helper()
	decoded, err := base64.StdEncoding.DecodeString(e.DataBase64.Or(""))
	must(t, err)
	return decoded
}

func written(t *testing.T, events []event, streams ...string) string {
	t.Helper()
	var whole bytes.Buffer
	for _, e := range events {
		if e.Type == "output" && (len(streams) == 0 || slices.Contains(streams, string(e.Stream.Value))) {
			whole.Write(data(t, e))
		}
	}
	return whole.String()
}

func reasons(events []event, kinds ...string) []string {
	var found []string
	for _, e := range events {
		if slices.Contains(kinds, e.Type) {
			found = append(found, e.Reason.Or("-"))
		}
	}
	return found
}

func kinds(events []event) []string {
	var found []string
	for _, e := range events {
		found = append(found, e.Type)
	}
	return found
}

func inOrder(t *testing.T, events []event, first int64) {
	t.Helper()
	for index, e := range events {
		check(t, e.Seq == first+int64(index), "seq %d at place %d after %d", e.Seq, index, first)
	}
}

func isExit(e event) bool { return e.Type == "attempt.exited" }

// follow watches until last(event) is true and returns every event up to it.
func (w *world) follow(t *testing.T, s *sandbox, id string, after int64, last func(event) bool) []event {
	t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, everSeconds)
	defer cancel()
	stream, err := s.WatchSessionEvents(ctx, id, &sandbox0.SessionEventStreamOptions{After: after})
	must(t, err)
	defer stream.Close()
	var events []event
	for {
		e, err := stream.Recv()
		if err != nil {
			t.Fatalf("the stream ended with %v after %v", err, kinds(events))
		}
		events = append(events, *e)
		if last(*e) {
			return events
		}
	}
}

func (w *world) toExit(t *testing.T, id string) []event {
	t.Helper()
	return w.follow(t, w.sandbox, id, 0, isExit)
}

func (w *world) toKind(t *testing.T, id, kind string) []event {
	t.Helper()
	return w.follow(t, w.sandbox, id, 0, func(e event) bool { return e.Type == kind })
}

func (w *world) toOutput(t *testing.T, s *sandbox, id, needle string, after int64) []event {
	t.Helper()
	var seen []byte
	return w.follow(t, s, id, after, func(e event) bool {
		seen = append(seen, data(t, e)...)
		return bytes.Contains(seen, []byte(needle))
	})
}

func (w *world) journal(t *testing.T, s *sandbox, id string, limit int) []event {
	t.Helper()
	var events []event
	options := &sandbox0.SessionEventOptions{Limit: limit}
	for {
		page, err := s.ListSessionEvents(w.ctx, id, options)
		must(t, err)
		events = append(events, page.Events...)
		if len(page.Events) == 0 || events[len(events)-1].Seq >= page.Cursor.Latest {
			return events
		}
		options.After = events[len(events)-1].Seq
	}
}

// refused expects an API error with this status and code.
func refused(t *testing.T, err error, status int, code string) *sandbox0.APIError {
	t.Helper()
	var failure *sandbox0.APIError
	if !errors.As(err, &failure) {
		t.Fatalf("expected %d %s, got %v", status, code, err)
	}
	check(t, failure.StatusCode == status && failure.Code == code, "expected %d %s, got %v", status, code, failure)
	return failure
}

// words joins values with spaces, to compare several at once.
func words(values ...any) string { return strings.TrimSpace(fmt.Sprintln(values...)) }
