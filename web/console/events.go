package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/outcome"
	"fleetd/web/console/pages"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// Timing of a live stream.
const (
	heartbeat   = 20 * time.Second // so that proxies and the server notice a dead reader
	streamWrite = 10 * time.Second // a slower reader is dropped, and reconnects
	streamBegin = 10 * time.Second // a page waits 15 s for its stream, then opens another
	resendAfter = time.Second
	eventBuffer = 4096 // enough for a whole fleet that reconnects between two flushes
)

// beat is the event that shows a page that its stream is alive.
const beat = "event: beat\ndata:\n\n"

// errSlow ends the stream of a slow reader.
var errSlow = errors.New("stream: the reader is too slow")

// streamEvents serves the live stream of one page.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request) {
	ctx, done, err := s.streams.add(r.Context(), s.sessions.Token(r.Context()))
	switch {
	case errors.Is(err, errTooManyStreams):
		refuseStream(w)
		return
	case err != nil:
		s.failStream(w, r, err)
		return
	}
	defer done()
	ctx, stop := s.Authority.Follow(ctx, pages.ViewerOf(ctx).Actor())
	defer stop()
	r = r.WithContext(ctx)
	beginning, cancel := context.WithTimeout(ctx, streamBegin)
	defer cancel()
	v, err := s.newView(r.WithContext(beginning))
	if err != nil {
		s.failStream(w, r, err)
		return
	}
	wants := func(e *fleet.Event) bool { return e.Kind == fleet.EventAlert || v.Wants(e) }
	events := s.Events.Subscribe(eventBuffer, wants)
	defer events.Close()
	st := &stream{server: s, view: v, w: w, control: http.NewResponseController(w), address: pageOf(r),
		changes: s.Operators.Changes(), filter: s.eventSources().FilterFor(pages.ViewerOf(ctx).Actor()),
		pending: map[string]fleet.Event{}}
	first, err := v.Begin(st.page(beginning))
	if err != nil {
		s.failStream(w, r, err)
		return
	}
	startStream(w)
	_ = st.control.SetReadDeadline(time.Time{})
	if err := st.run(r, first, events); err != nil && ctx.Err() == nil {
		s.Log.Debug("stream ended", "operator", pages.ViewerOf(ctx).Actor().Name, "err", err)
	}
}

// pageOf returns the address of the page that a stream is for: forms in its updates lead back there.
func pageOf(r *http.Request) *url.URL {
	from, err := url.Parse(r.Referer())
	if err != nil || from.Path == "" {
		return nil
	}
	page, err := url.Parse(pages.LocalPath(from.RequestURI()))
	if err != nil {
		return nil
	}
	return page
}

func startStream(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
}

// failStream responds like [pages.Responder.Fail], but does not log a 503 as an error: while the database is
// unavailable, each page reconnects every few seconds.
func (s *Server) failStream(w http.ResponseWriter, r *http.Request, err error) {
	o := outcome.Of(err)
	if o.Status != http.StatusServiceUnavailable {
		s.Fail(w, r, err)
		return
	}
	s.Log.Debug("stream not started", "request", request.ID(w), "err", err)
	w.Header().Set("Retry-After", strconv.Itoa(o.RetryAfter))
	http.Error(w, http.StatusText(o.Status), o.Status)
}

// refuseStream makes the page show why it is not live. It uses an event because a script cannot
// read the status of a stream.
func refuseStream(w http.ResponseWriter) {
	startStream(w)
	_, _ = io.WriteString(w, "event: full\ndata:\n\n")
}

// newView returns the view of the page that the address names.
func (s *Server) newView(r *http.Request) (pages.View, error) {
	if open, ok := s.views[r.URL.Query().Get("view")]; ok {
		return open(r)
	}
	return nil, pages.ErrNoPage
}

// allViews returns the live pages of the console by name. Each room has those of its pages.
func (s *Server) allViews() pages.Views {
	all := pages.Views{ui.ViewOverview: s.newOverviewView}
	for _, room := range s.rooms.all() {
		for name, open := range room.Views() {
			if all[name] != nil {
				panic("two rooms have the live page " + name)
			}
			all[name] = open
		}
	}
	return all
}

