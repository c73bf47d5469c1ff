// Package pages has what the rooms of the console share. A room is a package of pages with one
// vocabulary, such as fleetd/web/console/calls.
//
// A room declares its pages as a table of [Route]. Its handlers read a request, call the services of
// package fleet, and return an [Answer]: a component of package ui, or a redirect. A [Responder]
// renders the answer; only it maps errors to a status and a page. [ViewerOf] returns who reads the
// page. A live page has a [View].
//
// The package imports no room and none of the services that the pages show. It signs no operator in
// and admits no request: package console does both.
package pages

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/google/uuid"

	"fleetd/internal/bounded"
	"fleetd/web/ui"
)

// Options configures a [Responder].
type Options struct {
	Sessions *scs.SessionManager // keeps the message of an act for the next page
	// Frame returns the facts about a request that every component may use.
	Frame func(*http.Request) ui.Page
	Log   *slog.Logger
	Now   func() time.Time
}

// A Responder answers requests for all rooms.
type Responder struct {
	sessions *scs.SessionManager
	frame    func(*http.Request) ui.Page
	log      *slog.Logger
	clock    func() time.Time
	undos    *undos
}

// New returns a responder.
func New(o Options) *Responder {
	return &Responder{sessions: o.Sessions, frame: o.Frame, log: o.Log, clock: o.Now,
		undos: bounded.New[uuid.UUID, undo](maxUndos)}
}

// Now returns the present time in UTC.
func (s *Responder) Now() time.Time { return s.clock().UTC() }
