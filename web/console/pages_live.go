package console

import (
	"context"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
)

// A view is the part of the fleet that one live page follows.
type view interface {
	// wants reports whether the page shows the event; it is called for every event of the fleet and
	// must be quick.
	wants(e *fleet.Event) bool
	// pace is the interval between two updates of the page: bursts become one update.
	pace() time.Duration
	// begin brings the page up to date with events since it was loaded.
	begin(ctx context.Context) (updates, error)
	// render turns the events since the last call into updates. It receives only the newest event
	// of each subject.
	render(ctx context.Context, events []fleet.Event) (updates, error)
}

// A lookingView also follows changes that no event announces: it polls at its pace.
type lookingView interface {
	view
	look(ctx context.Context) (updates, error)
}

// updates are the changes for a live page: components that replace those with the same id, and the
// number of new things that are not in its list.
type updates struct {
	patches []templ.Component
	fresh   int
	again   []templ.Component // patches to repeat in a moment: the page may not have had the element yet
	later   bool              // render the same events again in a moment: the store lags behind the event
}

// Intervals of live pages: counting a large fleet or fan-out takes some milliseconds of the
// database each time.
const (
	paceRows   = 200 * time.Millisecond
	paceCounts = time.Second
)

// pageRead bounds the time of a stream's reads for its page: if the database hangs, the page shows
// it and the stream continues.
const pageRead = 3 * time.Second

// loading is how far back a list looks for changes while its page was on the way to the browser.
const loading = 10 * time.Second

// maxRows bounds the rows of a list that one flush renders.
const maxRows = 100
