package pages

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
)

// A View is the part of the fleet that one live page follows.
type View interface {
	// Wants reports whether the page shows the event; it is called for every event of the fleet and
	// must be quick.
	Wants(e *fleet.Event) bool
	// Pace is the interval between two updates of the page: bursts become one update.
	Pace() time.Duration
	// Begin brings the page up to date with events since it was loaded.
	Begin(ctx context.Context) (Updates, error)
	// Render turns the events since the last call into updates. It receives only the newest event
	// of each subject.
	Render(ctx context.Context, events []fleet.Event) (Updates, error)
}

// A LookingView also follows changes that no event announces: it polls at its pace.
type LookingView interface {
	View
	Look(ctx context.Context) (Updates, error)
}

// Views are the live pages of a room by the name in the address of their stream. A view is made for
// one stream.
type Views map[string]func(*http.Request) (View, error)

// Updates are the changes for a live page: components that replace those with the same id, and the
// number of new things that are not in its list.
type Updates struct {
	Patches []templ.Component
	Fresh   int
	Again   []templ.Component // patches to repeat in a moment: the page may not have had the element yet
	Later   bool              // render the same events again in a moment: the store lags behind the event
}

// Intervals of live pages: counting a large fleet or fan-out takes some milliseconds of the
// database each time.
const (
	PaceRows   = 200 * time.Millisecond
	PaceCounts = time.Second
)

// ReadLimit bounds the time of a stream's reads for its page: if the database hangs, the page shows
// it and the stream continues.
const ReadLimit = 3 * time.Second

// Loading is how far back a list looks for changes while its page was on the way to the browser.
const Loading = 10 * time.Second

// MaxRows bounds the rows of a list that one flush renders.
const MaxRows = 100
