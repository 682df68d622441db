package conformance

import (
	"encoding/json"
	"strings"
	"testing"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
	"github.com/sandbox0-ai/sdk-go/pkg/apispec"
)

// Nobody has this address; a sandbox that may not reach it is told so within seconds.
const nobody = "timeout 10 bash -c 'exec 3<>/dev/tcp/198.51.100.1/9' 2>&1"

const rules = `{"mode":"block-all","egress":{"trafficRules":[` +
	`{"name":"mail","action":"deny","ports":[{"port":25,"protocol":"tcp"}]},` +
	`{"action":"allow","cidrs":["192.0.2.0/24"],"ports":[{"port":1,"endPort":1024}]}]}}`

func policy(t *testing.T, text string) apispec.SandboxNetworkPolicy {
	t.Helper()
	var read apispec.SandboxNetworkPolicy
	must(t, json.Unmarshal([]byte(text), &read))
	return read
}

// policyText is a policy as it is written in JSON, members in order.
func policyText(t *testing.T, policy *apispec.SandboxNetworkPolicy) string {
	t.Helper()
	text, err := json.Marshal(policy)
	must(t, err)
	var whole any
	must(t, json.Unmarshal(text, &whole))
	text, err = json.Marshal(whole)
	must(t, err)
	return string(text)
}

func (w *world) policy(t *testing.T, s *sandbox) string {
	t.Helper()
	got, err := s.GetNetworkPolicy(w.ctx)
	must(t, err)
	return policyText(t, got)
}

func (w *world) setPolicy(t *testing.T, s *sandbox, text string) {
	t.Helper()
	asked := policy(t, text)
	got, err := s.UpdateNetworkPolicy(w.ctx, asked)
	must(t, err)
	same(t, "the policy", policyText(t, got), policyText(t, &asked))
}

func (w *world) isRefused(t *testing.T, s *sandbox) bool {
	t.Helper()
	made := w.create(t, s, shell(t, nobody, nil), "")
	return strings.Contains(written(t, w.follow(t, s, made.ID, 0, isExit)), "No route to host")
}

var networkStories = []story{
	{"network_policy_is_read_and_written", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		same(t, "policy", w.policy(t, s), `{"mode":"allow-all"}`)
		w.setPolicy(t, s, w.policy(t, s))
		w.setPolicy(t, s, `{"mode":"block-all"}`)
		check(t, w.isRefused(t, s), "it is not refused")
		w.setPolicy(t, s, rules)
		asked := policy(t, rules)
		same(t, "policy", w.policy(t, s), policyText(t, &asked))
	}},
	{"network_policy_holds_from_the_claim_on", func(t *testing.T, w *world) {
		denied := policy(t, `{"mode":"allow-all","egress":{"deniedCidrs":["198.51.100.0/24"]}}`)
		s := w.claim(t, sandbox0.WithSandboxNetworkPolicy(denied))
		defer w.remove(t, s)
		same(t, "policy", w.policy(t, s), policyText(t, &denied))
		check(t, w.isRefused(t, s), "it is not refused")
	}},
	{"network_policy_refuses_what_it_cannot_enforce", func(t *testing.T, w *world) {
		s := w.claim(t)
		defer w.remove(t, s)
		before := w.policy(t, s)
		names := `{"mode":"block-all","egress":{"trafficRules":[{"action":"allow","domains":["example.org"]}]}}`
		_, err := s.UpdateNetworkPolicy(w.ctx, policy(t, names))
		failure := refused(t, err, 422, "unsupported")
		check(t, strings.Contains(failure.Message, "trafficRules[0].domains"), "%v", failure)
		same(t, "policy", w.policy(t, s), before)
	}},
}