// eventSources returns the devices that events are about, for viewers with access to only some
// devices.
func (s *Server) eventSources() *fleet.EventSources {
	return &fleet.EventSources{Device: s.Devices.Known,
		FanOut:   func(ctx context.Context, id uuid.UUID) error { _, err := s.FanOuts.Get(ctx, id); return err },
		Campaign: func(ctx context.Context, id uuid.UUID) error { _, err := s.Campaigns.Campaign(ctx, id); return err }}
}

// A stream is one live page's connection.
type stream struct {
	server  *Server
	view    pages.View
	w       http.ResponseWriter
	control *http.ResponseController
	address *url.URL // of the page; nil if the browser does not say it
	filter  fleet.EventFilter
	changes int64 // version of operators' access at the last check

	pending map[string]fleet.Event // newest event by subject
	alerts  bool                   // some changed
	away    bool                   // the page shows that the database is unavailable
	resend  []byte
	redo    map[string]fleet.Event // to render again: newest by subject
	due     time.Time              // of resend and redo
}

// run sends the first updates of the page, then the updates for events.
func (st *stream) run(r *http.Request, first pages.Updates, events *fleet.Subscription) (err error) {
	ctx := r.Context()
	if err := st.write([]byte("retry: 2000\n" + beat)); err != nil { // a reader that has received this misses no event
		return err
	}
	if err := st.send(ctx, first); err != nil {
		return err
	}
	flush, beat := time.NewTicker(st.view.Pace()), time.NewTicker(heartbeat)
	defer flush.Stop()
	defer beat.Stop()
	for {
		select {
		case e, ok := <-events.C:
			if !ok {
				return errSlow
			}
			if !st.filter.Pass(ctx, &e) {
				continue
			}
			if e.Kind == fleet.EventAlert { // the frame of every page counts alerts
				st.alerts = true
			}
			if st.view.Wants(&e) {
				st.pending[subject(e)] = e
			}
		case <-flush.C:
			if err = st.followDatabase(); err != nil || st.away {
				break // the changes are shown once they can be read
			}
			if err = st.accessStays(r); err == nil {
				err = st.flush(ctx)
			}
		case <-beat.C:
			err = st.beat(r)
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// subject returns the key of the thing that an event is about: the newest event of a subject
// replaces the others.
func subject(e fleet.Event) string {
	switch {
	case e.Call != nil:
		return "call " + e.Call.ID.String()
	case e.Subject != "":
		return string(e.Kind) + " " + e.Subject
	}
	if e.Kind == fleet.EventVitals || e.Kind == fleet.EventConfig {
		return string(e.Kind) + " " + string(e.Device) // independent of the device's presence
	}
	return "device " + string(e.Device)
}

func (st *stream) flush(ctx context.Context) error {
	if st.alerts {
		st.alerts = false
		badge := ui.AlertBadge(st.server.Alerts.Summary(pages.ViewerOf(ctx).Actor()))
		if err := st.send(ctx, pages.Updates{Patches: []templ.Component{badge}}); err != nil {
			return err
		}
	}
	var redo map[string]fleet.Event
	if !st.due.IsZero() && !time.Now().Before(st.due) {
		resend := st.resend
		st.due, st.resend, redo, st.redo = time.Time{}, nil, st.redo, nil
		if len(resend) > 0 {
			if err := st.write(resend); err != nil {
				return err
			}
		}
	}
	if v, ok := st.view.(pages.LookingView); ok {
		return st.look(ctx, v)
	}
	return st.update(ctx, redo)
}

// look polls for changes. While the database is unavailable or hangs, there are none.
func (st *stream) look(ctx context.Context, v pages.LookingView) error {
	limited, cancel := context.WithTimeout(st.page(ctx), pages.ReadLimit)
	defer cancel()
	u, err := v.Look(limited)
	switch {
	case err == nil:
		return st.send(ctx, u)
	case pages.StatusOf(err) == http.StatusServiceUnavailable:
		return nil
	}
	return err
}

// followDatabase shows on the page since how many seconds the database has been unavailable, and
// that it is available again.
func (st *stream) followDatabase() error {
	var since time.Time
	if st.server.DatabaseAway != nil {
		since = st.server.DatabaseAway()
	}
	if st.away == !since.IsZero() {
		return nil
	}
	st.away = !since.IsZero()
	says := "back"
	if st.away {
		says = strconv.Itoa(int(time.Since(since).Seconds()))
	}
	return st.write([]byte("event: database\ndata: " + says + "\n\n"))
}

// remember schedules a repetition of the updates.
func (st *stream) remember() {
	if st.due.IsZero() {
		st.due = time.Now().Add(resendAfter)
	}
}

// update renders the new events together with the scheduled repetitions: an element is sent at most
// once between two flushes.
func (st *stream) update(ctx context.Context, redo map[string]fleet.Event) error {
	fresh := st.pending
	st.pending = make(map[string]fleet.Event)
	batch := maps.Clone(fresh)
	for subject, e := range redo {
		if _, newer := fresh[subject]; !newer {
			batch[subject] = e
		}
	}
	if len(batch) == 0 {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, pages.ReadLimit)
	defer cancel()
	u, err := st.view.Render(st.page(within), slices.Collect(maps.Values(batch)))
	switch {
	case err != nil && ctx.Err() == nil && (within.Err() != nil || pages.StatusOf(err) == http.StatusServiceUnavailable):
		st.pending = batch // the database is unavailable, which is no reason to end the stream
		return nil
	case err != nil:
		return err
	}
	if u.Later && len(fresh) > 0 {
		if st.redo == nil {
			st.redo = make(map[string]fleet.Event)
		}
		maps.Copy(st.redo, fresh)
		st.remember()
	}
	return st.send(ctx, u)
}

func (st *stream) send(ctx context.Context, u pages.Updates) error {
	var b, again bytes.Buffer
	page := st.page(ctx)
	for _, c := range u.Patches {
		if err := writePatch(page, &b, c); err != nil {
			return err
		}
	}
	for _, c := range u.Again {
		if err := writePatch(page, &again, c); err != nil {
			return err
		}
	}
	if u.Fresh > 0 {
		b.WriteString("event: new\ndata: " + strconv.Itoa(u.Fresh) + "\n\n")
	}
	if again.Len() > 0 {
		b.Write(again.Bytes())
		st.resend = append(st.resend, again.Bytes()...)
		st.remember()
	}
	if b.Len() == 0 {
		return nil
	}
	return st.write(b.Bytes())
}

// page returns the context for rendering components: the same as the page's, at the present time.
func (st *stream) page(ctx context.Context) context.Context {
	v := pages.ViewerOf(ctx)
	return ui.WithPage(ctx, ui.Page{URL: st.address, Lang: v.Lang, Theme: v.Theme, Zone: v.Zone, Now: st.server.Now(),
		Operator: &ui.Operator{Name: v.Operator.Name, Role: v.Operator.Role}, Admin: pages.MayAdmin(ctx)})
}

var sseLines = strings.NewReplacer("\r\n", "\ndata: ", "\n", "\ndata: ", "\r", "\ndata: ")

// writePatch writes a component as one event. A line end would end the event's field, so each line
// gets a separate field.
func writePatch(ctx context.Context, b *bytes.Buffer, c templ.Component) error {
	var html strings.Builder
	if err := c.Render(ctx, &html); err != nil {
		return err
	}
	b.WriteString("event: patch\ndata: ")
	_, _ = sseLines.WriteString(b, html.String()) // a buffer never fails
	b.WriteString("\n\n")
	return nil
}

func (st *stream) write(b []byte) error {
	if err := st.control.SetWriteDeadline(time.Now().Add(streamWrite)); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := st.w.Write(b); err != nil {
		return err
	}
	return st.control.Flush()
}

// accessStays ends the stream after a change of its reader's access. The browser opens another.
func (st *stream) accessStays(r *http.Request) error {
	changes := st.server.Operators.Changes()
	if changes == st.changes {
		return nil
	}
	st.changes = changes
	return st.readerStays(r)
}

// readerStays checks whether the reader may still read the stream, and ends it if the reader was
// disabled, signed out in another tab, or got other access.
func (st *stream) readerStays(r *http.Request) error {
	// Not the request's context: it contains the session data of the start.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	ctx, err := st.server.sessions.Load(ctx, pages.Cookie(r, st.server.sessions.Cookie.Name))
	if err != nil {
		return nil // the database is unavailable, which is no reason to end it
	}
	o, _, err := st.server.signedIn(ctx)
	switch {
	case err == nil && o == nil:
		return errors.New("stream: signed out")
	case err == nil && !o.Principal().SameAccess(pages.ViewerOf(r.Context()).Actor()):
		return errors.New("stream: the reader's access changed")
	}
	return nil
}

func (st *stream) beat(r *http.Request) error {
	if !st.away {
		if err := st.readerStays(r); err != nil {
			return err
		}
	}
	return st.write([]byte(beat))
}
