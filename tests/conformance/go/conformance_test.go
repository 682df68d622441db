package conformance

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	sandbox0 "github.com/sandbox0-ai/sdk-go"
)

type story struct {
	name string
	tell func(*testing.T, *world)
}

// TestConformance tells every story against one server.
func TestConformance(t *testing.T) {
	stories := slices.Concat(sandboxStories, lifecycleStories, sessionStories, inputStories, controlStories,
		lifeStories, contextStories, networkStories)
	url, token := serve(t)
	client, err := sandbox0.NewClient(sandbox0.WithBaseURL(url), sandbox0.WithToken(token))
	must(t, err)
	w := &world{ctx: context.Background(), client: client}
	w.sandbox = w.claim(t)
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) { s.tell(t, w) })
	}
}

// TestStoriesAreThoseOfEveryLanguage compares our list with the one all suites share.
func TestStoriesAreThoseOfEveryLanguage(t *testing.T) {
	text, err := os.ReadFile("../stories.txt")
	must(t, err)
	var told []string
	for _, s := range slices.Concat(sandboxStories, lifecycleStories, sessionStories, inputStories, controlStories, lifeStories, contextStories, networkStories) {
		told = append(told, s.name)
	}
	listed := strings.Fields(string(text))
	slices.Sort(told)
	slices.Sort(listed)
	same(t, "the stories", told, listed)
}
