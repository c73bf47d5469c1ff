package host

import (
	"context"
	"iter"
	"time"
)

const (
	maxCounted   = 1000
	countTimeout = 10 * time.Second
)

// count counts what the server offers in addition to tools, for people. A list that ends with an error
// counts as far as it goes.
func (s *session) count() {
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	has := s.capabilities()
	prompts, resources := 0, 0
	if has.Prompts != nil {
		prompts = length(s.client.Prompts(ctx, nil))
	}
	if has.Resources != nil {
		resources = length(s.client.Resources(ctx, nil)) + length(s.client.ResourceTemplates(ctx, nil))
	}
	s.prompts.Store(int32(prompts))
	s.resources.Store(int32(resources))
}

func length[V any](list iter.Seq2[V, error]) (n int) {
	for _, err := range list {
		if err != nil || n == maxCounted {
			break
		}
		n++
	}
	return n
}

// countAgain counts soon. Many requests become one.
func (s *session) countAgain() {
	time.AfterFunc(200*time.Millisecond, func() {
		select {
		case s.recount <- struct{}{}:
		default:
		}
	})
}
